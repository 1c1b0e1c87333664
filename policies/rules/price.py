"""The one carbon price of a run: what a token may cost in grams, given work, time and forecast.

When switching is free, the least grams for a number of tokens by a given end are a linear program
over (slot, hull vertex): the run is at some vertex until its work is done, and at none after. For a
fixed slot of completion a greedy fill solves it exactly. Every slot before starts at the slowest
vertex; the next step up costs `intensity * marginal joules per token` in grams per token; the
cheapest steps are taken until the work fits. In the slot of completion the first step is from not
running at all. The price mu is that of the dearest step taken.

One pass tries all slots of completion: with one more slot to run in mu can only fall, so a step
once given up never comes back (each is pushed and popped at most once: O(T K log T)). What runs
with the same points and slots have in common is worked out once (`policies/shared_grid.py`).

Invariant: `bound_g` is a lower bound on the grams of *every* schedule that trains the tokens by
the end, switching or not, under these intensities, and some schedule reaches it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.hull import Hull
from wattmesh.policies.shared_grid import (
    STEP_UP,
    Entry,
    SharedSteps,
    SlotRow,
    StepsBetween,
)

ROUNDING = 1e-12
"""Relative error of sums of slots; work that fits but for this fits."""

NEARLY = 1e-9
"""Share of the work by which sums may miss it where only time is saved."""

NONE: Entry = (inf, 0.0, STEP_UP)
"""Stands for the dearest step where there is none; every other is dearer."""

ALL: Entry = (-inf, 0.0, STEP_UP)
"""Stands for the dearest step while there is not enough: every other is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSolution:
    """The solution of the linear program.

    Attributes:
        mu_g_per_token: the price; a vertex is worth running while intensity times its marginal
            joules per token is at most this.
        bound_g: grams of the best schedule.
        last: index of the slot in which the work ends. `last_share`: of that slot's time until
            then.
    """

    mu_g_per_token: float
    bound_g: float
    last: int
    last_share: float
    slots: tuple[IntensitySlot, ...]
    tokens: float

    def running(self) -> tuple[IntensitySlot, ...]:
        """Give the slots up to the end of the work, the last one cut there."""
        last = self.slots[self.last]
        end = last.start + self.last_share * (last.end - last.start)
        whole = self.slots[: self.last]
        if end <= last.start:
            return whole
        return (*whole, IntensitySlot(start=last.start, end=end, g_per_kwh=last.g_per_kwh))


def fill(
    hull: Hull,
    slots: Sequence[IntensitySlot],
    tokens: float,
    shared: SharedSteps | None = None,
) -> PriceSolution | None:
    """Solve for the least grams that train `tokens` within `slots`.

    Args:
        hull: of the points that may be used.
        slots: without gaps.
        tokens: to train.
        shared: what other fills have worked out; the answer is the same without.

    Returns:
        None when even the fastest vertex cannot do it.
    """
    if tokens <= 0 or not slots or not hull.vertices:
        return None
    filling = _Filling((shared or SharedSteps(slots)).between(hull, slots), tokens)
    best: tuple[float, float, float] | None = None
    last = 0
    for slot, row in filling.endings():
        filling.end_in(slot, row)
        if filling.enough:
            filling.settle()
            if filling.too_much:
                break
            found = filling.value()
            if best is None or found[0] < best[0]:
                best, last = found, slot
        filling.go_on(row)
    if best is None:
        return None
    return PriceSolution(
        bound_g=best[0],
        mu_g_per_token=best[1],
        last_share=best[2],
        last=last,
        slots=tuple(slots),
        tokens=tokens,
    )


def hindsight_bound_g(hull: Hull, observed: Sequence[IntensitySlot], tokens: float) -> float | None:
    """Give the least grams that could have trained `tokens` within the observed slots.

    Args:
        hull: of the points the run could use (`wattmesh.policies.hull.lower_hull`).
        observed: intensities as measured, from the start of the run to its deadline.
        tokens: trained.

    Returns:
        None when the points cannot do that many tokens in that time.
    """
    plan = fill(hull, observed, tokens)
    return plan.bound_g if plan else None


class _Filling:
    """The whole steps taken so far: at least the tokens wanted, by less than one step.

    Those that may be given up are in `_before` (of slots in which the work cannot end, the dearest
    first; `_entry` is the next of them) and in a heap, (-price, tokens, mark), the dearest first. A
    step from not running is marked with its slot; once the run goes on beyond that slot the entry
    is stale, and the slowest vertex there is not to be given up any more. `_top` is the dearest.
    """

    def __init__(self, steps: StepsBetween, tokens: float) -> None:
        """Take every step of the slots in which the work cannot end."""
        self._wanted = tokens * (1 - ROUNDING)
        self._most = self._wanted * (1 + 1e3 * ROUNDING)
        begin, self._tokens, self._grams = steps.needed(self._wanted * (1 - NEARLY))
        self._before, self._heap = steps.before(begin)
        self._steps, self._begin, self._first = steps, begin, steps.first
        self._entry, self._top = next(self._before, NONE), ALL
        self._last = begin
        self._running = False
        self.enough = False
        self.too_much = False

    def endings(self) -> Iterator[tuple[int, SlotRow]]:
        """Give the slots in which the work can end."""
        return enumerate(self._steps.rows(self._begin), self._begin)

    def end_in(self, slot: int, row: SlotRow) -> None:
        """Let the work end in `slot`: the steps there that cost less than mu are taken."""
        self._last = slot
        limit, price, size = -self._top[0], row.alone_price, row.alone_tokens
        self._running = price < limit
        if self._running:
            self._tokens += size
            self._grams += size * price
            self._push((-price, size, slot))
            self._climb(row.steps[self._first :], limit)
        if not self.enough and self._tokens >= self._wanted:
            self.enough = True
            heapify(self._heap)

    def settle(self) -> None:
        """Give up the dearest steps while what remains still is enough.

        Sets `too_much` when the slowest vertices alone train more than wanted: the work cannot end
        this late, nor any later.
        """
        heap, wanted, last = self._heap, self._wanted, self._last
        while self._gave_up_before(heap[0] if heap else NONE):
            if not heap:
                self._top = NONE
                self.too_much = self._tokens > self._most
                return
            self._top = price, size, mark = heap[0]
            if not STEP_UP < mark < last:
                left = self._tokens - size
                if left < wanted:
                    return
                self._tokens = left
                self._grams += size * price
                if mark == last:
                    self._running = False
            heappop(heap)

    def _gave_up_before(self, newest: Entry) -> bool:
        """Give up the steps of the first slots that are dearer than `newest`; False: enough."""
        entry, before, wanted = self._entry, self._before, self._wanted
        if not entry < newest:
            return True
        tokens, grams = self._tokens, self._grams
        while entry < newest:
            left = tokens - entry[1]
            if left < wanted:
                self._top = entry
                break
            tokens = left
            grams += entry[1] * entry[0]
            entry = next(before, NONE)
        self._tokens, self._grams, self._entry = tokens, grams, entry
        return not entry < newest

    def value(self) -> tuple[float, float, float]:
        """Give (grams, mu, share of the last slot) with the dearest step taken only in part."""
        top = self._top
        price = 0.0 if top is NONE else -top[0]
        excess = self._tokens - self._wanted
        share = 1.0 - excess / top[1] if top[2] == self._last else float(self._running)
        return self._grams - excess * price, price, share

    def go_on(self, row: SlotRow) -> None:
        """Let the run go on beyond the slot: it is at the slowest vertex there at least."""
        if self._running:
            # The step from not running becomes the slowest vertex and the steps up from there.
            self._tokens -= row.alone_tokens
            self._grams -= row.alone_grams
        self._tokens += row.tokens
        self._grams += row.grams
        if self._running:
            self._climb(row.steps[: self._first], inf)
        else:
            self._climb(row.steps, -self._top[0])

    def _climb(self, steps: Sequence[tuple[float, Entry]], limit: float) -> None:
        """Take the steps that cost less than `limit`, up to the first that does not."""
        for grams, entry in steps:
            if -entry[0] >= limit:
                return
            self._tokens += entry[1]
            self._grams += grams
            self._push(entry)
            if self.enough and entry < self._top:
                self._top = entry

    def _push(self, entry: Entry) -> None:
        if self.enough:
            heappush(self._heap, entry)
        else:
            self._heap.append(entry)
