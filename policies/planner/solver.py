"""Plans with few grams and a certificate: the price of a token, searched over the recursion.

For a price mu the recursion (`viterbi.py`) gives the least of `grams - mu * tokens` for every
border at which the work may end; with `mu * tokens wanted` added that is a lower bound for ending
there. The best prices are searched (`prices.py`), and the paths just below and just above them are
made into one legal plan (`repair.py`). docs/policies.md has the whole of it.

Invariant: `Plan.evaluation` comes from `evaluate.py`, which shares no code with the recursion, and
`Plan.bound_g` holds for every legal path, whichever prices were tried.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, arrays_of
from wattmesh.policies.planner.evaluate import ROUNDING
from wattmesh.policies.planner.prices import Search
from wattmesh.policies.planner.problem import Evaluation, NoPlan, Plan, PlanningProblem, merged
from wattmesh.policies.planner.repair import (
    PathCandidate,
    PathJudge,
    polish,
    splices,
    static_paths,
    take_best,
    whole,
)
from wattmesh.policies.planner.route import Path
from wattmesh.policies.planner.service_level import WindowPrices, repair_service_level
from wattmesh.policies.planner.viterbi import sweep
from wattmesh.quantities import count, duration, grams

MANY = 2000
"""Slots above which prices are searched in a merged problem first."""

FEW = 1000
"""Slots of that, about."""

NEAR = 1.1
"""A search that starts at a known price reaches this factor to either side first."""

NEARER = 1.03
"""The same when the price comes from the merged problem."""

LEVEL_ROUNDS = 24
"""Most times that a window below the service level is made dearer."""


class OtherRuns(Protocol):
    """What the other runs of a cluster leave of it, and ask for it (`policies/cluster`)."""

    def laid_out(self, arrays: Arrays, *, costs: bool) -> Arrays:
        """Close what there is no room for; with `costs` add prices."""
        ...

    def judged(self, path: Path, found: Evaluation) -> Evaluation:
        """Add the same to what following a path comes to."""
        ...


def solve(
    problem: PlanningProblem,
    *,
    also: Sequence[tuple[int, ...]] = (),
    near_mu: float | None = None,
    others: OtherRuns | None = None,
) -> Plan | NoPlan:
    """Plan the rest of a run.

    Args:
        problem: work, slots, options.
        also: paths to consider besides, such as the rest of the plan before.
        near_mu: price of the plan before, from which the search starts; None: none is known.
        others: None: the run has the cluster for itself. Else grams, bound and price are of its
            emissions and of what it pays for its share.

    Returns:
        A legal plan with its bound, or the reason why there is none.
    """
    judge = PathJudge(problem, others.judged if others else None)
    empty = arrays_of(problem, costs=False)
    most = _fastest(others.laid_out(empty, costs=False) if others else empty, judge)
    if most < problem.tokens * (1 - ROUNDING):
        return NoPlan(reason=_too_much(problem, most))
    arrays = arrays_of(problem)
    if others is not None:
        arrays = others.laid_out(arrays, costs=True)
    search = _search(problem, arrays, near_mu)
    bound_g, mu = search.bound_g, search.mu_g_per_token
    free = _repair(judge, arrays, search)
    for path in (*static_paths(problem), *also):
        take_best(judge, whole(arrays, path))
    if problem.sla is not None:
        bound_g = max(bound_g, _keep_level(problem, judge, arrays, free, mu))
    if judge.best is None:
        return NoPlan(reason=_no_legal_path(problem))
    polish(judge, arrays, bound_g)
    best = judge.best
    bound_g = max(0.0, min(bound_g, best.evaluation.grams))
    return Plan(
        path=best.path,
        evaluation=best.evaluation,
        mu_g_per_token=mu,
        bound_g=bound_g,
        budget=over_budget(problem, best.evaluation, bound_g),
    )


def _search(problem: PlanningProblem, arrays: Arrays, near_mu: float | None) -> Search:
    """Search the price; where slots are many, start from the price of a merged problem."""
    reach = NEAR
    if near_mu is None and arrays.slots > MANY:
        rough = Search(arrays_of(merged(problem, by=arrays.slots // FEW)))
        rough.run()
        near_mu, reach = rough.mu_g_per_token, NEARER
    search = Search(arrays, near=near_mu, reach=reach)
    search.run()
    return search


def _fastest(arrays: Arrays, judge: PathJudge) -> float:
    """Give the most tokens any path trains in time, and let the judge see the path."""
    fast = sweep(arrays, np.ones(1))
    border = int(np.argmin(fast.value[:, 0]))
    judge.take(fast.path(0, border))
    return max(0.0, -float(fast.value[border, 0]))


def _repair(judge: PathJudge, arrays: Arrays, search: Search) -> Path:
    """Turn the paths of the best prices into legal ones; give the one of the least estimate."""
    last, finals = search.finals()
    candidates: list[PathCandidate] = []
    for slot, around in finals:
        paths = [last.path(price, slot + 1) for price in around]
        known = list(dict.fromkeys(path for path in paths if path))
        for path in known:
            candidates += whole(arrays, path)
        if known:
            # Legal as it is, and enough: whatever becomes of the others.
            judge.take(known[-1])
        for low in known[:-1]:
            candidates += splices(arrays, low, known[-1]) + splices(arrays, known[-1], low)
    take_best(judge, candidates)
    return min(candidates, key=lambda each: each.estimate_g).path if candidates else judge.newest


def _keep_level(
    problem: PlanningProblem, judge: PathJudge, arrays: Arrays, path: Path, mu: float
) -> float:
    """Make tokens dearer where `path` is below the level, round by round; give the best bound."""
    prices, bound_g = WindowPrices(problem, mu), 0.0
    for _ in range(LEVEL_ROUNDS):
        if not prices.raise_low(path):
            break
        priced = prices.applied_to(arrays)
        search = Search(priced, owed_g=prices.owed_g(), near=mu)
        search.run()
        bound_g = max(bound_g, search.bound_g)
        path = _repair(judge, priced, search)
    repair_service_level(problem, judge, arrays, mu)
    return bound_g


def _too_much(problem: PlanningProblem, most: float) -> str:
    return (
        f"at most {count(most)} tokens can be trained until the deadline and "
        f"{count(problem.tokens)} are left"
    )


def _no_legal_path(problem: PlanningProblem) -> str:
    level = problem.sla
    if level is None:
        return "no path keeps the dwell, the caps and the deadline"
    return (
        f"no path was found that keeps {count(level.tokens_per_s)} tokens/s on average over every "
        f"{duration(level.window_s)} and the deadline"
    )


def over_budget(problem: PlanningProblem, found: Evaluation, bound_g: float) -> str:
    """Say what is wrong with the budget; "" when it is kept or there is none.

    Args:
        problem: says the budget, which counts operational grams alone.
        found: of the plan.
        bound_g: no legal path emits less, the grams of the hardware's making included.
    """
    budget_g, found_g = problem.budget_g, found.operational_g
    if budget_g is None or found_g <= budget_g:
        return ""
    dearest = max(each.embodied_g_per_s for each in problem.options)
    least_g = max(0.0, bound_g - dearest * sum(problem.seconds))
    if budget_g <= 0:
        return f"the budget is used up, and the rest of the work takes {grams(found_g)}"
    if least_g > budget_g:
        return (
            f"the budget of {grams(budget_g)} cannot be kept: the rest of the work takes at least "
            f"{grams(least_g)}"
        )
    return (
        f"the budget of {grams(budget_g)} is not kept: the best plan found takes {grams(found_g)}, "
        f"and none takes less than {grams(least_g)}"
    )
