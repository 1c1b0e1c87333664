"""The search for the price of a token: sweeps over grids that close in on the weakest ending.

For each slot in which the work may end, a price gives the least value of ending there; the greatest
over all prices tried is that slot's bound, and the least of these over all slots is the whole
bound. So finer prices are tried for the slot whose bound is least, until it no longer rises.

Invariant: `bound_g` holds after every sweep, however early the search stops.
"""

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Floats
from wattmesh.policies.planner.viterbi import Sweep, sweep

GRID = 14
"""Prices of one sweep."""

CLOSER = 0.6 * 0.3 ** np.arange(GRID // 2)
"""Where a finer grid lies between its middle and its ends: closer and closer to the middle."""

REACH = 30.0
"""The first grid reaches this factor to either side of what a token costs on average."""

FURTHEST = 1e3
"""Most that a grid reaches beyond an end that was best; each time it reaches further."""

ROUNDS = 12
"""Most grids after the first."""

ENOUGH = 2e-6
"""Relative rise of the bound that is not worth another sweep."""

FINALISTS = 3
"""Slots of completion whose paths are looked at."""


class Search:
    """All prices tried for one problem, and what each says about each slot of completion."""

    def __init__(
        self,
        arrays: Arrays,
        *,
        owed_g: Floats | None = None,
        near: float | None = None,
        reach: float = REACH,
    ) -> None:
        """Start with nothing tried.

        Args:
            arrays: the problem.
            owed_g: (T,) added to the bound of ending in each slot.
            near: a price to start at; None: none is known.
            reach: factor that the first grid reaches to either side of it.
        """
        self._near = near
        self._reach = reach if near else REACH
        self._arrays = arrays
        self._owed_g = np.zeros(arrays.slots) if owed_g is None else owed_g
        self._mu = np.empty(0)
        self._values = np.empty((arrays.slots, 0))

    @property
    def bound_g(self) -> float:
        """No legal path emits less."""
        return float(self._values.max(axis=1).min())

    @property
    def mu_g_per_token(self) -> float:
        """The price at which the bound was found."""
        return float(self._mu[self._best(self._weakest())])

    def run(self) -> None:
        """Try prices until the bound can hardly rise any more."""
        middle = self._near or self._usual()
        self._try(middle * np.geomspace(1 / self._reach, self._reach, GRID))
        for _ in range(ROUNDS):
            slot = self._weakest()
            if self._room_g(slot) <= ENOUGH * abs(self.bound_g):
                return
            self._try(self._finer(slot))

    def finals(self) -> tuple[Sweep, list[tuple[int, list[int]]]]:
        """Give one sweep with, per promising slot of completion, the prices that bracket it.

        The paths of the lowest of these do too little, those of the highest enough.
        """
        bounds = self._values.max(axis=1)
        slots = [int(each) for each in np.argsort(bounds, kind="stable")[:FINALISTS]]
        slots = [slot for slot in slots if np.isfinite(bounds[slot])]
        wanted = {slot: self._around(slot) for slot in slots}
        tried = sorted({index for around in wanted.values() for index in around})
        last = sweep(self._arrays, self._mu[tried])
        return last, [(slot, [tried.index(n) for n in wanted[slot]]) for slot in slots]

    def _usual(self) -> float:
        """Give the grams of a token at the option with the fewest, averaged over all time."""
        arrays = self._arrays
        grams, tokens = arrays.grams[-1], arrays.tokens[-1]
        known = (tokens > 0) & (grams > 0)
        return float((grams[known] / tokens[known]).min()) if known.any() else 1e-12

    def _try(self, mu: Floats) -> None:
        value = sweep(self._arrays, mu).value
        ending = np.minimum(value[:-1] + self._arrays.begun_g[:, None], value[1:])
        found = ending + mu * self._arrays.tokens_wanted + self._owed_g[:, None]
        every = np.concatenate([self._mu, mu])
        order = np.argsort(every, kind="stable")
        self._mu = every[order]
        self._values = np.concatenate([self._values, found], axis=1)[:, order]

    def _weakest(self) -> int:
        """Give the slot of completion whose bound is least: it is the whole bound."""
        return int(self._values.max(axis=1).argmin())

    def _best(self, slot: int) -> int:
        """Give the index of the best price of a slot of completion."""
        return int(self._values[slot].argmax())

    def _room_g(self, slot: int) -> float:
        """Give how far the bound of a slot could still rise between the prices tried.

        It is concave in the price: beside the best price it stays below the lines through the
        prices tried next to each other on either side.
        """
        best, mu, values = self._best(slot), self._mu, self._values[slot]
        if best in {0, len(mu) - 1}:
            return np.inf
        rises = (values[best] - values[best - 1]) / (mu[best] - mu[best - 1])
        falls = (values[best] - values[best + 1]) / (mu[best + 1] - mu[best])
        room = [rises * (mu[best + 1] - mu[best]), falls * (mu[best] - mu[best - 1])]
        if best + 2 < len(mu):
            steep = (values[best + 1] - values[best + 2]) / (mu[best + 2] - mu[best + 1])
            over = values[best + 1] - values[best] + steep * (mu[best + 1] - mu[best])
            room[0] = over * rises / (rises + steep) if rises + steep > 0 else 0.0
        if best >= 2:
            steep = (values[best - 1] - values[best - 2]) / (mu[best - 1] - mu[best - 2])
            over = values[best - 1] - values[best] + steep * (mu[best] - mu[best - 1])
            room[1] = over * falls / (falls + steep) if falls + steep > 0 else 0.0
        return float(max(room))

    def _around(self, slot: int) -> list[int]:
        """Give the best price of a slot of completion and its neighbours."""
        best = self._best(slot)
        return [n for n in (best - 1, best, best + 1) if 0 <= n < len(self._mu)]

    def _finer(self, slot: int) -> Floats:
        """Give new prices between the neighbours of the best one, or beyond the end."""
        best, last = self._best(slot), len(self._mu) - 1
        if best in {0, last}:
            self._reach = min(self._reach**2, FURTHEST)
        if best == 0:
            return np.geomspace(self._mu[0] / self._reach, self._mu[0], GRID, endpoint=False)
        if best == last:
            return np.geomspace(self._mu[-1], self._mu[-1] * self._reach, GRID + 1)[1:]
        low, high = self._mu[best - 1], self._mu[best + 1]
        top = self._top(slot, best)
        return np.concatenate([top - (top - low) * CLOSER, top + (high - top) * CLOSER])

    def _top(self, slot: int, best: int) -> float:
        """Guess the best price: the top of the parabola through the three best ones."""
        (low, middle, high), (a, b, c) = (
            each[best - 1 : best + 2] for each in (self._mu, self._values[slot])
        )
        left, right = (b - a) / (middle - low), (c - b) / (high - middle)
        if left - right <= 0:
            return float(middle)
        guess = (low + middle) / 2 + left / (left - right) * (high - low) / 2
        margin = 0.02 * (high - low)
        return float(np.clip(guess, low + margin, high - margin))
