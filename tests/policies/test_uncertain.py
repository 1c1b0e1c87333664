"""Forecasts that are wrong: keeping to a plan, weighing scenarios, and who is to blame."""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from tests.policies.build import NOW
from tests.policies.planner_cases import HOUR, case, wave
from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.planner.cautious import cautious_g_per_kwh, plan_over, scenarios, weigh
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.plan import plan
from wattmesh.policies.planner.problem import NoPlan, Plan, Problem
from wattmesh.policies.planner.steady import steady

NOISE = 0.15


def planned(problem: Problem) -> Plan:
    """The plan of a problem that has one."""
    found = plan(problem)
    assert isinstance(found, Plan), found
    return found


def noisy(values: tuple[float, ...], seed: int) -> tuple[float, ...]:
    """The forecast of an hour: the first slot is known, the others are off."""
    rng = Random(seed)
    return (values[0], *(value * max(0.1, 1 + rng.gauss(0.0, NOISE)) for value in values[1:]))


def live_through(problem: Problem, *, steadily: bool) -> tuple[float, int]:
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
        found = plan(rest)
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


def forecast(low: float, high: float) -> tuple[IntensitySlot, ...]:
    """A day whose quantiles lie at these factors of it, but for the first hour."""
    return tuple(
        IntensitySlot(
            start=NOW + timedelta(hours=n),
            end=NOW + timedelta(hours=n + 1),
            g_per_kwh=value,
            low_g_per_kwh=value * low if n else None,
            high_g_per_kwh=value * high if n else None,
        )
        for n, value in enumerate(wave(24))
    )


def test_caution_moves_towards_the_quantiles_and_leaves_the_known_alone() -> None:
    """Kappa 1 is the upper quantile, -1 the lower one, 0 the forecast."""
    slots = forecast(0.8, 1.5)
    middle = wave(24)
    assert cautious_g_per_kwh(slots, 0.0) == middle
    assert cautious_g_per_kwh(slots, 1.0)[0] == middle[0]
    assert cautious_g_per_kwh(slots, 1.0)[5] == pytest.approx(1.5 * middle[5])
    assert cautious_g_per_kwh(slots, -0.5)[5] == pytest.approx(0.9 * middle[5])
    assert len(scenarios(slots)) == 3
    assert len(scenarios([replace(s, low_g_per_kwh=None, high_g_per_kwh=None) for s in slots])) == 1


def test_scenarios_that_agree_change_nothing() -> None:
    """With one grid the plan over scenarios is the plan."""
    problem = case(24, 1.5)
    both = plan_over(problem, [problem.g_per_kwh]), planned(problem)
    assert isinstance(both[0], Plan)
    assert both[0].evaluation.grams == pytest.approx(both[1].evaluation.grams, rel=2e-3)
    assert both[0].bound_g == both[1].bound_g


def test_the_first_step_is_the_one_that_is_best_on_average() -> None:
    """The means stand beside each other, and a start that no scenario can finish is left out."""
    problem = case(24, 1.5)
    grids = scenarios(forecast(0.6, 2.5))
    weighed = weigh(problem, grids, range(len(problem.options)))
    means = [each.mean_g for each in weighed]
    assert means == sorted(means)
    assert all(plan.path[0] == each.option for each in weighed for plan in each.plans)
    tight = case(24, 1.0)
    assert [each.option for each in weigh(tight, grids, range(7))] == [0]
    found = plan_over(problem, grids)
    assert isinstance(found, Plan)
    assert found.evaluation.legal
    staying = replace(problem, dwell_left_s=4 * HOUR)
    assert all(each.option < 3 for each in weigh(staying, grids, range(7)))
    assert isinstance(plan_over(replace(problem, tokens=1e15), grids), NoPlan)
