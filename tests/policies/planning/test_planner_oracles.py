"""The planner against slow ways to the best plan: its bound holds, its plan is near the best."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.peers import flow_program
from tests.policies.planning.planner_cases import HOUR, case, small_problems
from tests.policies.planning.planner_oracles import exact_dp, try_all
from wattmesh.policies.planner.arrays import arrays_of
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.prices import Search
from wattmesh.policies.planner.problem import NoPlan, OptionTransition, Plan, PlanningProblem, Sla
from wattmesh.policies.planner.solver import solve

ROUNDING = 1e-7


def planned(problem: PlanningProblem) -> Plan:
    """The plan of a problem that has one."""
    found = solve(problem)
    assert isinstance(found, Plan), found
    return found


@settings(max_examples=30)
@given(small_problems())
def test_no_path_beats_the_bound_and_none_is_missed(problem: PlanningProblem) -> None:
    """Trying every path finds nothing below the bound, and nothing where there is no plan."""
    best = try_all(problem)
    found = solve(problem)
    if isinstance(found, NoPlan):
        # A service level is searched for, not solved: only there may a legal path be overlooked.
        assert best is None or problem.sla is not None
        return
    assert best is not None
    assert found.bound_g <= best * (1 + ROUNDING)
    assert found.evaluation.grams >= best * (1 - ROUNDING)
    assert found.evaluation == evaluate(problem, found.path)
    assert found.evaluation.legal


@settings(max_examples=30)
@given(
    small_problems(),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([0.0, 60.0, 200.0, 400.0]),
    st.sampled_from([-60.0, 0.0, 70.0]),
)
def test_no_path_beats_the_bound_of_a_level_with_a_past(
    problem: PlanningProblem, least: float, trained: float, from_s: float
) -> None:
    """The same, with windows that began before the first slot, or that begin later."""
    sla = Sla(window_s=150.0, tokens_per_s=least, before=((-100.0, -trained),), from_s=from_s)
    problem = replace(problem, sla=sla)
    best, found = try_all(problem), solve(problem)
    if isinstance(found, NoPlan):
        return
    assert best is not None
    assert found.bound_g <= best * (1 + ROUNDING)
    assert found.evaluation.grams >= best * (1 - ROUNDING)
    assert found.evaluation.legal


@settings(max_examples=40)
@given(small_problems(plain=True))
def test_the_exact_recursion_agrees_with_trying_every_path(problem: PlanningProblem) -> None:
    """Two oracles that share no code give the same grams."""
    tried, kept = try_all(problem), exact_dp(problem)
    assert (tried is None) == (kept is None)
    assert tried is None or kept == pytest.approx(tried, rel=1e-6, abs=1e-12)


@settings(max_examples=20)
@given(small_problems(plain=True))
def test_integer_programming_agrees(problem: PlanningProblem) -> None:
    """HiGHS finds the same least grams, and its linear program bounds no better than ours.

    Where the work ends in the slot of a transition it may: it knows there that tokens come late.
    """
    best = try_all(problem)
    whole = flow_program(problem)
    assert (whole.grams is None) == (best is None)
    if best is None:
        return
    assert whole.grams == pytest.approx(best, rel=1e-5, abs=1e-9)
    bound_g, found = flow_program(problem, relaxed=True).bound_g, planned(problem)
    assert bound_g <= best * (1 + 1e-5)
    stayed = len(found.path) > 1 and found.path[-1] == found.path[-2]
    assert bound_g <= found.bound_g * (1 + 1e-5) or not stayed


def test_many_different_transitions_are_put_together_without_harm_to_the_bound() -> None:
    """Twelve pairs, each with its own seconds and dwell: more groups than are kept apart."""
    base = case(6, 1.5, seconds=600.0, grid=(300.0, 100.0, 250.0, 90.0, 280.0, 110.0))
    kept = (0, 2, 4, 6)
    kinds = tuple(base.options[each] for each in kept)
    ways = tuple(
        tuple(
            None
            if i == j
            else OptionTransition(
                seconds=100.0 * (4 * i + j), energy_j=2e7, dwell_s=300.0 * (i + j)
            )
            for j in range(4)
        )
        for i in range(4)
    )
    problem = replace(base, options=kinds, transitions=ways)
    best, found = try_all(problem), planned(problem)
    assert best is not None
    assert found.bound_g <= best * (1 + ROUNDING)
    assert found.evaluation.grams >= best * (1 - ROUNDING)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("slack", [1.1, 1.5, 2.0])
def test_a_day_is_planned_nearly_as_well_as_the_exact_recursion_does(
    slack: float, *, held: bool
) -> None:
    """24 hours, 7 options: bound <= best <= plan, and the plan within a percent of the best."""
    problem = case(24, slack, held=held)
    best = exact_dp(problem)
    found = planned(problem)
    assert best is not None
    assert found.bound_g <= best * (1 + ROUNDING)
    assert best * (1 - ROUNDING) <= found.evaluation.grams <= best * 1.01


def test_a_month_has_a_small_certified_gap() -> None:
    """720 hours with switch costs, GPUs released or held, and 4 h of dwell: at most 0.1 %."""
    for held in (False, True):
        assert planned(case(720, 1.5, held=held)).gap <= 1e-3
    assert planned(case(720, 2.0, dwell_s=4 * HOUR)).gap <= 1e-3


def test_a_recursion_that_counts_wrongly_would_be_caught() -> None:
    """Sabotaged twin: with 50 kg more for each switch the bound is above a legal plan's grams."""
    problem = case(24, 1.5)
    best = exact_dp(problem)
    arrays = arrays_of(problem)
    dearer = tuple(replace(ways, extra_g=ways.extra_g + 50_000) for ways in arrays.ways)
    honest, spoilt = Search(arrays), Search(replace(arrays, ways=dearer))
    honest.run()
    spoilt.run()
    assert best is not None
    assert honest.bound_g <= best < spoilt.bound_g
