"""The grid's climatology: the usual intensity of each hour of the day, for far ahead. Pure Python.

A forecast for the day after tomorrow still leans on the weather of today, and by the third day it
leans wrongly: a plan over two weeks then waits for clean days that do not come, or fears dirty
ones. So a forecast fades, as it looks further ahead, into the mean of each hour of the day. A day
counts e^-1 of one that is 30 days newer. How far the hours of the last weeks lay from that mean
gives the band around it (docs/decisions/0043-one-rule-for-doubt.md: what other ways were worth).

Invariant: only values handed in are used; scaling them all scales the answer; unknown values take
no part.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from operator import truediv

from wattmesh.policies.decision import Climatology, IntensitySlot
from wattmesh.policies.forecast.series import Observed

DAY = timedelta(days=1)

BELIEVED = timedelta(hours=24)
"""Up to here the forecast alone counts."""

FADES = timedelta(hours=48)
"""Beyond, e^-1 of its weight is left after each of these."""

DECAY = timedelta(days=30)
"""A day counts e^-1 of one that is so much newer."""

OLDEST = timedelta(days=365)
"""Older days are left out."""

BAND_OF = timedelta(days=60)
"""The band is made of the hours of so many days."""

HOURS = 24

LOW, HIGH = 0.1, 0.9
"""Quantiles of the band."""


def climatology_of(observed: Observed) -> Climatology | None:
    """Give the mean of each hour of the day (UTC), newer days counting more, and the band.

    Returns:
        None while some hour was never seen.
    """
    values = list(_by_hour(observed))
    sums, totals = [0.0] * HOURS, [0.0] * HOURS
    for hour, age, value in values:
        weight = math.exp(-age * DAY / DECAY)
        sums[hour] += weight * value
        totals[hour] += weight
    if not all(totals):
        return None
    hours = tuple(map(truediv, sums, totals))
    near = BAND_OF / DAY
    shares = sorted(
        value / hours[hour] for hour, age, value in values if age < near and hours[hour] > 0
    )
    low, high = (shares[int(each * (len(shares) - 1))] if shares else 1.0 for each in (LOW, HIGH))
    return Climatology(hours=hours, low=min(1.0, low), high=max(1.0, high))


def _by_hour(observed: Observed) -> Iterator[tuple[int, int, float]]:
    """Give hour of the day, whole days of age and value of what is known, the oldest first."""
    values, step = observed.values, timedelta(seconds=observed.interval_s)
    first = max(0, len(values) - OLDEST // step)
    count, per_day = len(values) - first, max(1, DAY // step)
    step_h = step / timedelta(hours=1)
    begin = (observed.start + first * step).astimezone(UTC)
    at_h = begin.hour + begin.minute / 60
    for n, value in enumerate(values[first:]):
        if math.isfinite(value):
            yield int(at_h + n * step_h) % HOURS, (count - 1 - n) // per_day, value


def extended(
    slots: Sequence[IntensitySlot], climatology: Climatology, now: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Let a forecast fade into the climatology, and extend it to `end`.

    Args:
        slots: the running slot first, without gaps; at least one.
        climatology: of the same series.
        now: aware.
        end: how far to go.
    """
    found = [_faded(slot, climatology, slot.start - now) for slot in slots]
    step = max(found[-1].end - found[-1].start, timedelta(hours=1))
    return (*found, *beyond(climatology, found[-1], end, step))


def _faded(slot: IntensitySlot, climatology: Climatology, lead: timedelta) -> IntensitySlot:
    """Mix the climatology into a slot: the further ahead, the more."""
    weight = math.exp(-max(timedelta(), lead - BELIEVED) / FADES)
    if weight >= 1.0:
        return slot
    mixed = weight * slot.g_per_kwh + (1.0 - weight) * climatology.at(slot.start)
    # Variances add up: the forecast leaves open the rest of the climatology's.
    return climatology.slot(slot.start, slot.end, mixed, math.sqrt(1.0 - weight * weight))


def beyond(
    climatology: Climatology, last: IntensitySlot, end: datetime, step: timedelta
) -> Iterator[IntensitySlot]:
    """Extend a forecast after its last slot, whose distance from the climatology fades.

    Its band fades likewise into that of the climatology.

    Args:
        climatology: of the same series.
        last: the slot that is known.
        end: how far to go.
        step: length of the slots; the last is cut at `end`.
    """
    at = last.end
    while at < end:
        until = min(end, at + step)
        yield beyond_at(climatology, last, at, until)
        at = until


def beyond_at(
    climatology: Climatology, last: IntensitySlot, start: datetime, end: datetime
) -> IntensitySlot:
    """Give what `beyond` makes of one slot."""
    off = last.g_per_kwh - climatology.at(last.start)
    known = 1.0 - climatology.share(last) ** 2
    middle = start + (end - start) / 2
    left = math.exp(-(middle - last.end) / FADES)
    value = max(0.0, climatology.at(middle) + off * left)
    return climatology.slot(start, end, value, math.sqrt(1.0 - known * left * left))
