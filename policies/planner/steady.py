"""When the plan before is kept: its rest is followed unless the new plan saves enough more.

Every hour brings a forecast with other noise, and the best plan for each differs a little from the
one before: following each would switch for nothing.

Invariant: the plan that is kept is legal under the new forecast, and its gap says what keeping it
may cost at most.
"""

from dataclasses import replace

from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import Plan, PlanningProblem
from wattmesh.policies.planner.solver import over_budget
from wattmesh.telemetry.readings import J_PER_KWH

GAIN_FACTOR = 2.0
"""A new plan must save this many times the grams of the change it asks for now."""

LEAST_GAIN = 5e-4
"""Share of the grams left that a new plan must save at least."""


def steady(
    problem: PlanningProblem,
    found: Plan,
    before: tuple[int, ...],
    *,
    gain_factor: float = GAIN_FACTOR,
    least_gain: float = LEAST_GAIN,
) -> Plan:
    """Give the plan to follow: the rest of the one before, or the new one.

    Args:
        problem: as it is now.
        found: its plan.
        before: what is left of the path planned before, for the slots of `problem`; empty: none.
            A path that ends too early goes on at its last option.
        gain_factor: times the grams of the first transition that the new plan must save.
        least_gain: share of the grams left that it must save.

    Returns:
        `found` when both begin with the same option, when the old path is not legal any more, when
        it alone breaks the budget or when the new one saves enough; else the old path, with the
        bound of the new plan.
    """
    if not before or before[0] == found.path[0]:
        return found
    rest = before[: len(problem.seconds)]
    rest += (rest[-1],) * (len(problem.seconds) - len(rest))
    kept = evaluate(problem, rest)
    budget = over_budget(problem, kept, found.bound_g)
    if not kept.legal or (budget and not found.budget):
        return found
    saved_g = kept.grams - found.evaluation.grams
    needed_g = max(
        gain_factor * _first_change_g(problem, found, rest[0]),
        least_gain * found.evaluation.grams,
    )
    if saved_g > needed_g:
        return found
    return replace(found, path=rest, evaluation=kept, budget=budget)


def _first_change_g(problem: PlanningProblem, found: Plan, otherwise: int) -> float:
    """Give the grams of the transition that the new plan asks for now, or that it puts off.

    Its joules, and the tokens not trained at the price of the plan, less what staying would draw.
    """
    target = found.path[0] if found.path[0] != problem.start else otherwise
    way = problem.way(problem.start, target) if target != problem.start else None
    if way is None:
        return 0.0
    here, g_per_j = problem.options[problem.start], problem.g_per_kwh[0] / J_PER_KWH
    lost_g = found.mu_g_per_token * here.tokens_per_s * way.seconds
    saved_g = g_per_j * here.power_w * way.seconds
    return g_per_j * way.energy_j + max(0.0, lost_g - saved_g)
