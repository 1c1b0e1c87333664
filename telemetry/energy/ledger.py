"""The energy ledger: what its rows are, where its slots end, how amounts are split over them. Pure.

Invariant: joules are whole millijoules and are neither lost nor counted twice when an interval is
split at slot borders; what nobody observed is None with its seconds beside it, never zero. Lengths
come from the monotonic clock; the wall clock only says in which slot an interval lies.
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
    """Part items where one ends and none goes on: those of a part overlap, if it has several.

    Args:
        items: ordered by when they begin.
        span: of one of them.
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
"""Stands in a `CounterBaseline` of a device that has no energy counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyRow:
    """Joules of one GPU for one run and line in one slot; absolute: booking twice counts once.

    Attributes:
        run: "" when nobody used the GPU. `line`: run | idle | unattributed | idle_after_release |
            profiling; a slot in which it changed has a row for each.
        energy_mj: None when nothing of the slot was observed; unknown is never zero.
        unobserved_ms: time of the slot in which nobody measured.
        upper_mj: most that can have been drawn in that time (power limit x time).
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
    """A GPU's energy counter up to which everything is booked.

    Attributes:
        energy_mj: what the counter showed, or would have shown; `NO_COUNTER` where there is none.
        at, monotonic_s: the moment up to which time is booked; `monotonic_s` within `boot_id`.
        boot_id: the life of the counter and of the monotonic clock.
        since_us: microseconds since 1970 of the reading from which on everything is booked without
            a gap, as joules or as unobserved; 0 when not known.
        source: whose counter it is; those of two sources are never compared. "" when not known.
        booked_mj, unobserved_ms, recovered_ms: everything ever booked of the device, for its
            metrics; they never fall. Time that its counter covered afterwards is in both of the
            latter.
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
    """Everything ever booked of one device; no part of it ever falls.

    Attributes:
        unobserved_ms: time in which nobody measured, when it passed.
        recovered_ms: so much of that its counter covered afterwards.
    """

    booked_mj: int = 0
    unobserved_ms: int = 0
    recovered_ms: int = 0

    def plus(
        self, *, energy_mj: int | None, unobserved_ms: int = 0, recovered_ms: int = 0
    ) -> "DeviceTotal":
        """Add what was booked."""
        return DeviceTotal(
            booked_mj=self.booked_mj + (energy_mj or 0),
            unobserved_ms=self.unobserved_ms + unobserved_ms,
            recovered_ms=self.recovered_ms + recovered_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotGrid:
    """Where ledger slots begin and end: at the accounting signal's borders, and at midnight.

    Attributes:
        origin, interval_s: an interval of the signal begins here; how long each is.
        timezone: the site's. Its midnights cut the slot they fall into, so that no row lies in two
            days, months or years of the site; an interval prices each slot that lies within it.
        earlier: slots that joules were booked in while slots were cut otherwise, in time order and
            apart: they stay what they are, and ours end where one of them begins.
    """

    origin: datetime
    interval_s: float
    timezone: str = "UTC"
    earlier: tuple[Span, ...] = ()

    def slot(self, at: datetime) -> Span:
        """Give the slot that holds `at`, half-open."""
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

    def beside(self, booked: Iterable[Span]) -> "SlotGrid":
        """Give the same slots, but for those that are booked already, whoever cut them.

        Args:
            booked: slots that there are. Those that overlap are one from now on.
        """
        joined: list[Span] = []
        for start, end in sorted(booked):
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((start, end))
        return replace(self, earlier=tuple(each for each in joined if self._cut(each[0]) != each))

    def _cut(self, at: datetime) -> Span:
        """Give the slot that holds a moment where nothing was booked otherwise."""
        index = index_at(self.origin, self.interval_s, at)
        begins, ends = local_day(at, self.timezone)
        return (
            max(border(self.origin, self.interval_s, index), begins),
            min(border(self.origin, self.interval_s, index + 1), ends),
        )

    def parts(self, start: datetime, end: datetime) -> Iterator[Span]:
        """Cut [start, end) at slot borders; an empty interval lies whole in its slot."""
        at = start
        while True:
            until = min(self.slot(at)[1], end)
            yield at, until
            if until >= end:
                return
            at = until


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to `weights` (each >= 0); the sum stays exact.

    Each part is what is due up to its end less what is due up to its start, both rounded down; so
    it is off by less than one, and rounding never adds up. Without any weight the last part gets
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
