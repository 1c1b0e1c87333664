"""The intensity that a plan counts on, from now to the deadline. Pure.

Invariant: slots follow each other without a gap, the first starts now, the last ends at the end
asked for; what lies beyond the forecast is filled by a rule that `extended` names.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from wattmesh.policies.decision import Climatology, IntensitySlot
from wattmesh.policies.forecast.climatology import DAY, beyond_at

MOST_EXTENSION = 1000
"""Slots that an extension may have; longer ones are coarser, so that a far deadline stays cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizon:
    """Intensity slots from now to an end.

    Attributes:
        reach: how far the forecast itself goes.
        extended: how the rest was filled, for a sentence; "" when the forecast reaches the end.
    """

    slots: tuple[IntensitySlot, ...]
    reach: datetime
    extended: str = ""


def to_end(
    slots: Sequence[IntensitySlot],
    now: datetime,
    end: datetime,
    climatology: Climatology | None = None,
) -> Horizon:
    """Cut `slots` to [now, end) and extend them to `end` where they stop short.

    Beyond the forecast each moment goes back to the usual value of its hour, where that is known.
    Else it takes the value of the same hour of the forecast's last day; a forecast shorter than a
    day gives its mean instead. Empty when `end` is not after `now`, or when no slot holds `now`.

    Args:
        slots: the running one and the forecast.
        now: begin.
        end: of the horizon.
        climatology: of the same series; None when it is not known.
    """
    return SlotsAhead(slots, now, climatology).to_end(end)


class SlotsAhead:
    """The slots from now on, which horizons with different ends share: `to_end` for many ends."""

    def __init__(
        self,
        slots: Sequence[IntensitySlot],
        now: datetime,
        climatology: Climatology | None = None,
        furthest: datetime | None = None,
    ) -> None:
        """Keep what `to_end` takes; nothing is worked out before it is asked for.

        Args:
            slots: the running one and the forecast.
            now: begin.
            climatology: of the same series; None when it is not known.
            furthest: an end that will be asked for; further ones may be asked for too.
        """
        self._slots, self._now, self._climatology = slots, now, climatology
        self._known = between(slots, now, slots[-1].end) if slots else ()
        self._furthest = furthest
        self._shared = self._known

    @property
    def shared(self) -> tuple[IntensitySlot, ...]:
        """The slots that horizons have in common, as far as is known by now; the same objects."""
        return self._shared

    def to_end(self, end: datetime) -> Horizon:
        """Give the horizon with this end."""
        now, known = self._now, self._known
        if end <= now or not known or known[0].start > now:
            return Horizon(slots=(), reach=now)
        reach = known[-1].end
        if reach >= end:
            return Horizon(slots=between(known, now, end), reach=end)
        daily = reach - self._slots[0].start >= DAY
        if self._climatology:
            rule = "the usual values of the hours"
        else:
            rule = "the values of its last day" if daily else "its mean"
        return Horizon(slots=self._extended(end, reach), reach=reach, extended=rule)

    def _extended(self, end: datetime, reach: datetime) -> tuple[IntensitySlot, ...]:
        """Fill [reach, end) in steps of the last slot's length, or longer."""
        last = self._slots[-1]
        if not self._climatology and reach - self._slots[0].start < DAY:
            mean = IntensitySlot(start=reach, end=end, g_per_kwh=mean_g_per_kwh(self._slots))
            return (*self._known, mean)
        length = last.end - last.start
        step = max(length, (end - reach) / MOST_EXTENSION)
        if step > length:  # so far that steps are longer than those of nearer ends
            return (*self._known, *self._steps(reach, end, step))
        whole = len(self._known) + (end - reach) // step
        if whole > len(self._shared):
            self._share(end, reach, step)
        at = reach + (end - reach) // step * step
        return (*self._shared[:whole], *self._steps(at, end, step))

    def _share(self, end: datetime, reach: datetime, step: timedelta) -> None:
        """Make the slots of whole steps, as far as the furthest end that is known to be asked."""
        furthest = max(end, self._furthest or end)
        count = min(MOST_EXTENSION, (furthest - reach) // step)
        self._shared = (*self._known, *self._steps(reach, reach + count * step, step))

    def _steps(self, start: datetime, end: datetime, step: timedelta) -> Iterator[IntensitySlot]:
        """Give the steps of [start, end); the last is cut at `end`."""
        usual, slots = self._climatology, self._slots
        reach, at = slots[-1].end, start
        starts = [slot.start for slot in slots] if usual is None else []
        while at < end:
            until = min(end, at + step)
            if usual is not None:
                yield beyond_at(usual, slots[-1], at, until)
            else:
                middle = at + (until - at) / 2
                days = (middle - reach) // DAY + 1
                source = slots[bisect_right(starts, middle - days * DAY) - 1]
                yield IntensitySlot(start=at, end=until, g_per_kwh=source.g_per_kwh)
            at = until


def between(
    slots: Sequence[IntensitySlot], start: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Cut slots that follow each other to [start, end); those that are not cut stay the same."""
    first = bisect_right(slots, start, key=lambda each: each.end)
    until = bisect_left(slots, end, lo=first, key=lambda each: each.start)
    found = list(slots[first:until])
    for place in {0, len(found) - 1} if found else ():
        slot = found[place]
        if slot.start < start or slot.end > end:
            found[place] = replace(slot, start=max(slot.start, start), end=min(slot.end, end))
    return tuple(found)


def mean_g_per_kwh(slots: Sequence[IntensitySlot]) -> float:
    """Mean intensity by time."""
    return mean_by_time(slots, [slot.g_per_kwh for slot in slots])


def mean_by_time(slots: Sequence[IntensitySlot], values: Sequence[float]) -> float:
    """Mean of a value for each slot, by time."""
    weights = [(slot.end - slot.start).total_seconds() for slot in slots]
    weighted = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return weighted / sum(weights)


class JoinedSlots:
    """Joins slots into one, and gives the same one when the same slots are joined again."""

    def __init__(self) -> None:
        """Nothing is joined yet."""
        self._known: dict[tuple[int, int], tuple[IntensitySlot, IntensitySlot, IntensitySlot]] = {}

    def one(self, slots: Sequence[IntensitySlot]) -> IntensitySlot:
        """Join slots that follow each other; between the same two there are always the same."""
        first, last = slots[0], slots[-1]
        # Objects that are kept: no other one has their id.
        key = (id(first), id(last))
        if key not in self._known:
            self._known[key] = (first, last, _one(slots))
        return self._known[key][2]


def _one(slots: Sequence[IntensitySlot]) -> IntensitySlot:
    """Join slots into one; it has quantiles where all of them have."""
    if len(slots) == 1:
        return slots[0]
    return IntensitySlot(
        start=slots[0].start,
        end=slots[-1].end,
        g_per_kwh=mean_g_per_kwh(slots),
        low_g_per_kwh=_mean(slots, [slot.low_g_per_kwh for slot in slots]),
        high_g_per_kwh=_mean(slots, [slot.high_g_per_kwh for slot in slots]),
    )


def _mean(slots: Sequence[IntensitySlot], values: Sequence[float | None]) -> float | None:
    """Mean by time; None where a value is not known."""
    known = [each for each in values if each is not None]
    return mean_by_time(slots, known) if len(known) == len(values) else None
