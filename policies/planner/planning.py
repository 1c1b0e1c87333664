"""Answer the question for a plan, starting from the plan before. Imports numpy.

A worker process and replay call it; the daemon itself only asks (`mpc.py`) and reads the answer.

Invariant: the same question and plan before give the same answer. A service level that leaves no
plan is given up, and the answer says so, before the deadline or a cap is. Where idle GPUs draw
power, no plan is followed that the best single point beats at an edge of the forecast band.
"""

import math
from dataclasses import replace

from wattmesh.policies.decision import PlanView
from wattmesh.policies.planner.evaluate import evaluate, joules_by_slot
from wattmesh.policies.planner.mpc import Question, answer, rest
from wattmesh.policies.planner.problem import NoPlan, Plan, PlanningProblem
from wattmesh.policies.planner.repair import static_paths
from wattmesh.policies.planner.solver import over_budget, solve
from wattmesh.policies.planner.steady import steady
from wattmesh.telemetry.readings import J_PER_KWH

Path = tuple[int, ...]
Grid = tuple[float, ...]


def answered(asked: Question, before: PlanView | None = None) -> PlanView | NoPlan:
    """Plan the rest of a run.

    Args:
        asked: the question.
        before: the plan before, kept unless the new one saves enough; None: there is none.

    Returns:
        The plan; else why no plan does the work in time, and the guard then decides.
    """
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
    return answer(asked, _robust(asked, problem, steady(problem, found, path)), level=level)


def _robust(asked: Question, problem: PlanningProblem, found: Plan) -> Plan:
    """Give the plan, or the point of the fewest joules where that may turn out the better one."""
    if not asked.band_g_per_kwh:
        return found
    alone = [(evaluate(problem, path), path) for path in static_paths(problem)]
    legal = [each for each in alone if each[0].legal]
    if not legal:
        return found
    evaluation, path = min(legal, key=lambda each: (each[0].energy_j, each[0].grams))
    embodied_g = found.evaluation.embodied_g - evaluation.embodied_g
    if embodied_g + _most_more_g(problem, found.path, path, asked.band_g_per_kwh) < 0.0:
        return found
    budget = over_budget(problem, evaluation, found.bound_g)
    return replace(found, path=path, evaluation=evaluation, budget=budget)


def _most_more_g(
    problem: PlanningProblem, path: Path, other: Path, band_g_per_kwh: tuple[Grid, ...]
) -> float:
    """Grams by which `path` is above `other` on that grid inside the band where it is so most.

    Hours in which it draws more are then as dirty as the band allows, the others as clean.
    """
    mine, its = joules_by_slot(problem, path), joules_by_slot(problem, other)
    more_j = [here - there for here, there in zip(mine, its, strict=True)]
    return math.fsum(
        max(joules * g_per_kwh for g_per_kwh in hour) / J_PER_KWH
        for joules, *hour in zip(more_j, *band_g_per_kwh, strict=True)
    )


def _plan(problem: PlanningProblem, path: tuple[int, ...], near_mu: float | None) -> Plan | NoPlan:
    """Solve, with the rest of the plan before among the candidates."""
    return solve(problem, also=(path,) if path else (), near_mu=near_mu)


def _because_capped(problem: PlanningProblem, none: NoPlan) -> NoPlan:
    """Add to the reason that only the power cap leaves no plan, where that is so."""
    if not problem.power_cap_w or isinstance(solve(replace(problem, power_cap_w=())), NoPlan):
        return none
    return replace(none, reason=f"under the power cap {none.reason}")
