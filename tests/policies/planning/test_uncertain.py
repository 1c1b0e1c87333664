"""Forecasts that are wrong: keeping to a plan."""

from dataclasses import replace
from random import Random

from tests.policies.planning.planner_cases import case
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import NoPlan, Plan, PlanningProblem
from wattmesh.policies.planner.solver import solve
from wattmesh.policies.planner.steady import steady

NOISE = 0.15


def planned(problem: PlanningProblem) -> Plan:
    """The plan of a problem that has one."""
    found = solve(problem)
    assert isinstance(found, Plan), found
    return found


def noisy(values: tuple[float, ...], seed: int) -> tuple[float, ...]:
    """The forecast of an hour: the first slot is known, the others are off."""
    rng = Random(seed)
    return (values[0], *(value * max(0.1, 1 + rng.gauss(0.0, NOISE)) for value in values[1:]))


def live_through(problem: PlanningProblem, *, steadily: bool) -> tuple[float, int]:
    """Plan anew every hour with new noise and take the first step: (grams, changes)."""
    walked: list[int] = []
    before: tuple[int, ...] = ()
    for hour in range(len(problem.seconds)):
        done = evaluate(problem, tuple(walked))
        if done.ends_s is not None:
            break
        rest = replace(
            problem,
            tokens=problem.tokens - done.tokens,
            seconds=problem.seconds[hour:],
            g_per_kwh=noisy(problem.g_per_kwh[hour:], hour),
            start=walked[-1] if walked else problem.start,
        )
        found = solve(rest)
        if isinstance(found, NoPlan):
            walked.append(0)
            continue
        kept = steady(rest, found, before) if steadily else found
        walked.append(kept.path[0])
        before = kept.path[1:]
    result = evaluate(problem, tuple(walked))
    assert result.ends_s is not None
    return result.grams, result.layout_switches + result.clock_changes


def test_keeping_to_a_plan_switches_less_on_noisy_forecasts() -> None:
    """New noise every hour: fewer changes, and no more than a percent more grams."""
    problem = case(60, 1.5)
    jumpy_g, jumps = live_through(problem, steadily=False)
    steady_g, kept = live_through(problem, steadily=True)
    assert kept < jumps
    assert steady_g <= jumpy_g * 1.01


def test_a_plan_that_is_not_legal_any_more_or_much_worse_is_dropped() -> None:
    """Caps, work left over, or a large saving end the loyalty; equal first steps need none."""
    problem = case(36, 1.5)
    found = planned(problem)
    other = next(n for n in range(len(problem.options)) if n != found.path[0])
    assert steady(problem, found, ()) is found
    assert steady(problem, found, (found.path[0],)) is found
    assert steady(problem, found, (6,) * 36) is found
    worse = (0 if other == 0 else other,) * 36
    assert steady(problem, found, worse, gain_factor=0.0, least_gain=0.0) is found
    kept = steady(problem, found, worse, least_gain=10.0)
    legal = evaluate(problem, worse).legal
    assert (kept.path == worse) == legal
    assert kept.bound_g == found.bound_g
