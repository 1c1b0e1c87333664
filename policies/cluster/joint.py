"""The joint plan: prices of GPUs and watts, a bound, and one whole plan for each run. Pure.

Give every GPU and every watt of a slot a price, and the runs come apart: each plans alone, and
pays. For any prices, what they pay in all, less the price of all there is, is at most the grams of
the best joint plan (weak duality). The plans found are mixed by a linear program, whose dual
values are the next prices, until the mix is no better than the bound. Then one plan of each run is
taken, and one run after the other planned anew in the room that the others leave it, while that
saves grams.

Invariant: `JointPlan.bound_g` holds for every set of legal plans within the limits, however early
the search stops; the plans are legal, and within the limits in every slot.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.cluster.master import MixedPlans, PlanPool
from wattmesh.policies.cluster.pricing import FULL, PlanColumn, PricedPlan, priced
from wattmesh.policies.cluster.relaxation import first_prices
from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Floats
from wattmesh.policies.planner.problem import NoPlan

ROUNDS = 30
"""Most times that all runs are asked for their plans."""

NEAR = 2e-4
"""The mix is good enough when no joint plan can be better by this share."""

INWARD = (0.3, 0.6, 0.95)
"""How far the next prices stay at those of the best bound: least, first, most.

Dual values alone swing from round to round.
"""

STEP = 0.1
"""How much further they stay after a round without a better bound, or go after one with."""

NODES = 2000
"""Most nodes of the whole-number program."""

FEW = 4
"""Most times that runs are asked again after one of them was fixed."""

FINALISTS = 3
"""Joint plans whose runs are planned anew."""

PASSES = 6
"""Most times that all runs are planned anew in the room left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """Plans of all runs.

    Attributes:
        columns: by run.
        grams: of all plans, above those of idle GPUs.
        bound_g: no joint plan emits less.
        prices: (T, R) grams for a GPU, or a watt, in a slot.
        own_bound_g: what each run pays at least at these prices, its grams included.
    """

    columns: Mapping[str, PlanColumn]
    grams: float
    bound_g: float
    prices: Floats
    own_bound_g: Mapping[str, float]

    @property
    def gap(self) -> float:
        """Most that a better joint plan could save, as a share of the bound."""
        return max(0.0, self.grams - self.bound_g) / self.bound_g if self.bound_g > 0 else 0.0


class _Generation:
    """Column generation over the runs' own planners."""

    def __init__(
        self, shares: Sequence[RunShare], limit: Floats, prices: Floats, pool: PlanPool
    ) -> None:
        """Start at prices, with plans."""
        self._shares, self._limit = shares, limit
        self._mu: dict[str, float | None] = dict.fromkeys(each.name for each in shares)
        self.pool, self.prices, self.bound_g = pool, prices, 0.0
        self._bound_of_prices = -np.inf
        self.own_bound_g: dict[str, float] = {}
        self.mixed: MixedPlans | None = None

    def run(self, rounds: int) -> NoPlan | None:
        """Ask all runs until the mix is good; give why a run has no plan at all."""
        at, (least, weight, most) = self.prices, INWARD
        for _ in range(rounds):
            before_g = self.bound_g
            fault, new = self._ask(at)
            if fault is not None:
                return fault
            mixed = self.pool.mixed()
            if mixed is None:
                # What was found so far stands: the bound holds, and there are plans to choose from.
                return None
            self.mixed = mixed
            if mixed.grams - self.bound_g <= NEAR * abs(mixed.grams) and not mixed.undone:
                return None
            better = self.bound_g > before_g
            weight = max(least, weight - STEP) if better else min(most, weight + STEP)
            kept = weight if new else 0.0
            nearer = kept * self.prices + (1 - kept) * mixed.prices
            if not new and np.allclose(nearer, at, rtol=1e-9, atol=1e-15):
                return None
            at = nearer
        return None

    def _ask(self, prices: Floats) -> tuple[NoPlan | None, bool]:
        """Ask each run for its plan at these prices; say whether one was new."""
        own_g, new = dict[str, float](), False
        for each in self._shares:
            found = priced(each, prices=prices, room=self._limit, near_mu=self._mu[each.name])
            if isinstance(found, NoPlan):
                return NoPlan(reason=f"{each.name}: {found.reason}"), False
            self._mu[each.name] = found.mu_g_per_token
            own_g[each.name] = found.bound_g
            new |= self.pool.add(found.column)
        bound_g = sum(own_g.values()) - float(np.sum(prices * self._limit))
        if bound_g > self._bound_of_prices:
            self._bound_of_prices, self.prices, self.own_bound_g = bound_g, prices, own_g
        self.bound_g = max(self.bound_g, bound_g)
        return None, new


def plan_together(
    shares: Sequence[RunShare],
    limit: Floats,
    *,
    known: Sequence[Mapping[str, PlanColumn]] = (),
    rounds: int = ROUNDS,
) -> JointPlan | NoPlan:
    """Plan all runs together.

    Args:
        shares: of each run, those first whose wish counts first where plans are made anew.
        limit: (T, R) what there is.
        known: joint plans within the limits, such as those of a simpler rule.
        rounds: most times that all runs are asked for their plans.

    Returns:
        A joint plan with its bound, or why none was found.
    """
    if not shares:
        nothing = np.zeros_like(limit)
        return JointPlan(
            columns={},
            grams=0.0,
            bound_g=0.0,
            prices=nothing,
            own_bound_g={},
        )
    prices = first_prices(shares, limit)
    pool = PlanPool([each.name for each in shares], limit)
    found = _Generation(shares, limit, prices, pool)
    starts = [dict(each) for each in known]
    starts += _in_turn(shares, limit, prices)
    starts += _in_turn(tuple(reversed(shares)), limit, prices)
    for each in starts:
        for one in each.values():
            pool.add(one)
    fault = found.run(rounds)
    if fault is not None:
        return fault
    whole = pool.whole(nodes=NODES)
    if whole is not None:
        starts.append(dict(whole))
    starts += _in_turn(shares, limit, found.prices)
    starts += _fixed_in_turn(shares, limit, found)
    fitting = sorted((each for each in starts if _fits(each, limit)), key=_grams)
    better = [_anew(shares, limit, each) for each in fitting[:FINALISTS]]
    if not better:
        return NoPlan(reason="no plans were found that fit beside each other")
    best = min(better, key=_grams)
    return JointPlan(
        columns=best,
        grams=_grams(best),
        bound_g=min(found.bound_g, _grams(best)),
        prices=found.prices,
        own_bound_g=found.own_bound_g,
    )


def bound_together(
    shares: Sequence[RunShare],
    limit: Floats,
    *,
    known: Sequence[PlanColumn],
    rounds: int = ROUNDS,
) -> float | None:
    """Give grams, above those of idle GPUs, that no joint plan is below; None: a run has no plan.

    Args:
        shares: of each run.
        limit: (T, R) what there is.
        known: plans from which the search starts, at least one of each run.
        rounds: most times that all runs are asked for their plans.
    """
    prices = first_prices(shares, limit)
    pool = PlanPool([each.name for each in shares], limit)
    for one in known:
        pool.add(one)
    found = _Generation(shares, limit, prices, pool)
    return found.bound_g if found.run(rounds) is None else None


def _in_turn(
    shares: Sequence[RunShare], limit: Floats, prices: Floats
) -> list[dict[str, PlanColumn]]:
    """Plan one run after the other, each at the prices and in the room that is left."""
    room, taken = limit.copy(), dict[str, PlanColumn]()
    for each in shares:
        found = priced(each, prices=prices, room=room)
        if isinstance(found, NoPlan):
            return []
        taken[each.name] = found.column
        room -= found.column.spread(len(limit))
    return [taken]


def _fixed_in_turn(
    shares: Sequence[RunShare], limit: Floats, found: _Generation
) -> list[dict[str, PlanColumn]]:
    """Fix the plan that is most of its run's mix, ask the others anew, and so on."""
    taken, left, room = dict[str, PlanColumn](), list(shares), limit
    prices, pool, mixed = found.prices, found.pool, found.mixed
    while left:
        if mixed is None or mixed.heaviest is None:
            return []
        column = mixed.heaviest
        taken[column.run] = column
        room = np.maximum(0.0, room - column.spread(len(limit)))
        left = [each for each in left if each.name != column.run]
        pool = pool.after(column, room)
        again = _Generation(left, room, prices, pool)
        if left and again.run(FEW) is not None:
            return []
        prices, mixed = again.prices, again.mixed
    return [taken]


def _anew(
    shares: Sequence[RunShare], limit: Floats, columns: Mapping[str, PlanColumn]
) -> dict[str, PlanColumn]:
    """Plan each run anew in the room that the others leave, while that saves grams."""
    now = dict(columns)
    room = limit - sum(each.spread(len(limit)) for each in now.values())
    for _ in range(PASSES):
        before = _grams(now)
        for share in shares:
            mine = now[share.name]
            free = room + mine.spread(len(limit))
            found = priced(share, room=free, also=(mine.path,))
            if isinstance(found, PricedPlan) and found.column.grams < mine.grams * (1 - 1e-9):
                now[share.name] = found.column
                room = free - found.column.spread(len(limit))
        if _grams(now) >= before * (1 - 1e-7):
            break
    return now


def _fits(columns: Mapping[str, PlanColumn], limit: Floats) -> bool:
    taken = sum(each.spread(len(limit)) for each in columns.values())
    return bool((taken <= limit * (1 + FULL) + FULL).all())


def _grams(columns: Mapping[str, PlanColumn]) -> float:
    return sum(each.grams for each in columns.values())
