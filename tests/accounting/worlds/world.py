"""One run in a world whose power and speed are known exactly; what it truly saved. Pure.

Times are whole seconds after T0, powers whole milliwatts, speeds whole tokens a second, prices
whole milligrams a kWh: every sum here is exact. Written from DESIGN 4.1 alone: nothing of the
accounting is used, so that what it says can be held against this.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

UG_PER_MJ_MG = Fraction(1, 3_600_000)
"""Micrograms of one millijoule at one milligram a kWh."""

Span = tuple[int, int]
"""Seconds, half-open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the run truly does at one of its points.

    Attributes:
        power_mw: of each GPU that the run holds, by name; those it does not use idle in it.
    """

    tokens_per_s: int
    power_mw: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Time in which nothing changes.

    Attributes:
        at: the point it trains at; "" while it does not train.
        lives: its processes live, and hold its GPUs.
        ours: what stops it was done by us, so the baseline's clock runs on.
        to: in a switch, the point it is switched to.
        power_mw: where it is not that of the point.
    """

    start: int
    end: int
    at: str = ""
    lives: bool = True
    ours: bool = True
    to: str = ""
    power_mw: Mapping[str, int] | None = None

    @property
    def span(self) -> Span:
        """When."""
        return self.start, self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One run.

    Attributes:
        stays: one after the other, from when it first registers.
        slot_s: how long a price holds; prices begin at T0. `prices`: in mg/kWh, by slot.
        lost: tokens that the launch at a moment begins with less than the one before it had.
        before: tokens that were trained before it first registered.
    """

    ways: Mapping[str, Way]
    stays: Sequence[Stay]
    slot_s: int
    prices: Sequence[int]
    submitted: str = "A"
    finishes: bool = True
    lost: Mapping[int, int] = field(default_factory=dict)
    before: int = 0

    @property
    def start(self) -> int:
        """When it first registers."""
        return self.stays[0].start

    @property
    def end(self) -> int:
        """When it ends, or is looked at last."""
        return self.stays[-1].end

    @property
    def gpus(self) -> tuple[str, ...]:
        """Every GPU it ever held."""
        return tuple(self.ways[self.submitted].power_mw)

    def stay(self, at: int) -> Stay:
        """Give the stay that holds a moment; the last one at the end."""
        return next((each for each in self.stays if each.start <= at < each.end), self.stays[-1])

    def price(self, at: int) -> int:
        """Give the price of a moment."""
        return self.prices[at // self.slot_s]

    def tokens(self, at: int) -> int:
        """Give the tokens trained up to a moment, those that were lost again taken off."""
        trained = self.before
        for each in self.stays:
            if each.at:
                trained += self.ways[each.at].tokens_per_s * max(0, min(at, each.end) - each.start)
        return trained - sum(some for when, some in self.lost.items() if when <= at)

    def power_mw(self, gpu: str, stay: Stay) -> int:
        """Give what a GPU draws in a stay."""
        if stay.power_mw is not None:
            return stay.power_mw.get(gpu, 0)
        return self.ways[stay.at].power_mw.get(gpu, 0) if stay.at else 0

    def energy_mj(self, gpu: str, start: int, end: int) -> int:
        """Give what a GPU drew between two moments."""
        return sum(
            self.power_mw(gpu, each) * max(0, min(end, each.end) - max(start, each.start))
            for each in self.stays
        )

    def cuts(self, start: int, end: int, more: Sequence[int] = ()) -> Iterator[Span]:
        """Cut a span where a price, a stay or anything more begins."""
        borders = {each.start for each in self.stays} | {*more}
        borders |= set(range(start - start % self.slot_s, end, self.slot_s))
        moments = [start, *sorted(each for each in borders if start < each < end), end]
        yield from ((before, after) for before, after in pairwise(moments) if before < after)

    def emitted_ug(self, until: int) -> Fraction:
        """Give what the run emitted up to a moment, while its processes lived."""
        return sum((self.emitted_of_ug(gpu, self.start, until) for gpu in self.gpus), Fraction(0))

    def emitted_of_ug(self, gpu: str, since: int, until: int) -> Fraction:
        """Give what one GPU emitted for the run between two moments."""
        grams = 0
        for start, end in self.cuts(since, min(until, self.end)):
            stay = self.stay(start)
            if stay.lives:
                grams += self.power_mw(gpu, stay) * (end - start) * self.price(start)
        return grams * UG_PER_MJ_MG

    def held_at_ug(self, point: str, tokens: int, now: int) -> Fraction | None:
        """Give what a run that stays at `point` emits until it has trained so many tokens.

        It pauses where this run does, unless we caused that; it draws as this run draws there.
        None: it has not trained so many by `now`.
        """
        way, grams = self.ways[point], Fraction(0)
        power_mw = sum(way.power_mw.values())
        for start, end in self.cuts(self.start, max(now, self.start)):
            stay = self.stay(start)
            if not stay.lives and not stay.ours:
                continue
            if tokens <= 0:
                break
            seconds = min(Fraction(end - start), Fraction(tokens, way.tokens_per_s))
            tokens -= int(way.tokens_per_s * (end - start)) if seconds == end - start else tokens
            grams += power_mw * seconds * self.price(start) * UG_PER_MJ_MG
        return grams if tokens <= 0 else None

    def saved_ug(self, tokens: int, now: int, until: int | None = None) -> Fraction | None:
        """Give the true saving of a run that has trained `tokens`.

        Args:
            tokens: as it reported them.
            now: up to when the baseline may have gone on.
            until: up to when the run's own grams count; default `now`.
        """
        baseline = self.held_at_ug(self.submitted, tokens, now)
        return None if baseline is None else baseline - self.emitted_ug(until or now)
