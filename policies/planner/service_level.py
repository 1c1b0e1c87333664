"""The service level: a least average throughput over every window, kept by prices and by repair.

The level is one more constraint with a price of its own for each window (nu >= 0). `WindowPrices`
follows a path, finds the windows below the level, and raises their prices until the level is kept.
A window is widened to whole slots: the tokens that it must have are trained in the wider one too.

`repair_service_level` starts from a path that is cheap at some price of a token. While a window is
below the level, it changes the stretch of slots in that window which costs least for each missing
token. A gained token counts at the price of a token, since it need not be trained elsewhere. The
lower the price of the first path, the more of the work the repaired windows do, so a few prices
are tried.

Invariant: whatever the window prices, the bound of the problem priced with them holds for every
path that keeps the level: a window adds `nu * tokens wanted` only where the work ends after it.
Every repaired path was judged legal by `wattmesh.policies.planner.evaluate`.
"""

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Floats, with_token_prices
from wattmesh.policies.planner.evaluate import ROUNDING, low_windows
from wattmesh.policies.planner.problem import PlanningProblem, Sla
from wattmesh.policies.planner.repair import PathJudge, changed, stretches
from wattmesh.policies.planner.route import Path, Route, stretched
from wattmesh.policies.planner.viterbi import sweep

FIRST_PRICE = 0.25
"""First price of a window, as a share of mu."""

PRICE_FACTOR = 2.0
"""Factor by which the price of a window rises that is still below the level."""

PRICES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)
"""Prices of a token that are begun with, as shares of the plan's without a level; best first."""

PATIENCE = 3
"""Prices in a row that may bring nothing better."""

MOST_CHANGES = 600
"""Changes after which a path is given up."""

LEAST = 1e-6
"""Share of a window's tokens that a change must gain, and that sums may be wrong by."""


class WindowPrices:
    """A price, in grams per token, for each window that some path left below the level."""

    def __init__(self, problem: PlanningProblem, mu_g_per_token: float) -> None:
        """Start with none."""
        self._problem = problem
        self._edges_s = np.concatenate([[0.0], np.cumsum(problem.seconds)])
        self._first = FIRST_PRICE * mu_g_per_token
        self._nu: dict[tuple[int, int], float] = {}
        self._needed: dict[tuple[int, int], float] = {}

    def raise_low(self, path: tuple[int, ...]) -> bool:
        """Raise the price of the worst windows of `path` that do not overlap; False: none low."""
        sla = self._problem.sla
        if sla is None:
            return False
        raised: list[tuple[int, int]] = []
        for _, start in low_windows(self._problem, path):
            window = self._slots(start, start + sla.window_s)
            if all(window[1] <= first or last <= window[0] for first, last in raised):
                raised.append(window)
                self._nu[window] = self._nu.get(window, self._first / PRICE_FACTOR) * PRICE_FACTOR
                needed = max(self._needed.get(window, 0.0), self._tokens_wanted(sla, start))
                self._needed[window] = needed
        return bool(raised)

    def applied_to(self, arrays: Arrays) -> Arrays:
        """Give the problem in which a token trained inside a window saves its price too."""
        g_per_token = np.zeros(arrays.slots)
        for (first, last), nu in self._nu.items():
            g_per_token[first:last] += nu
        return with_token_prices(arrays, g_per_token)

    def owed_g(self) -> Floats:
        """Give (T,): what the windows that are over before each slot add to the bound."""
        owed = np.zeros(len(self._problem.seconds))
        for (first, last), nu in self._nu.items():
            owed[last:] += nu * self._needed[first, last]
        return owed

    def _tokens_wanted(self, sla: Sla, start_s: float) -> float:
        times, tokens = zip(*sla.before, (0.0, 0.0), strict=True)
        return sla.tokens_per_s * sla.window_s + float(np.interp(start_s, times, tokens))

    def _slots(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Give the slots a window touches, [first, last)."""
        first = int(np.searchsorted(self._edges_s, start_s + 1e-6)) - 1
        last = int(np.searchsorted(self._edges_s, end_s - 1e-6))
        return max(0, first), max(last, first + 1)


def repair_service_level(
    problem: PlanningProblem, judge: PathJudge, arrays: Arrays, mu: float
) -> None:
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
        repaired = _WindowRepair(problem, problem.sla, arrays, mu * share).run(path) if path else ()
        patience = PATIENCE if judge.take(repaired) else patience - 1
        if not patience:
            return


class _WindowRepair:
    """Changes one path until no window is below the level."""

    def __init__(self, problem: PlanningProblem, sla: Sla, arrays: Arrays, mu: float) -> None:
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
        wanted, edges_s = self._arrays.tokens_wanted, self._arrays.edges_s
        done = int(np.searchsorted(route.tokens, wanted * (1 - ROUNDING)))
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
        return np.asarray(np.interp(at_s, self._times, sums))

    def _judged(self, path: Path) -> tuple[float, float] | None:
        """Give the worst window as the judge sees it, who knows moments within a slot."""
        low = low_windows(self._problem, path)
        return (low[0][1], self._needed - low[0][0]) if low else None

    def _better(self, route: Route, start_s: float, missing: float) -> Path:
        """Change the stretch of a window that costs least per missing token; empty when none helps.

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
