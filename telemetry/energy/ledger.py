"""The energy ledger: its rows, its slots, and how amounts are split over slots. Pure.

Invariant: energy is whole millijoules and is neither lost nor counted twice when an interval is
split at slot borders; energy that was not observed is None with the seconds beside it, never zero.
Lengths come from the monotonic clock; the wall clock only decides in which slot an interval lies.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from wattmesh.telemetry.slots import border, index_at, local_day

Span = tuple[datetime, datetime]
"""Half-open."""

T = TypeVar("T")


def together(items: Iterable[T], span: Callable[[T], Span]) -> list[list[T]]:
    """Group items whose spans overlap, directly or through others.

    Args:
        items: ordered by the start of their span.
        span: returns the span of an item.
    """
    found: list[list[T]] = []
    until: datetime | None = None
    for each in items:
        start, end = span(each)
        if until is None or start >= until:
            found.append([])
        found[-1].append(each)
        until = max(until or end, end)
    return found


NO_COUNTER = -1
"""`CounterBaseline.energy_mj` of a device without an energy counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyRow:
    """Energy of one GPU, run, line and slot. Absolute: booking it twice counts once.

    Attributes:
        run: "" when no run used the GPU.
        line: run | idle | unattributed | idle_after_release | profiling; a slot in which it
            changed has a row for each.
        energy_mj: None when nothing of the slot was observed; unknown is never zero.
        unobserved_ms: time of the slot in which the GPU was not measured.
        upper_mj: upper bound of the energy in that time (power limit x time).
    """

    gpu_uuid: str
    run: str
    incarnation: str
    slot_start: datetime
    slot_end: datetime
    energy_mj: int | None
    unobserved_ms: int
    upper_mj: int
    source: str
    quality: str
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterBaseline:
    """A GPU's energy counter at the moment up to which everything is booked.

    Attributes:
        energy_mj: the counter's value, or its extrapolation; `NO_COUNTER` where there is none.
        at, monotonic_s: the moment up to which time is booked; `monotonic_s` is of `boot_id`.
        boot_id: the boot that counter and monotonic clock belong to.
        since_us: since this time (microseconds since 1970) everything is booked without a gap, as
            joules or as unobserved; 0 when not known.
        source: source of the counter; counters of two sources are never compared. "": not known.
        booked_mj, unobserved_ms, recovered_ms: totals of the device since it was first seen, for
            its metrics; they never fall. Unobserved time that the counter covered afterwards is in
            both `unobserved_ms` and `recovered_ms`.
    """

    gpu_uuid: str
    energy_mj: int
    at: datetime
    monotonic_s: float
    boot_id: str
    source: str = ""
    booked_mj: int = 0
    unobserved_ms: int = 0
    recovered_ms: int = 0
    since_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTotal:
    """Totals of one device since it was first seen; none of them ever falls.

    Attributes:
        unobserved_ms: time without a measurement at that moment.
        recovered_ms: the part of it whose energy the counter covered afterwards.
    """

    booked_mj: int = 0
    unobserved_ms: int = 0
    recovered_ms: int = 0

    def plus(
        self, *, energy_mj: int | None, unobserved_ms: int = 0, recovered_ms: int = 0
    ) -> "DeviceTotal":
        """Add an amount that was booked."""
        return DeviceTotal(
            booked_mj=self.booked_mj + (energy_mj or 0),
            unobserved_ms=self.unobserved_ms + unobserved_ms,
            recovered_ms=self.recovered_ms + recovered_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGrid:
    """The borders of ledger slots: those of the accounting signal, and local midnight.

    Attributes:
        origin, interval_s: start of one interval of the signal, and the length of each.
        timezone: the site's. Its midnights cut slots, so that no row lies in two days, months or
            years of the site; each slot lies within one interval, which prices it.
        earlier: slots that were booked under other borders, in time order, not overlapping; they
            keep their borders, and slots of this grid end where one of them begins.
    """

    origin: datetime
    interval_s: float
    timezone: str = "UTC"
    earlier: tuple[Span, ...] = ()

    def slot(self, at: datetime) -> Span:
        """Return the half-open slot that contains `at`."""
        following = bisect_right(self.earlier, at, key=lambda each: each[0])
        begins, ends = self._cut(at)
        if following:
            before = self.earlier[following - 1]
            if at < before[1]:
                return before
            begins = max(begins, before[1])
        if following < len(self.earlier):
            ends = min(ends, self.earlier[following][0])
        return begins, ends

    def with_booked(self, booked: Iterable[Span]) -> "SlotGrid":
        """Return this grid with already booked slots kept as they are.

        Args:
            booked: existing slots, whoever cut them; overlapping ones are merged.
        """
        joined: list[Span] = []
        for start, end in sorted(booked):
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        return replace(self, earlier=tuple(each for each in joined if self._cut(each[0]) != each))

    def _cut(self, at: datetime) -> Span:
        """The slot that contains a moment, `earlier` disregarded."""
        index = index_at(self.origin, self.interval_s, at)
        begins, ends = local_day(at, self.timezone)
        return (
            max(border(self.origin, self.interval_s, index), begins),
            min(border(self.origin, self.interval_s, index + 1), ends),
        )

    def parts(self, start: datetime, end: datetime) -> Iterator[Span]:
        """Split [start, end) at slot borders; an empty interval yields itself."""
        at = start
        while True:
            until = min(self.slot(at)[1], end)
            yield at, until
            if until >= end:
                return
            at = until


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to `weights` (each >= 0); the sum is exact.

    Each part is the rounded-down cumulative share at its end less that at its start, so it is off
    by less than one and rounding errors do not accumulate. If all weights are 0 the last part gets
    all.
    """
    whole, given, passed = sum(weights), 0, 0
    shares = []
    for weight in weights:
        passed += weight
        due = total * passed // whole if whole else 0
        shares.append(due - given)
        given = due
    if shares:
        shares[-1] += total - given
    return shares
