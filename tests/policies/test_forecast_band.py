"""The forecast band: with held GPUs a plan must beat the best single point at both edges."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.builders.observations import NOW, A, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import IntensitySlot, PlanView
from wattmesh.policies.forecast.forecast_band import band_edges_g_per_kwh
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.planner.planning import answered
from wattmesh.reconfig.catalogue import Release

HOUR = timedelta(hours=1)


def slot(lead_h: float, g_per_kwh: float, high: float | None) -> IntensitySlot:
    """An hour so far ahead, with its upper quantile."""
    start = NOW + lead_h * HOUR
    return IntensitySlot(
        start=start, end=start + HOUR, g_per_kwh=g_per_kwh, high_g_per_kwh=high, low_g_per_kwh=1.0
    )


def test_only_hours_a_day_ahead_and_more_move_to_their_quantiles_and_never_across() -> None:
    """The day ahead stays; a quantile on the wrong side of its forecast moves nothing."""
    told = (
        slot(0, 100.0, 300.0),
        slot(23, 100.0, 300.0),
        slot(24, 100.0, 300.0),
        slot(50, 0.5, 0.2),
        slot(60, 9.0, None),
    )
    clean, dirty = band_edges_g_per_kwh(told, NOW)
    assert clean == (100.0, 100.0, 1.0, 0.5, 1.0)
    assert dirty == (100.0, 100.0, 300.0, 0.5, 9.0)


def held_by(grid: tuple[IntensitySlot, ...], release: Release, left_h: float = 200) -> PlanView:
    """The plan of a run of two clocks whose unused GPUs are kept, or given back."""
    slow = point("A-slow", 4, 850.0, 1150.0, clock_mhz=1300, layout=A.layout)
    job = replace(catalogue(A, slow), release=release)
    view = run(
        catalogue=job,
        current=slow,
        clock_trouble="",
        deadline=NOW + left_h * HOUR,
        tokens_total=run().tokens + 216_000_000,
    )
    asked = question(observation(view, grid=grid), view)
    assert asked is not None
    assert bool(asked.band_g_per_kwh) == (release is not Release.RELEASED)
    found = answered(asked)
    assert isinstance(found, PlanView)
    return found


@pytest.mark.parametrize(("wide", "first"), [(1.0, "A"), (20.0, "A-slow")])
def test_held_gpus_hurry_only_where_that_pays_however_the_grid_turns_out(
    wide: float, first: str
) -> None:
    """Clean today, dirty ever after: full speed first, unless nobody knows how dirty."""
    plain = slots([50.0] * 30 + [300.0] * 170)
    grid = tuple(
        replace(each, low_g_per_kwh=each.g_per_kwh / wide, high_g_per_kwh=each.g_per_kwh * wide)
        for each in plain
    )
    found = held_by(grid, Release.HELD)
    assert found.at(NOW).point == first  # type: ignore[union-attr]
    assert len(found.steps) == 1 or wide == 1.0


@pytest.mark.parametrize(("wide", "first"), [(1.0, "A-slow"), (20.0, "A")])
def test_held_gpus_wait_only_where_that_pays_however_the_grid_turns_out(
    wide: float, first: str
) -> None:
    """Dirty today, clean ever after: slow first, unless the clean hours may be dirty as well."""
    dirty, clean = [300.0] * 30, [50.0] * 40
    grid = tuple(
        replace(each, high_g_per_kwh=each.g_per_kwh * (1.0 if n < len(dirty) else wide))
        for n, each in enumerate(slots(dirty + clean))
    )
    assert held_by(grid, Release.HELD, left_h=66).at(NOW).point == first  # type: ignore[union-attr]
