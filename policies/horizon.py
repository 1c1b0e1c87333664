"""The intensity that a plan counts on, from now to the deadline. Pure.

Invariant: slots follow each other without a gap, the first starts now, the last ends at the end
asked for; what lies beyond the forecast is filled by a rule that `extended` names.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from wattmesh.policies.decision import Climatology, IntensitySlot
from wattmesh.policies.forecast.climatology import DAY, beyond

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
    kept = between(slots, now, end)
    if not kept or kept[0].start > now or end <= now:
        return Horizon(slots=(), reach=now)
    reach = kept[-1].end
    if reach >= end:
        return Horizon(slots=kept, reach=reach)
    if climatology:
        step = max(slots[-1].end - slots[-1].start, (end - reach) / MOST_EXTENSION)
        extension = list(beyond(climatology, slots[-1], end, step))
        rule = "the usual values of the hours"
        return Horizon(slots=(*kept, *extension), reach=reach, extended=rule)
    daily = reach - slots[0].start >= DAY
    rule = "the values of its last day" if daily else "its mean"
    extension = _extension(slots, reach, end, daily=daily)
    return Horizon(slots=(*kept, *extension), reach=reach, extended=rule)


def between(
    slots: Sequence[IntensitySlot], start: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Cut `slots` to [start, end)."""
    return tuple(
        slot
        if start <= slot.start and slot.end <= end
        else replace(slot, start=max(slot.start, start), end=min(slot.end, end))
        for slot in slots
        if slot.end > start and slot.start < end
    )


def mean_g_per_kwh(slots: Sequence[IntensitySlot]) -> float:
    """Mean intensity by time."""
    return mean_by_time(slots, [slot.g_per_kwh for slot in slots])


def mean_by_time(slots: Sequence[IntensitySlot], values: Sequence[float]) -> float:
    """Mean of a value for each slot, by time."""
    weights = [(slot.end - slot.start).total_seconds() for slot in slots]
    weighted = sum(weight * value for weight, value in zip(weights, values, strict=True))
    return weighted / sum(weights)


def _extension(
    slots: Sequence[IntensitySlot], reach: datetime, end: datetime, *, daily: bool
) -> list[IntensitySlot]:
    """Fill [reach, end) in steps of the last slot's length, or longer."""
    if not daily:
        return [IntensitySlot(start=reach, end=end, g_per_kwh=mean_g_per_kwh(slots))]
    starts = [slot.start for slot in slots]
    step = max(slots[-1].end - slots[-1].start, (end - reach) / MOST_EXTENSION)
    filled: list[IntensitySlot] = []
    at = reach
    while at < end:
        until = min(end, at + step)
        middle = at + (until - at) / 2
        days = (middle - reach) // DAY + 1
        source = slots[bisect_right(starts, middle - days * DAY) - 1]
        filled.append(IntensitySlot(start=at, end=until, g_per_kwh=source.g_per_kwh))
        at = until
    return filled
