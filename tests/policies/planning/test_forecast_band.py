"""The forecast band: with held GPUs a plan must beat the most efficient point all through it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from tests.builders.observations import NOW, A, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import IntensitySlot, PlanView
from wattmesh.policies.forecast.forecast_band import band_edges_g_per_kwh
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.mpc import Question, question
from wattmesh.policies.planner.planning import _robust, answered
from wattmesh.policies.planner.problem import Option, OptionTransition, Plan, PlanningProblem
from wattmesh.policies.planner.repair import static_paths
from wattmesh.policies.planner.solver import solve
from wattmesh.reconfig.catalogue import PAUSED, Release

HOUR = timedelta(hours=1)
Rule = Callable[[PlanningProblem], int]


def slot(lead_h: float, g_per_kwh: float, high: float | None) -> IntensitySlot:
    """An hour so far ahead, with its upper quantile."""
    start = NOW + lead_h * HOUR
    return IntensitySlot(
        start=start, end=start + HOUR, g_per_kwh=g_per_kwh, high_g_per_kwh=high, low_g_per_kwh=1.0
    )


def test_only_hours_ahead_move_to_their_quantiles_and_never_across() -> None:
    """The running hour stays; a quantile on the wrong side of its forecast moves nothing."""
    told = (
        slot(0, 100.0, 300.0),
        slot(1, 100.0, 300.0),
        slot(24, 100.0, 300.0),
        slot(50, 0.5, 0.2),
        slot(60, 9.0, None),
    )
    clean, dirty = band_edges_g_per_kwh(told, NOW)
    assert clean == (100.0, 1.0, 1.0, 0.5, 1.0)
    assert dirty == (100.0, 300.0, 300.0, 0.5, 9.0)


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


EFFICIENT = "A-slow"
WIDE = 1.4


def replayed_g(truth: list[float], forecasts: list[list[float]], rule: Rule) -> tuple[float, float]:
    """Follow the plans of each hour's forecast: (grams, grams of the most efficient point)."""
    problem = world(truth)
    walked: list[int] = []
    for hour, told in enumerate(forecasts):
        done = evaluate(problem, tuple(walked))
        if done.ends_s is not None:
            break
        rest = replace(
            problem,
            tokens=problem.tokens - done.tokens,
            seconds=problem.seconds[hour:],
            g_per_kwh=(truth[hour], *told[hour + 1 :]),
            start=walked[-1] if walked else problem.start,
        )
        walked.append(rule(rest))
    alone = min(
        (evaluate(problem, path) for path in static_paths(problem)),
        key=lambda each: (not each.legal, each.energy_j),
    )
    return evaluate(problem, tuple(walked)).grams, alone.grams


def world(truth: list[float]) -> PlanningProblem:
    """A run of held GPUs: full speed, an efficient clock, a pause that draws a quarter."""
    options = (
        Option(name="A", layout="x", tokens_per_s=1000.0, power_w=1000.0, gpus=4),
        Option(name=EFFICIENT, layout="x", tokens_per_s=850.0, power_w=700.0, gpus=4),
        Option(name=PAUSED, layout="", tokens_per_s=0.0, power_w=250.0, gpus=0),
    )
    free = OptionTransition(seconds=0.0, energy_j=0.0)
    return PlanningProblem(
        tokens=850.0 * 3600.0 * (len(truth) - 8),
        seconds=(3600.0,) * len(truth),
        g_per_kwh=tuple(truth),
        options=options,
        start=1,
        transitions=tuple(tuple(None if a == b else free for b in range(3)) for a in range(3)),
    )


def careful(rest: PlanningProblem) -> int:
    """Our rule, with a band around the forecast."""
    found = solve(rest)
    assert isinstance(found, Plan)
    known, *later = rest.g_per_kwh
    band = (
        (known, *(each / WIDE for each in later)),
        (known, *(each * WIDE for each in later)),
    )
    return _robust(_asked(rest, band), rest, found).path[0]


def trusting(rest: PlanningProblem) -> int:
    """The sabotaged twin: it takes the forecast at its word."""
    found = solve(rest)
    assert isinstance(found, Plan)
    return found.path[0]


def _asked(problem: PlanningProblem, band: tuple[tuple[float, ...], ...]) -> Question:
    return Question(
        made_at=NOW,
        problem=problem,
        ids=("A", EFFICIENT, ""),
        starts=tuple(NOW + hour * HOUR for hour in range(len(problem.seconds))),
        digest="",
        band_g_per_kwh=band,
    )


def test_held_gpus_lose_next_to_nothing_by_any_forecast_inside_its_band() -> None:
    """Truth anywhere inside the band: each hour's plan was better there, and stays so.

    Forecasts are made to mislead: too clean where waiting is tempting, too dirty where hurrying is.
    """
    chance = Random(11)
    losses: dict[str, list[float]] = {"careful": [], "trusting": []}
    for _ in range(3):
        truth = [chance.uniform(100.0, 260.0) for _ in range(22)]
        forecasts = [[each * WIDE ** chance.uniform(-1.0, 1.0) for each in truth] for _ in truth]
        for name, rule in (("careful", careful), ("trusting", trusting)):
            grams, alone = replayed_g(truth, forecasts, rule)
            losses[name].append(100.0 * (grams / alone - 1.0))
    assert max(losses["careful"]) <= 0.5
    assert sum(losses["careful"]) / len(losses["careful"]) <= 0.1
    assert max(losses["trusting"]) > 0.5


def test_held_gpus_still_wait_for_hours_that_are_cleaner_beyond_doubt() -> None:
    """Eight hours ten times as dirty as the rest: the plan sleeps through them, and saves."""
    truth = [100.0] * 10 + [1000.0] * 8 + [100.0] * 18
    grams, alone = replayed_g(truth, [truth] * len(truth), careful)
    assert grams < 0.8 * alone
