"""The recursion over (slot, option): least grams less the price of tokens, for many prices at once.

It goes forward in time, so one sweep knows the best path to *every* border at which the work may
end. Less the prefix sums of staying, the value of an option never rises: it is the least so far,
over the slots in which a path may have come to it. So a transition that binds for long costs the
recursion no more than a short one. Only values are stored; where a path came from is looked up.

    free[b, m, k]   least value of being at k at border b, bound by nothing
    began[t, m, k]  least value of going to k at slot t       (both without the cost of staying)
    free[b] = min(free[b - 1], every began[t] that binds until b)

Invariant: with `mu >= 0`, `mu * tokens wanted + value` at a border is no more than the grams of any
legal path that ends its work there (weak duality).
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Bools, Floats, Ints, TransitionArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One pass over all slots for M prices.

    Attributes:
        mu: (M,) grams per token.
        stay: (B, M, K) value of staying, prefix sums.
        free: (B, M, K) as above. `done`: the same for ending the work, no transition under way.
        began: per group of transitions (T, M, K).
        value: (B, M) least value of ending at each border.
    """

    arrays: Arrays
    mu: Floats
    stay: Floats
    free: Floats
    done: Floats
    began: tuple[Floats, ...]
    value: Floats

    def path(self, price: int, border: int) -> tuple[int, ...]:
        """Give the best path that ends at a border; empty when there is none."""
        if not np.isfinite(self.value[border, price]):
            return ()
        found = np.zeros(border, dtype=np.int64)
        option = int(np.argmin(self.done[border, price] + self.stay[border, price]))
        until, ending = border, True
        while until > 0:
            group, slot = self._came(price, until, option, ending=ending)
            found[slot:until] = option
            if group < 0:
                break
            option = self._from(price, group, slot, option)
            until, ending = slot, False
        return tuple(int(each) for each in found)

    def _came(self, price: int, until: int, option: int, *, ending: bool) -> tuple[int, int]:
        """Give the group and slot of the transition that led to `option`; (-1, 0): none did."""
        first = int(self.arrays.shut[until, option]) + 1
        best, found = np.inf, (-1, 0)
        if option == self.arrays.start and first == 0:
            best = 0.0
        for group, ways in enumerate(self.arrays.ways):
            over = (ways.ends if ending else ways.binds)[first:until] <= until
            values = np.where(over, self.began[group][first:until, price, option], np.inf)
            if len(values) and values.min() < best:
                slot = int(values.argmin())
                best, found = float(values[slot]), (group, first + slot)
        return found

    def _from(self, price: int, group: int, slot: int, target: int) -> int:
        """Give the option from which the transition at `slot` to `target` is best."""
        ways = self.arrays.ways[group]
        values = self.free[slot, price] + self.stay[slot, price]
        values = values + ways.extra_g[slot, :, target] + self.mu[price] * ways.lost[:, target]
        return int(np.argmin(values))


def sweep(arrays: Arrays, mu: Floats) -> Sweep:
    """Run the recursion for prices `mu`, (M,)."""
    borders, kinds = arrays.grams.shape
    stay = arrays.grams[:, None, :] - mu[None, :, None] * arrays.tokens[:, None, :]
    free = np.full((borders, len(mu), kinds), np.inf)
    free[0, :, arrays.start] = 0.0
    long = any((ways.ends != ways.binds).any() for ways in arrays.ways)
    done = free.copy() if long else free
    began = tuple(np.empty((borders - 1, len(mu), kinds)) for _ in arrays.ways)
    passing = _Passing(arrays, mu, stay, began)
    passing.run(free, done)
    value = np.asarray((done + stay).min(axis=2))
    return Sweep(arrays=arrays, mu=mu, stay=stay, free=free, done=done, began=began, value=value)


class _Passing:
    """The loop over slots, with the arrays that every step reuses."""

    def __init__(self, arrays: Arrays, mu: Floats, stay: Floats, began: tuple[Floats, ...]) -> None:
        """Lay out what does not change from slot to slot."""
        kinds = len(arrays.rates)
        self._arrays, self._stay, self._began = arrays, stay, began
        self._lost_g = [mu[None, :, None] * ways.lost[:, None, :] for ways in arrays.ways]
        self._at = np.empty((len(mu), kinds))
        self._from = self._at.T[:, :, None]
        self._each = np.empty((kinds, len(mu), kinds))
        self._closed: Bools = np.asarray(~arrays.open.all(axis=1))
        self._ever_closed = bool(self._closed.any())

    def run(self, free: Floats, done: Floats) -> None:
        """Fill `free` and `done` border by border."""
        arrays = self._arrays
        binds = [_by_border(ways.binds) for ways in arrays.ways]
        ends = [_by_border(ways.ends) for ways in arrays.ways]
        separate = done is not free
        for slot in range(arrays.slots):
            np.add(free[slot], self._stay[slot], out=self._at)
            for group, ways in enumerate(arrays.ways):
                self._begin(slot, group, ways)
            self._arrive(slot, free, binds)
            if separate:
                self._arrive(slot, done, ends)

    def _begin(self, slot: int, group: int, ways: TransitionArrays) -> None:
        """Find the best origin of each transition that begins now."""
        each, out = self._each, self._began[group][slot]
        np.add(ways.extra_g[slot][:, None, :], self._lost_g[group], out=each)
        np.add(each, self._from, out=each)
        np.minimum.reduce(each, axis=0, out=out)
        np.subtract(out, self._stay[slot], out=out)

    def _arrive(self, slot: int, values: Floats, borders: list["_Borders"]) -> None:
        """Give the border after `slot` the least of staying and of what arrives there."""
        before, after = values[slot], values[slot + 1]
        for group, arriving in enumerate(borders):
            for begun in (slot,) if arriving is None else arriving.get(slot + 1, ()):
                came = self._began[group][begun]
                if self._ever_closed and begun < slot:
                    came = np.where(self._arrays.shut[slot + 1] < begun, came, np.inf)
                np.minimum(before, came, out=after)
                before = after
        if before is not after:
            after[:] = before
        if self._closed[slot]:
            after[:, ~self._arrays.open[slot]] = np.inf


_Borders = dict[int, list[int]] | None
"""The slots whose transition reaches each border; None: each reaches the next one."""


def _by_border(borders: Ints) -> _Borders:
    """Sort slots by the border that their transition reaches."""
    if np.array_equal(borders, np.arange(1, len(borders) + 1)):
        return None
    found: defaultdict[int, list[int]] = defaultdict(list)
    for slot, border in enumerate(borders.tolist()):
        found[border].append(slot)
    return dict(found)
