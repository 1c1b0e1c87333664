"""Caution: hours that nobody can foresee count dirtier, what is known never does."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.build import NOW, A, B, catalogue, observation, point, run, slots
from wattmesh.policies.decision import IntensitySlot, PlanView
from wattmesh.policies.forecast.caution import cautious_g_per_kwh, doubted_g_per_kwh
from wattmesh.policies.planner.mpc import Question, question
from wattmesh.policies.planner.planning import answered, solved
from wattmesh.reconfig.catalogue import Release

HOUR = timedelta(hours=1)


def slot(lead_h: float, g_per_kwh: float, high: float | None) -> IntensitySlot:
    """An hour so far ahead, with its upper quantile."""
    start = NOW + lead_h * HOUR
    return IntensitySlot(
        start=start, end=start + HOUR, g_per_kwh=g_per_kwh, high_g_per_kwh=high, low_g_per_kwh=1.0
    )


def test_only_hours_a_day_ahead_and_more_are_moved_and_only_with_a_band() -> None:
    """Now, tomorrow morning, the day after, and the day after without a band."""
    told = (
        slot(0, 100.0, 300.0),
        slot(23, 100.0, 300.0),
        slot(24, 100.0, 300.0),
        slot(48, 100.0, None),
    )
    assert cautious_g_per_kwh(told, NOW, 0.25) == (100.0, 100.0, 150.0, 100.0)
    assert cautious_g_per_kwh(told, NOW, 0.0) == (100.0,) * 4
    assert cautious_g_per_kwh(told, NOW, 1.0)[2] == 300.0


def test_a_band_below_its_forecast_moves_nothing() -> None:
    """A quantile that contradicts the forecast is no reason to count on clean hours."""
    assert cautious_g_per_kwh((slot(48, 100.0, 80.0),), NOW, 0.5) == (100.0,)


@given(
    values=st.lists(st.floats(0, 1e3), min_size=1, max_size=20),
    caution=st.floats(0, 1),
    scale=st.floats(0.1, 10),
)
def test_caution_never_makes_an_hour_cleaner_and_has_no_unit(
    values: list[float], caution: float, scale: float
) -> None:
    """Between the forecast and its quantile; scaled with it."""
    told = [slot(n * 5, each, 1.5 * each) for n, each in enumerate(values)]
    moved = cautious_g_per_kwh(told, NOW, caution)
    assert all(
        each <= got <= 1.5 * each * (1 + 1e-12) for each, got in zip(values, moved, strict=True)
    )
    scaled = [slot(n * 5, scale * each, scale * 1.5 * each) for n, each in enumerate(values)]
    again = cautious_g_per_kwh(scaled, NOW, caution)
    assert list(again) == pytest.approx([scale * each for each in moved])


def test_doubt_moves_the_far_to_both_ends_of_its_band_and_never_across() -> None:
    """The day ahead stays; a quantile on the wrong side of its forecast moves nothing."""
    told = (slot(0, 100.0, 300.0), slot(48, 100.0, 300.0), slot(50, 0.5, 0.2), slot(60, 9.0, None))
    clean, dirty = doubted_g_per_kwh(told, NOW)
    assert clean == (100.0, 1.0, 0.5, 1.0)
    assert dirty == (100.0, 300.0, 0.5, 9.0)


def held_by(grid: tuple[IntensitySlot, ...], release: Release) -> PlanView:
    """The plan of a run of two clocks whose unused GPUs are kept, or given back."""
    slow = point("A-slow", 4, 850.0, 1150.0, clock_mhz=1300, layout=A.layout)
    job = replace(catalogue(A, slow), release=release)
    view = run(
        catalogue=job,
        current=slow,
        clock_trouble="",
        deadline=NOW + 200 * HOUR,
        tokens_total=run().tokens + 216_000_000,
    )
    asked = question(observation(view, grid=grid), view)
    assert asked is not None
    assert bool(asked.doubted_g_per_kwh) == (release is not Release.RELEASED)
    found = answered(asked)
    assert found is not None
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


def banded(values: list[float], wide: float) -> tuple[IntensitySlot, ...]:
    """Hours with a band above them, but for the running one."""
    plain = slots(values)
    return (
        plain[0],
        *(replace(each, high_g_per_kwh=wide * each.g_per_kwh) for each in plain[1:]),
    )


def asked_of(grid: tuple[IntensitySlot, ...], caution: float) -> Question:
    """The question of a run with 60 h of work and 90 h until its deadline."""
    kept = catalogue(A, B)
    given_back = replace(
        kept, release=Release.RELEASED, switch=replace(kept.switch, reacquire_s=0.0)
    )
    view = run(
        catalogue=given_back,
        deadline=NOW + 90 * HOUR,
        tokens_total=run().tokens + 216_000_000,
    )
    seen = observation(view, grid=grid)
    asked = question(replace(seen, policy=replace(seen.policy, caution=caution)), view)
    assert asked is not None
    return asked


def test_a_cautious_plan_says_what_the_forecast_makes_of_it() -> None:
    """Its grams and its bound are of the forecast; it only chose as if the far were dirtier."""
    grid = banded([210.0] * 30 + [200.0] * 60, 2.0)
    bold, careful = asked_of(grid, 0.0), asked_of(grid, 0.3)
    assert bold.digest != careful.digest
    assert bold.foreseen_g_per_kwh == bold.problem.g_per_kwh == careful.foreseen_g_per_kwh
    assert max(careful.problem.g_per_kwh) > max(bold.problem.g_per_kwh)
    waits, works = solved(bold), solved(careful)
    assert isinstance(waits, PlanView)
    assert isinstance(works, PlanView)
    assert waits.bound_g == pytest.approx(works.bound_g, rel=1e-3)
    assert waits.grams <= works.grams <= 1.1 * waits.grams
    followed = answered(careful)
    assert followed is not None
    assert followed.steps == works.steps
    assert followed.grams > works.grams


def test_a_cautious_run_works_while_the_bold_one_waits_for_hours_nobody_knows() -> None:
    """Five per cent cleaner from tomorrow on, or twice as dirty: no reason to wait."""
    grid = banded([210.0] * 24 + [200.0] * 66, 2.0)
    assert answered(asked_of(grid, 0.0)).at(NOW).point == "B"  # type: ignore[union-attr]
    assert answered(asked_of(grid, 0.3)).at(NOW).point == "A"  # type: ignore[union-attr]
