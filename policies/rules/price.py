"""The one carbon price of a run: what a token may cost in grams, given work, time and forecast.

When switching is free, the least grams for a number of tokens by a given end are a linear program
over (slot, hull vertex): the run is at some vertex until its work is done, and at none after. For a
fixed slot of completion a greedy fill solves it exactly. Every slot before starts at the slowest
vertex; the next step up costs `intensity * marginal joules per token` in grams per token; the
cheapest steps are taken until the work fits. In the slot of completion the first step is from not
running at all. The price mu is that of the dearest step taken.

One pass tries all slots of completion: with one more slot to run in mu can only fall, so a step
once given up never comes back (each is pushed and popped at most once: O(T K log T)).

Invariant: `bound_g` is a lower bound on the grams of *every* schedule that trains the tokens by
the end, switching or not, under these intensities, and some schedule reaches it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.hull import Hull
from wattmesh.telemetry.readings import J_PER_KWH

ROUNDING = 1e-12
"""Relative error of sums of slots; work that fits but for this fits."""

NEARLY = 1e-9
"""Share of the work by which sums may miss it where only time is saved."""

_STEP_UP = -1
"""Marks a step from one vertex to the next; the step from not running carries its slot instead."""


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


def fill(hull: Hull, slots: Sequence[IntensitySlot], tokens: float) -> PriceSolution | None:
    """Solve for the least grams that train `tokens` within `slots`.

    Returns:
        None when even the fastest vertex cannot do it.
    """
    if tokens <= 0 or not slots or not hull.vertices:
        return None
    filling = _Filling(hull, slots, tokens)
    best: tuple[float, float, float] | None = None
    last = 0
    for slot in range(filling.begin(), len(slots)):
        filling.end_in(slot)
        filling.settle()
        if filling.too_much:
            break
        if filling.enough:
            found = filling.value()
            if best is None or found[0] < best[0]:
                best, last = found, slot
        filling.go_on()
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


def from_nothing(hull: Hull) -> tuple[int, float]:
    """Give the vertex of fewest joules per token, and those joules."""
    alone = [vertex.power_w / vertex.tokens_per_s for vertex in hull.vertices]
    least = min(alone)
    return alone.index(least), least


class _Filling:
    """The whole steps taken so far: at least the tokens wanted, by less than one step.

    The heap holds (-price, tokens, mark) per step that may be given up, the dearest first. A step
    from not running is marked with its slot; once the run goes on beyond that slot the entry is
    stale, and the slowest vertex there is not to be given up any more.
    """

    def __init__(self, hull: Hull, slots: Sequence[IntensitySlot], tokens: float) -> None:
        """Start with nothing taken."""
        self._rates = [vertex.tokens_per_s for vertex in hull.vertices]
        self._slopes = [vertex.marginal_j_per_token for vertex in hull.vertices]
        self._power_w = hull.vertices[0].power_w
        self._first, self._alone = from_nothing(hull)
        self._lengths = [(slot.end - slot.start).total_seconds() for slot in slots]
        self._intensities = [slot.g_per_kwh / J_PER_KWH for slot in slots]
        self._wanted = tokens * (1 - ROUNDING)
        self._heap: list[tuple[float, float, int]] = []
        self._tokens = 0.0
        self._grams = 0.0
        self._last = 0
        self._running = False
        self.enough = False
        self.too_much = False

    def begin(self) -> int:
        """Take every step of the slots in which the work cannot end; give the first other slot."""
        steps = [
            (rate - slower, slope)
            for slower, rate, slope in zip(
                self._rates, self._rates[1:], self._slopes[1:], strict=False
            )
        ]
        fastest, slowest, add = self._rates[-1], self._rates[0], self._heap.append
        least, done = self._wanted * (1 - NEARLY), 0.0
        for slot, (length, intensity) in enumerate(
            zip(self._lengths, self._intensities, strict=True)
        ):
            done += fastest * length
            if done >= least:
                return slot
            self._tokens += slowest * length
            self._grams += self._power_w * length * intensity
            for rate, slope in steps:
                price, size = intensity * slope, rate * length
                self._tokens += size
                self._grams += size * price
                add((-price, size, _STEP_UP))
        return len(self._lengths)

    def end_in(self, slot: int) -> None:
        """Let the work end in `slot`: the steps there that cost less than mu are taken."""
        self._last = slot
        price = self._intensities[slot] * self._alone
        self._running = price < self._limit()
        if self._running:
            self._take(price, self._rates[self._first] * self._lengths[slot], slot)
            self._climb(self._first + 1, len(self._rates), self._limit())

    def go_on(self) -> None:
        """Let the run go on beyond the slot: it is at the slowest vertex there at least."""
        slot, limit = self._last, self._limit()
        length, intensity = self._lengths[slot], self._intensities[slot]
        if self._running:
            # The step from not running becomes the slowest vertex and the steps up from there.
            self._tokens -= self._rates[self._first] * length
            self._grams -= self._rates[self._first] * length * intensity * self._alone
        self._tokens += self._rates[0] * length
        self._grams += self._power_w * length * intensity
        if self._running:
            self._climb(1, self._first + 1, float("inf"))
        else:
            self._climb(1, len(self._rates), limit)
        self._last = slot + 1

    def settle(self) -> None:
        """Give up the dearest steps while what remains still is enough.

        Sets `too_much` when the slowest vertices alone train more than wanted: the work cannot end
        this late, nor any later.
        """
        if not self.enough:
            if self._tokens < self._wanted:
                return
            self.enough = True
            heapify(self._heap)
        heap = self._heap
        while heap:
            dearest, size, mark = heap[0]
            if _STEP_UP < mark < self._last:
                heappop(heap)
                continue
            if self._tokens - size < self._wanted:
                return
            heappop(heap)
            self._tokens -= size
            self._grams += size * dearest
            if mark == self._last:
                self._running = False
        self.too_much = self._tokens > self._wanted * (1 + 1e3 * ROUNDING)

    def value(self) -> tuple[float, float, float]:
        """Give (grams, mu, share of the last slot) with the dearest step taken only in part."""
        price = self._limit()
        excess = self._tokens - self._wanted
        share = float(self._running)
        if self._heap and self._heap[0][2] == self._last:
            share = 1.0 - excess / self._heap[0][1]
        return self._grams - excess * price, price, share

    def _limit(self) -> float:
        """Give the price a step must stay below to be taken; infinite until there is enough."""
        if not self.enough:
            return float("inf")
        return -self._heap[0][0] if self._heap else 0.0

    def _climb(self, start: int, stop: int, limit: float) -> None:
        """Take the steps to the vertices from `start` to before `stop` that cost less."""
        length, intensity = self._lengths[self._last], self._intensities[self._last]
        rates, slopes, heap, enough = self._rates, self._slopes, self._heap, self.enough
        for level in range(start, stop):
            price = intensity * slopes[level]
            if price >= limit:
                return
            size = (rates[level] - rates[level - 1]) * length
            self._tokens += size
            self._grams += size * price
            if enough:
                heappush(heap, (-price, size, _STEP_UP))
            else:
                heap.append((-price, size, _STEP_UP))

    def _take(self, price: float, tokens: float, mark: int) -> None:
        self._tokens += tokens
        self._grams += tokens * price
        if self.enough:
            heappush(self._heap, (-price, tokens, mark))
        else:
            self._heap.append((-price, tokens, mark))
