"""The service level in the price of a token: windows that train too little make tokens dearer.

A least average over a window is one more constraint with a price of its own (nu >= 0). A path is
followed, the windows below the level are found, and their prices raised until the level is kept.
A window is widened to whole slots: what must be trained in it must be trained in the wider one too.

Invariant: whatever the prices, the bound of the problem so priced holds for every path that keeps
the level: a window adds `nu * tokens wanted` to it only where the work ends after the window.
"""

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Floats, worth
from wattmesh.policies.planner.evaluate import low_windows
from wattmesh.policies.planner.problem import Problem, Sla

FIRST = 0.25
"""First price of a window, as a share of mu."""

STEP = 2.0
"""Factor by which the price of a window rises that is still below the level."""


class Levels:
    """The windows that have a price."""

    def __init__(self, problem: Problem, mu_g_per_token: float) -> None:
        """Start with none."""
        self._problem = problem
        self._edges_s = np.concatenate([[0.0], np.cumsum(problem.seconds)])
        self._first = FIRST * mu_g_per_token
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
                self._nu[window] = self._nu.get(window, self._first / STEP) * STEP
                needed = max(self._needed.get(window, 0.0), self._wanted(sla, start))
                self._needed[window] = needed
        return bool(raised)

    def worth(self, arrays: Arrays) -> Arrays:
        """Give the problem in which tokens are worth more inside the windows."""
        g_per_token = np.zeros(arrays.slots)
        for (first, last), nu in self._nu.items():
            g_per_token[first:last] += nu
        return worth(arrays, g_per_token)

    def owed_g(self) -> Floats:
        """Give (T,): what the windows that are over before each slot add to the bound."""
        owed = np.zeros(len(self._problem.seconds))
        for (first, last), nu in self._nu.items():
            owed[last:] += nu * self._needed[first, last]
        return owed

    def _wanted(self, sla: Sla, start_s: float) -> float:
        """Give the tokens that are still to be trained in a window."""
        times, tokens = zip(*sla.before, (0.0, 0.0), strict=True)
        return sla.tokens_per_s * sla.window_s + float(np.interp(start_s, times, tokens))

    def _slots(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Give the slots a window touches, [first, last)."""
        first = int(np.searchsorted(self._edges_s, start_s + 1e-6)) - 1
        last = int(np.searchsorted(self._edges_s, end_s - 1e-6))
        return max(0, first), max(last, first + 1)
