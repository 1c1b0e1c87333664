"""A catalogue as the planner's options, and the slots a plan is made in."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import HOUR, NOW, A, B, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import mean_g_per_kwh
from wattmesh.policies.planner.grid import mixed
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import OptionTransition
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
    assert told[0][1] == OptionTransition(seconds=1.0, energy_j=1600.0, dwell_s=900.0)
    assert told[2][0] == OptionTransition(seconds=60.0, energy_j=60.0 * 1600.0, dwell_s=3600.0)
    measured = replace(COSTS, layout_energy_j=20_000.0)
    told = transitions(measured, found, release=known.release)
    assert told[2][0] == OptionTransition(seconds=60.0, energy_j=20_000.0)


def test_layouts_of_equal_degrees_are_no_clocks_of_each_other() -> None:
    """Screens tell them by their degrees alone: between them is a switch, and it is not free."""
    other = replace(A, id="R", layout=replace(A.layout, recompute=True))
    known = catalogue(A, other, switch=COSTS)
    found = options(known, known.points, 4)
    told = transitions(COSTS, found, release=known.release, dwell_s=3600.0, clock_dwell_s=900.0)
    assert told[0][1] == OptionTransition(seconds=60.0, energy_j=60.0 * 1600.0, dwell_s=3600.0)


def test_a_pair_has_its_own_cost_in_its_own_direction() -> None:
    """What was measured for a pair goes before what holds for all."""
    pair = PairCost(origin="A", target="B", seconds=7.0, energy_j=70.0)
    costs = replace(COSTS, pairs=(pair,))
    known = catalogue(A, B, switch=costs)
    told = transitions(costs, options(known, known.points, 4), release=known.release)
    assert told[0][1] == OptionTransition(seconds=7.0, energy_j=70.0)
    assert told[1][0] == OptionTransition(seconds=60.0, energy_j=96_000.0)


def test_given_back_gpus_return_only_where_it_is_known_how_long_that_takes() -> None:
    """Growing waits for the GPUs, drawing as before; unknown: there is no way back."""
    known = catalogue(A, B, release=Release.RELEASED, switch=COSTS)
    found = options(known, known.points, 4)
    told = transitions(COSTS, found, release=known.release)
    assert told[0][1] is not None
    assert told[1][0] is None
    waiting = transitions(replace(COSTS, reacquire_s=100.0), found, release=known.release)
    assert waiting[1][0] == OptionTransition(seconds=160.0, energy_j=96_000.0 + 100.0 * 800.0)
    parked = transitions(COSTS, found, release=Release.PARKED)
    assert parked[1][0] is not None


def quarters(count: int) -> tuple[IntensitySlot, ...]:
    """Five-minute slots, each with a band."""
    return tuple(
        replace(each, low_g_per_kwh=0.5 * each.g_per_kwh, high_g_per_kwh=2.0 * each.g_per_kwh)
        for each in slots([100.0 + n % 7 for n in range(count)], seconds=300.0)
    )


def test_slots_are_thrown_together_and_more_so_far_ahead() -> None:
    """Five minutes: quarters of an hour for three days, two hours after; hours stay hours."""
    found = mixed(quarters(4 * 24 * 12), NOW)
    lengths = [(slot.end - slot.start).total_seconds() / 60 for slot in found]
    assert lengths == [15.0] * (72 * 4) + [120.0] * 12
    hours = slots([100.0, 200.0, 300.0])
    assert mixed(hours, NOW) == hours
    assert mixed((), NOW) == ()


@given(
    st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=40),
    st.sampled_from([60.0, 300.0, 1800.0, HOUR, 5 * HOUR]),
    st.floats(0.0, 80.0),
)
def test_throwing_together_keeps_the_mean_and_leaves_no_gap(
    values: list[float], seconds: float, later_h: float
) -> None:
    """Whatever the lengths, the slots cover the time and carry its mean."""
    known = slots(values, seconds=seconds)
    found = mixed(known, NOW - timedelta(hours=later_h))
    assert (found[0].start, found[-1].end) == (known[0].start, known[-1].end)
    assert all(one.end == other.start for one, other in pairwise(found))
    assert mean_g_per_kwh(found) == pytest.approx(mean_g_per_kwh(known), abs=1e-6)


def test_quantiles_are_kept_where_all_of_a_slot_has_them() -> None:
    """A quarter of an hour of which five minutes have none has none."""
    known = quarters(6)
    known = (*known[:4], replace(known[4], low_g_per_kwh=None), known[5])
    found = mixed(known, NOW)
    assert [each.low_g_per_kwh for each in found] == [pytest.approx(50.5), None]
    assert [each.high_g_per_kwh for each in found] == pytest.approx([202.0, 208.0])
