"""The service level by single stretches: where a path trains too little, the cheapest change first.

A path that is cheap at some price of a token is taken, and while a window is below the level the
stretch in it is changed that costs least for a token missed. Each token gained counts at the price
too, since it is worked off elsewhere. The lower the price that one begins with, the more of the
work is done by the lifted windows; a few prices are tried.

Invariant: whatever is found was judged legal by `wattmesh.policies.planner.evaluate`.
"""

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Floats
from wattmesh.policies.planner.evaluate import low_windows
from wattmesh.policies.planner.problem import Problem, Sla
from wattmesh.policies.planner.repair import Judge, changed, stretches
from wattmesh.policies.planner.route import Path, Route, stretched
from wattmesh.policies.planner.viterbi import sweep

PRICES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""Prices of a token that are begun with, as shares of the plan's without a level; best first."""

PATIENCE = 3
"""Prices in a row that may bring nothing better."""

MOST_CHANGES = 600
"""Changes after which a path is given up."""

LEAST = 1e-6
"""Share of a window's tokens that a change must gain, and that sums may be wrong by."""


def lift(problem: Problem, judge: Judge, arrays: Arrays, mu: float) -> None:
    """Let the judge see paths that keep the service level.

    Args:
        problem: with a level.
        judge: of the problem.
        arrays: of the problem, without prices of windows.
        mu: price of a token in the plan without a level.
    """
    if problem.sla is None:
        return
    sweeps = sweep(arrays, mu * np.array(PRICES))
    patience = PATIENCE
    for price, share in enumerate(PRICES):
        path = sweeps.path(price, arrays.slots)
        lifted = _Lift(problem, problem.sla, arrays, mu * share).run(path) if path else ()
        patience = PATIENCE if judge.take(lifted) else patience - 1
        if not patience:
            return


class _Lift:
    """Changes of one path after another."""

    def __init__(self, problem: Problem, sla: Sla, arrays: Arrays, mu: float) -> None:
        """Lay out what does not change."""
        self._problem, self._sla, self._arrays, self._mu = problem, sla, arrays, mu
        self._needed = sla.window_s * sla.tokens_per_s
        edges_s = arrays.edges_s
        past = np.array([*sla.before, (0.0, 0.0)])
        self._times = np.concatenate([past[:-1, 0], edges_s])
        self._past = past[:-1, 1]
        starts = np.concatenate([self._times, self._times - sla.window_s])
        starts = np.append(starts, max(sla.from_s, self._times[0]))
        known = (starts >= max(sla.from_s, self._times[0])) & (starts >= -sla.window_s)
        self._starts = np.unique(starts[known])

    def run(self, path: Path) -> Path:
        """Change `path` until every window is at the level; empty when that is not found."""
        path = stretched(path, self._arrays.slots)
        for _ in range(MOST_CHANGES):
            route = Route(self._arrays, path)
            window = self._lowest(route) or self._judged(path)
            if window is None:
                return path
            path = self._better(route, *window)
            if not path:
                return ()
        return ()

    def _lowest(self, route: Route) -> tuple[float, float] | None:
        """Give (start, tokens missing) of the worst window; None when all are at the level."""
        wanted, edges_s = self._arrays.wanted, self._arrays.edges_s
        done = int(np.searchsorted(route.tokens, wanted * (1 - 1e-9)))
        end_s = edges_s[min(done, len(edges_s) - 1)]
        starts = self._starts[self._starts + self._sla.window_s <= end_s]
        if not len(starts):
            return None
        sums = np.concatenate([self._past, route.tokens])
        got = self._by(sums, starts + self._sla.window_s) - self._by(sums, starts)
        worst = int(got.argmin())
        missing = float(self._needed - got[worst])
        return (float(starts[worst]), missing) if missing > LEAST * self._needed else None

    def _by(self, sums: Floats, at_s: Floats) -> Floats:
        """Give the tokens by some moments."""
        return np.asarray(np.interp(at_s, self._times, sums))

    def _judged(self, path: Path) -> tuple[float, float] | None:
        """Give the worst window second by second, for sums know no moment within a slot."""
        low = low_windows(self._problem, path)
        return (low[0][1], self._needed - low[0][0]) if low else None

    def _better(self, route: Route, start_s: float, missing: float) -> Path:
        """Change the stretch of a window that costs least for a token missed; empty: there is none.

        A change that gains too much counts as one that gains enough.
        """
        edges_s, kinds = self._arrays.edges_s, len(self._arrays.rates)
        begin = max(0, int(np.searchsorted(edges_s, start_s + LEAST)) - 1)
        end = int(np.searchsorted(edges_s, start_s + self._sla.window_s - LEAST))
        first, until, target = stretches(end - begin, kinds)
        first, until = first + begin, until + begin
        grams, tokens, legal = changed(self._arrays, route, first, until, target)
        gained = tokens - route.tokens[-1]
        able = legal & (gained > LEAST * self._needed)
        if not able.any():
            return ()
        first, until, target, gained = first[able], until[able], target[able], gained[able]
        cost = grams[able] - route.grams[-1] - self._mu * gained
        best = int(np.argmin(cost / np.minimum(gained, missing)))
        stretch = (int(target[best]),) * int(until[best] - first[best])
        path = route.listed
        return (*path[: first[best]], *stretch, *path[until[best] :])
