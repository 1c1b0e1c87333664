"""The grid ahead, and price rules' steps over it, as runs of one observation share them. Pure.

Every run looks at the same slots from now on, but for the last one, in which its own time ends.
What a step from a point to the next costs and trains in a slot, the order of all steps by price,
and the sums over the first slots are the same for all runs with the same points. They are worked
out when the first run needs them.

Invariant: a run's numbers are what they would be if it were alone, in the same order of sums, to
the last bit.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, chain, islice
from operator import is_

from wattmesh.policies.decision import IntensitySlot, Observation
from wattmesh.policies.horizon import Horizon, JoinedSlots, SlotsAhead
from wattmesh.policies.hull import Hull
from wattmesh.telemetry.readings import J_PER_KWH

STEP_UP = -1
"""Marks a step from one vertex to the next; the step from not running carries its slot instead."""

Entry = tuple[float, float, int]
"""A step that is taken: less its price in grams per token, its tokens, its mark."""

MOST_SUMS = 16
"""Starts for which sums are kept; more are asked for only by rare comparisons."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One slot.

    Attributes:
        tokens, grams: at the slowest vertex. `most`: tokens at the fastest.
        alone_price, alone_tokens: of the step from not running; `alone_grams`: what giving the
            vertex of that step up saves.
        steps: (grams, entry) of each step from a vertex to the next.
    """

    tokens: float
    grams: float
    most: float
    alone_price: float
    alone_tokens: float
    alone_grams: float
    steps: tuple[tuple[float, Entry], ...]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Over the first slots from some start on: at the fastest vertex, and of all that is taken."""

    most: Sequence[float]
    tokens: Sequence[float]
    grams: Sequence[float]


class SharedSteps:
    """What fills over parts of the same slots share."""

    def __init__(self, slots: Sequence[IntensitySlot]) -> None:
        """Keep the slots, without gaps; nothing is worked out before it is asked for."""
        self.slots = slots
        self._by_hull: dict[tuple[tuple[float, float, float], ...], _HullSteps] = {}

    def between(self, hull: Hull, slots: Sequence[IntensitySlot]) -> "StepsBetween":
        """Give the steps of a hull in `slots`, which need not be of these."""
        offset = self._offset(slots)
        if offset is None:
            return SharedSteps(slots).between(hull, slots)
        key = tuple(
            (each.tokens_per_s, each.power_w, each.marginal_j_per_token) for each in hull.vertices
        )
        if key not in self._by_hull:
            self._by_hull[key] = _HullSteps(hull, self.slots)
        return StepsBetween(self._by_hull[key], slots, offset)

    def _offset(self, slots: Sequence[IntensitySlot]) -> int | None:
        """Give which of the slots the first of `slots` is, or is cut from; None: they are others.

        The first and the last one are not compared: both may be cut.
        """
        if len(slots) < 3:
            return 0
        second = bisect_left(self.slots, slots[1].start, key=lambda each: each.start)
        alike = islice(self.slots, second, second + len(slots) - 2)
        inner = islice(slots, 1, len(slots) - 1)
        known = 1 <= second <= len(self.slots) - len(slots) + 2
        return second - 1 if known and all(map(is_, inner, alike)) else None


class _HullSteps:
    """The steps of one hull in all slots."""

    def __init__(self, hull: Hull, slots: Sequence[IntensitySlot]) -> None:
        """Work out every step, and their order."""
        self.rates = [vertex.tokens_per_s for vertex in hull.vertices]
        self._slopes = [vertex.marginal_j_per_token for vertex in hull.vertices]
        self._power_w = hull.vertices[0].power_w
        self.first, self._alone = from_nothing(hull)
        self.rows = [self.row(each) for each in slots]
        every = ((entry, slot) for slot, row in enumerate(self.rows) for _, entry in row.steps)
        self._dearest_first = sorted(every)
        self._sums: dict[tuple[int, float, float], _Sums] = {}

    def row(self, slot: IntensitySlot) -> SlotRow:
        """Work out one slot."""
        length, intensity = (slot.end - slot.start).total_seconds(), slot.g_per_kwh / J_PER_KWH
        rates, steps = self.rates, []
        for level in range(1, len(rates)):
            price = intensity * self._slopes[level]
            size = (rates[level] - rates[level - 1]) * length
            steps.append((size * price, (-price, size, STEP_UP)))
        alone_tokens = rates[self.first] * length
        return SlotRow(
            tokens=rates[0] * length,
            grams=self._power_w * length * intensity,
            most=rates[-1] * length,
            alone_price=intensity * self._alone,
            alone_tokens=alone_tokens,
            alone_grams=alone_tokens * intensity * self._alone,
            steps=tuple(steps),
        )

    def sums(self, offset: int, head: SlotRow) -> _Sums:
        """Add up the slots from `offset` on, of which the first is `head`."""
        key = (offset, head.most, head.grams)
        if key not in self._sums:
            if len(self._sums) >= MOST_SUMS:
                self._sums.clear()
            rows = [head, *self.rows[offset + 1 :]]
            each = len(self.rates)
            tokens = chain.from_iterable(
                (row.tokens, *(entry[1] for _, entry in row.steps)) for row in rows
            )
            grams = chain.from_iterable((row.grams, *(g for g, _ in row.steps)) for row in rows)
            self._sums[key] = _Sums(
                most=list(accumulate((row.most for row in rows), initial=0.0)),
                tokens=list(accumulate(tokens, initial=0.0))[::each],
                grams=list(accumulate(grams, initial=0.0))[::each],
            )
        return self._sums[key]

    def inside(self, first: int, until: int) -> list[Entry]:
        """List the steps of the slots from `first` to before `until`, the dearest first."""
        return [entry for entry, slot in self._dearest_first if first <= slot < until]


class StepsBetween:
    """The steps of one hull in the slots of one run, of which the first and last are its own.

    `first`: the vertex that is cheapest for a token, to which the step from not running goes.
    """

    def __init__(self, steps: _HullSteps, slots: Sequence[IntensitySlot], offset: int) -> None:
        """Take all steps, the run's slots, and which of all slots is its first."""
        self._all, self._offset, self._count = steps, offset, len(slots)
        self._head, self._tail = steps.row(slots[0]), steps.row(slots[-1])
        self.first = steps.first

    def rows(self, begin: int) -> Iterator[SlotRow]:
        """Give the slots from one on."""
        last = self._count - 1
        if begin == 0 < last:
            yield self._head
        inner = slice(self._offset + max(1, begin), self._offset + last)
        yield from self._all.rows[inner]
        if begin <= last:
            yield self._tail

    def needed(self, tokens: float) -> tuple[int, float, float]:
        """Give the first slot in which so many can be done, and tokens and grams of all before.

        The number of slots where they cannot be done in all of them.
        """
        sums, last = self._all.sums(self._offset, self._head), self._count - 1
        slot = bisect_left(sums.most, tokens, 1, last + 1) - 1
        if slot == last and sums.most[last] + self._tail.most < tokens:
            return self._count, 0.0, 0.0
        return slot, sums.tokens[slot], sums.grams[slot]

    def before(self, slot: int) -> tuple[Iterator[Entry], list[Entry]]:
        """List the steps of the slots before one, the dearest first; those of the first, anyhow."""
        if not 0 < slot < self._count:
            return iter(()), []
        inside = self._all.inside(self._offset + 1, self._offset + slot)
        return iter(inside), [entry for _, entry in self._head.steps]


def from_nothing(hull: Hull) -> tuple[int, float]:
    """Give the vertex of fewest joules per token, and those joules."""
    alone = [vertex.power_w / vertex.tokens_per_s for vertex in hull.vertices]
    least = min(alone)
    return alone.index(least), least


class SharedGrid:
    """Made for one observation, and used by one thread."""

    def __init__(self, seen: Observation) -> None:
        """Work out nothing yet."""
        self._seen = seen
        self._ahead: SlotsAhead | None = None
        self._steps = SharedSteps(())
        self.joined = JoinedSlots()

    def to_end(self, end: datetime) -> Horizon:
        """Give the intensity from now to a moment (`horizon.to_end`)."""
        if self._ahead is None:
            carbon, now = self._seen.carbon, self._seen.now
            deadlines = [run.deadline for run in self._seen.runs if run.deadline is not None]
            furthest = max(deadlines, default=None)
            self._ahead = SlotsAhead(carbon.slots, now, carbon.climatology, furthest)
        found = self._ahead.to_end(end)
        if self._steps.slots is not self._ahead.shared:
            self._steps = SharedSteps(self._ahead.shared)
        return found

    @property
    def steps(self) -> SharedSteps:
        """The steps of price rules over the slots that were given out."""
        return self._steps
