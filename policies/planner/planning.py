"""Answer the question for a plan: the planner, warm from the plan before. Imports numpy.

For a worker process and for replay; the daemon itself only asks (`mpc.py`) and reads the answer.
Invariant: the same question and plan before give the same answer; a service level that leaves no
plan is given up, and said to be, before the deadline or a cap is; where idle GPUs draw power no
plan is followed that the best single point might better; what a plan comes to, and its bound, are
reckoned under the forecast itself, whatever caution it was made with.
"""

from dataclasses import dataclass, replace

from wattmesh.policies.decision import PlanView
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.mpc import Question, answer, rest
from wattmesh.policies.planner.problem import NoPlan, Plan, Problem
from wattmesh.policies.planner.repair import static_paths
from wattmesh.policies.planner.solver import over_budget, solve
from wattmesh.policies.planner.steady import steady


def solved(asked: Question, before: PlanView | None = None) -> PlanView | NoPlan:
    """Plan the rest of a run, and say what that comes to under the forecast."""
    found = _followed(asked, before)
    if isinstance(found, NoPlan):
        return found
    return answer(asked, _foreseen(asked, found.plan), level=found.level)


def answered(asked: Question, before: PlanView | None = None) -> PlanView | None:
    """Plan the rest of a run; None when no plan does the work in time: the guard then decides.

    Its grams and its bound are those of the cautious grid: for whoever only follows it.
    """
    found = _followed(asked, before)
    return None if isinstance(found, NoPlan) else answer(asked, found.plan, level=found.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Followed:
    """A plan to follow. `level`: what is not kept of the service level, as a clause."""

    plan: Plan
    level: str


def _followed(asked: Question, before: PlanView | None) -> _Followed | NoPlan:
    """Plan the rest of a run, keeping to the plan before unless the new one is worth it."""
    path = rest(before, asked) if before else ()
    near_mu = before.price_mu if before else None
    problem, level = asked.problem, ""
    found = _plan(problem, path, near_mu)
    if isinstance(found, NoPlan) and problem.sla is not None:
        level = f"{found.reason}, so the plan does without that level"
        problem = replace(problem, sla=None)
        found = _plan(problem, path, near_mu)
    if isinstance(found, NoPlan):
        return _because_capped(problem, found)
    return _Followed(plan=_surely(asked, problem, steady(problem, found, path)), level=level)


def _surely(asked: Question, problem: Problem, found: Plan) -> Plan:
    """Stay at the best single point unless the plan betters it however the hours ahead turn out."""
    if not asked.doubted_g_per_kwh:
        return found
    alone = [(evaluate(problem, path), path) for path in static_paths(problem)]
    legal = [each for each in alone if each[0].legal]
    if not legal:
        return found
    evaluation, path = min(legal, key=lambda each: each[0].charged_g)
    for grid in asked.doubted_g_per_kwh:
        other = replace(problem, g_per_kwh=grid)
        if evaluate(other, found.path).charged_g >= evaluate(other, path).charged_g:
            budget = over_budget(problem, evaluation, found.bound_g)
            return replace(found, path=path, evaluation=evaluation, budget=budget)
    return found


def _foreseen(asked: Question, followed: Plan) -> Plan:
    """Say what a plan comes to under the forecast itself, and the bound of all plans there."""
    if asked.foreseen_g_per_kwh == asked.problem.g_per_kwh:
        return followed
    problem = replace(asked.problem, g_per_kwh=asked.foreseen_g_per_kwh, sla=None)
    best = _plan(problem, followed.path, followed.mu_g_per_token)
    if isinstance(best, NoPlan):
        return followed
    evaluation = evaluate(problem, followed.path)
    bound_g = min(best.bound_g, evaluation.charged_g)
    return replace(
        followed,
        evaluation=evaluation,
        bound_g=bound_g,
        budget=over_budget(problem, evaluation, bound_g),
    )


def _plan(problem: Problem, path: tuple[int, ...], near_mu: float | None) -> Plan | NoPlan:
    """Plan with the rest of the plan before among the candidates."""
    return solve(problem, also=(path,) if path else (), near_mu=near_mu)


def _because_capped(problem: Problem, none: NoPlan) -> NoPlan:
    """Say so where it is the operator's power cap that leaves no plan."""
    if not problem.power_cap_w or isinstance(solve(replace(problem, power_cap_w=())), NoPlan):
        return none
    return replace(none, reason=f"under the operator's power cap {none.reason}")
