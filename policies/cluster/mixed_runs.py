"""A bound and prices for very many runs: each may be at several points in one slot. Pure.

For prices of what is shared the runs come apart, and one that may mix its points and switches for
nothing is planned by sorting: of all steps from a point to the next faster one, in all slots, those
come first that cost least for a token. Runs with the same options share that order, so a thousand
of them are planned in hundredths of a second. Prices rise where they take more than there is.

Invariant: `MixedRuns.bound_g` is no more than the grams of any legal plans within the limits,
whatever the prices: switches only cost, a mix is never worse, and a run may be done at any moment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Bools, Floats, Ints
from wattmesh.policies.planner.problem import PlanningProblem
from wattmesh.telemetry.readings import J_PER_KWH

STEPS = 150
"""Most times that prices are changed."""

STALE = 8
"""Steps without a better bound after which the next ones aim lower."""

NEAR = 1e-4
"""Share of the bound below which aiming for more is not worth a step."""

FIRST_AIM = 0.05
"""Share of the first bound by which prices are expected to raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRuns:
    """What mixed runs come to.

    Attributes:
        bound_g: see above. `prices`: (T, R) grams for what is shared, at which it was found.
        undone: runs that cannot be done in time even so.
    """

    bound_g: float
    prices: Floats
    undone: tuple[str, ...] = ()


class _Alike:
    """Runs with the same options and the same slots, but for how many they have."""

    def __init__(self, shares: Sequence[RunShare], seconds: Floats, g_per_j: Floats) -> None:
        """Lay out what prices do not change."""
        problem, staying = shares[0].problem, shares[0].staying
        rates = np.array([each.tokens_per_s for each in problem.options])
        power_w = np.array([each.power_w for each in problem.options])
        drawn_w = _least_on_the_way(problem)
        if drawn_w < power_w.min():
            rates, power_w = np.append(rates, 0.0), np.append(power_w, drawn_w)
            staying = np.vstack([staying, staying.min(axis=0)])
        # The last option is to be gone: nothing trained, paid or taken.
        self.staying = np.vstack([staying, np.zeros_like(staying[:1])])
        self._tokens = seconds[:, None] * rates
        self._grams = (seconds * g_per_j)[:, None] * power_w
        self._slots = np.array([len(each.problem.seconds) for each in shares])
        self._wanted = np.array([each.problem.tokens for each in shares])
        self.names = [each.name for each in shares]

    def take(self, prices: Floats, taken: Floats) -> tuple[float, Ints]:
        """Plan all; add what they take to `taken`, give what they pay and who is not done."""
        steps = _Steps(self._tokens, self._grams + prices @ self.staying[:-1].T)
        costs, places = steps.costs(self._wanted, self._slots)
        best = costs.argmin(axis=0)
        paid = costs[best, np.arange(len(best))]
        undone = np.flatnonzero(~np.isfinite(paid))
        for border in np.unique(best[np.isfinite(paid)]):
            mine = np.flatnonzero((best == border) & np.isfinite(paid))
            weights = steps.weights(border, self._wanted[mine], places[border, mine])
            self._add(steps, int(border), weights, len(mine), taken)
        return float(paid[np.isfinite(paid)].sum()), undone

    def _add(self, steps: "_Steps", border: int, weights: Floats, runs: int, taken: Floats) -> None:
        taken[:border] += runs * self.staying[steps.base[:border]]
        more = self.staying[steps.target] - self.staying[steps.origin]
        there = steps.present(border)
        np.add.at(taken, steps.slot[there], weights[there, None] * more[there])


class _Steps:
    """Every step from an option to the next faster one of its slot, the cheapest tokens first.

    A run that is done in a slot was at some option in all slots before, and is gone from some
    moment of that slot on: there its first step is from being gone.
    """

    def __init__(self, tokens: Floats, costs: Floats) -> None:
        """Find the lower hull of each slot's options, all slots at once."""
        count = len(tokens)
        self.base, staying = _hull(tokens, costs)
        none = np.zeros((count, 1))
        _, ending = _hull(np.hstack([tokens, none]), np.hstack([costs, none]))
        parts = [np.concatenate(each) for each in zip(staying, ending, strict=True)]
        last = np.arange(len(parts[0])) >= len(staying[0])
        slope = parts[4] / np.where(parts[3] > 0, parts[3], 1.0)
        order = np.argsort(slope, kind="stable")
        self.slot, self.origin, self.target, self._tokens, self._cost = (
            each[order] for each in parts
        )
        self._slope, self._ending = slope[order], last[order]
        rows = np.arange(count)
        self._base_tokens = _before(tokens[rows, self.base])
        self._base_cost = _before(costs[rows, self.base])
        present = np.array([self.present(border) for border in range(count)])
        self._sum_tokens = np.cumsum(np.where(present, self._tokens, 0.0), axis=1)
        self._sum_cost = np.cumsum(np.where(present, self._cost, 0.0), axis=1)

    def present(self, border: int) -> Bools:
        """Say which steps a run can take that is done in a slot."""
        return np.where(self._ending, self.slot == border, self.slot < border)

    def costs(self, wanted: Floats, slots: Ints) -> tuple[Floats, Ints]:
        """Give (T, N): what each run pays that is done in each slot, and how many steps it takes.

        Infinite where it cannot be done in that slot, or has no such slot.
        """
        count, places = (
            len(self._base_cost),
            np.zeros((len(self._base_cost), len(wanted)), np.int64),
        )
        paid = np.full((count, len(wanted)), np.inf)
        for border in range(count):
            there = slots > border
            left = wanted[there] - self._base_tokens[border]
            sums = self._sum_tokens[border]
            place = np.searchsorted(sums, left)
            able = (left <= 0) | (place < len(sums))
            cost = np.full(len(left), self._base_cost[border])
            step = np.minimum(place, max(0, len(sums) - 1))
            if len(sums):
                over = (left > 0) & able
                missing = sums[step] - left
                cost = np.where(
                    over, cost + self._sum_cost[border, step] - missing * self._slope[step], cost
                )
            places[border, there] = np.where(left > 0, place, -1)
            paid[border, there] = np.where(able, cost, np.inf)
        return paid, places

    def weights(self, border: int, wanted: Floats, places: Ints) -> Floats:
        """Give (M,): how many runs take each step, of those that are done in one slot."""
        weights = np.zeros(len(self.slot))
        on = places >= 0
        if not on.any():
            return weights
        last = places[on]
        counts = np.bincount(last, minlength=len(weights))
        weights[:] = counts[::-1].cumsum()[::-1]
        left = wanted[on] - self._base_tokens[border]
        part = (self._sum_tokens[border, last] - left) / np.maximum(self._tokens[last], 1e-300)
        np.subtract.at(weights, last, np.clip(part, 0.0, 1.0))
        return weights


def _before(values: Floats) -> Floats:
    """Sum what comes before each slot."""
    return np.concatenate([[0.0], np.cumsum(values)[:-1]])


def _hull(tokens: Floats, costs: Floats) -> tuple[Ints, tuple[Any, ...]]:
    """Give each slot's cheapest option, and the steps up from it along the lower hull.

    A step is in five arrays: its slot, from which option, to which, tokens and cost.
    """
    count, kinds = tokens.shape
    rows = np.arange(count)
    at = base = np.lexsort((-tokens, costs), axis=1)[:, 0]
    found: list[tuple[Any, ...]] = [(rows[:0], at[:0], at[:0], tokens[:0, 0], costs[:0, 0])]
    for _ in range(kinds - 1):
        more = tokens - tokens[rows, at][:, None]
        dearer = costs - costs[rows, at][:, None]
        slopes = np.where(more > 0, dearer / np.where(more > 0, more, 1.0), np.inf)
        to = np.lexsort((-tokens, slopes), axis=1)[:, 0]
        on = np.isfinite(slopes[rows, to])
        if not on.any():
            break
        here = rows[on]
        found.append((here, at[on], to[on], more[here, to[on]], dearer[here, to[on]]))
        at = np.where(on, to, at)
    return base, tuple(np.concatenate(each) for each in zip(*found, strict=True))


def mixed_runs(
    shares: Sequence[RunShare],
    limit: Floats,
    seconds: Sequence[float],
    g_per_kwh: Sequence[float],
    *,
    more: Callable[[], bool] = lambda: True,
) -> MixedRuns:
    """Search the prices of what is shared.

    Args:
        shares: of each run; each begins in the first slot. Those of runs with the same options are
            laid out once when they are next to each other.
        limit: (T, R) what there is.
        seconds: of each slot.
        g_per_kwh: of each slot.
        more: asked before each step: whether there is time for it.
    """
    length, g_per_j = np.array(seconds), np.array(g_per_kwh) / J_PER_KWH
    groups = [_Alike(each, length, g_per_j) for each in _grouped(shares)]
    unit = (length * np.maximum(g_per_j, 1e-12))[:, None] / _weight(shares)
    prices = np.zeros_like(limit)
    best_g, best, aim, stale, steps = -np.inf, prices, FIRST_AIM, 0, 0
    undone: tuple[str, ...] = ()
    while True:
        paid, taken = 0.0, np.zeros_like(limit)
        undone = ()
        for group in groups:
            grams, late = group.take(prices, taken)
            paid += grams
            undone += tuple(group.names[n] for n in late)
        bound_g = paid - float(np.sum(prices * limit))
        if bound_g > best_g + NEAR * abs(best_g) * 0.1:
            best_g, best, stale = bound_g, prices, 0
        else:
            best_g, best = max(best_g, bound_g), prices if bound_g > best_g else best
            stale += 1
        if stale >= STALE:
            aim, stale, prices = aim / 2, 0, best
        rise = (taken - limit) * unit
        rise = np.where((prices > 0) | (rise > 0), rise, 0.0)
        norm = float(np.sum(rise * rise))
        if steps >= STEPS or aim < NEAR or norm <= 0 or undone or not more():
            break
        steps += 1
        goal_g = best_g + aim * max(abs(best_g), 1e-9)
        prices = np.maximum(0.0, prices + (goal_g - bound_g) / norm * unit * rise)
    return MixedRuns(bound_g=max(0.0, best_g), prices=best, undone=undone)


def _weight(shares: Sequence[RunShare]) -> Floats:
    """Give (R,): how much of each kind goes with a watt, so that prices are of one size."""
    most = np.max([each.staying.max(axis=0) for each in shares], axis=0)
    power_w = max(option.power_w for each in shares for option in each.problem.options)
    return np.asarray(np.maximum(most, 1e-9) / max(power_w, 1e-9))


def _grouped(shares: Sequence[RunShare]) -> list[list[RunShare]]:
    """Put runs with the same options together; the very same objects, as a question has them."""
    found: dict[tuple[int, bytes], list[RunShare]] = {}
    for each in shares:
        found.setdefault((id(each.problem.options), each.staying.tobytes()), []).append(each)
    return list(found.values())


def _least_on_the_way(problem: PlanningProblem) -> float:
    """Give the least watts of any transition that takes time."""
    ways = [way for row in problem.transitions for way in row if way is not None and way.seconds]
    return min((way.energy_j / way.seconds for way in ways), default=np.inf)
