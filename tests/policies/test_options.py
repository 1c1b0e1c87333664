"""A catalogue as the planner's options, and the slots a plan is made in."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.build import HOUR, NOW, A, B, catalogue, point, slots
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import mean_g_per_kwh
from wattmesh.policies.planner.grid import Grid, mixed
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import Transition
from wattmesh.reconfig.catalogue import PairCost, Release, SwitchCost

A_LOW = point("A-low", 4, 900.0, 1200.0, clock_mhz=1200)
COSTS = SwitchCost(layout_s=60.0, clock_s=1.0, source="measured")


@pytest.mark.parametrize(
    ("release", "b_w", "paused_w", "b_gpus"),
    [
        (Release.HELD, 940.0, 280.0, 4),
        (Release.PARKED, 940.0, 280.0, 4),
        (Release.RELEASED, 800.0, 0.0, 2),
    ],
)
def test_unused_gpus_are_charged_as_the_release_says(
    release: Release, b_w: float, paused_w: float, b_gpus: int
) -> None:
    """Idle power, embodied share and GPUs held follow what becomes of the unused ones."""
    known = catalogue(A, B, release=release, embodied_g_per_gpu_hour=9.0)
    first, second, paused = options(known, known.points, 4, pause=True)
    assert (first.name, first.power_w, first.gpus) == ("A", 1600.0, 4)
    assert (second.power_w, second.gpus) == (b_w, b_gpus)
    assert second.embodied_g_per_s == pytest.approx(b_gpus * 9.0 / HOUR)
    assert (paused.name, paused.tokens_per_s, paused.power_w) == ("paused", 0.0, paused_w)
    assert len(options(known, known.points, 4)) == 2


def test_nothing_is_free_because_nobody_measured_it() -> None:
    """Without measured joules a switch draws as the thirstier point; a clock its own seconds."""
    known = catalogue(A, A_LOW, B, switch=COSTS)
    found = options(known, known.points, 4)
    told = transitions(COSTS, found, release=known.release, dwell_s=3600.0, clock_dwell_s=900.0)
    assert told[0][0] is None
    assert told[0][1] == Transition(seconds=1.0, energy_j=1600.0, dwell_s=900.0)
    assert told[2][0] == Transition(seconds=60.0, energy_j=60.0 * 1600.0, dwell_s=3600.0)
    measured = replace(COSTS, layout_energy_j=20_000.0)
    told = transitions(measured, found, release=known.release)
    assert told[2][0] == Transition(seconds=60.0, energy_j=20_000.0)


def test_a_pair_has_its_own_cost_in_its_own_direction() -> None:
    """What was measured for a pair goes before what holds for all."""
    pair = PairCost(origin="A", target="B", seconds=7.0, energy_j=70.0)
    costs = replace(COSTS, pairs=(pair,))
    known = catalogue(A, B, switch=costs)
    told = transitions(costs, options(known, known.points, 4), release=known.release)
    assert told[0][1] == Transition(seconds=7.0, energy_j=70.0)
    assert told[1][0] == Transition(seconds=60.0, energy_j=96_000.0)


def test_given_back_gpus_return_only_where_it_is_known_how_long_that_takes() -> None:
    """Growing waits for the GPUs, drawing as before; unknown: there is no way back."""
    known = catalogue(A, B, release=Release.RELEASED, switch=COSTS)
    found = options(known, known.points, 4)
    told = transitions(COSTS, found, release=known.release)
    assert told[0][1] is not None
    assert told[1][0] is None
    waiting = transitions(replace(COSTS, reacquire_s=100.0), found, release=known.release)
    assert waiting[1][0] == Transition(seconds=160.0, energy_j=96_000.0 + 100.0 * 800.0)
    parked = transitions(COSTS, found, release=Release.PARKED)
    assert parked[1][0] is not None


def test_slots_are_fine_first_and_begin_at_the_next_boundary() -> None:
    """Ten minutes to the boundary, half hours for two hours, then hours, cut at the deadline."""
    grid = Grid(first_s=600.0, fine_s=1800.0, fine_for_s=2 * HOUR, coarse_s=HOUR)
    found = mixed(slots([100.0, 200.0, 300.0, 400.0]), NOW, NOW + timedelta(hours=3.5), grid)
    lengths = [(slot.end - slot.start).total_seconds() / 60 for slot in found]
    assert lengths == [10, 30, 30, 30, 30, 60, 20]
    assert [slot.g_per_kwh for slot in found][:3] == pytest.approx([100.0, 100.0, 400.0 / 3])


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=3, max_size=12),
    st.floats(0.0, 7000.0),
    st.floats(0.1, 3.0),
)
def test_cutting_keeps_the_mean_and_leaves_no_gap(
    values: list[float], first_s: float, hours: float
) -> None:
    """Whatever the lengths, the slots cover the time and carry its mean."""
    end = NOW + timedelta(hours=hours)
    known = slots(values)
    grid = Grid(first_s=first_s, fine_s=500.0, fine_for_s=HOUR, coarse_s=1700.0)
    found = mixed(known, NOW, end, grid)
    assert (found[0].start, found[-1].end) == (NOW, end)
    assert all(one.end == other.start for one, other in pairwise(found))
    cut = [replace(each, end=min(each.end, end)) for each in known if each.start < end]
    assert mean_g_per_kwh(found) == pytest.approx(mean_g_per_kwh(cut), abs=1e-6)


def test_quantiles_are_kept_where_all_of_a_slot_has_them() -> None:
    """Half a slot without a quantile has none."""

    def slot(n: int, low: float | None) -> IntensitySlot:
        at = NOW + timedelta(hours=n)
        return IntensitySlot(
            start=at, end=at + timedelta(hours=1), g_per_kwh=100.0, low_g_per_kwh=low
        )

    grid = Grid(fine_s=2 * HOUR)
    known = [slot(0, 80.0), slot(1, 60.0), slot(2, 50.0), slot(3, None)]
    found = mixed(known, NOW, NOW + timedelta(hours=4), grid)
    assert [each.low_g_per_kwh for each in found] == [70.0, None]
    assert [each.high_g_per_kwh for each in found] == [None, None]
