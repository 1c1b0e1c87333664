"""The grid further ahead than a forecast knows anything: its usual day. Pure, plain Python.

A forecast for the day after tomorrow still leans on the weather of today, and by the third day it
leans wrongly: a plan that reaches over two weeks then waits for clean days that are not to come, or
fears dirty ones. So a forecast is led over, as it looks further ahead, into the mean of each hour
of the day over the last weeks, the newer the more (docs/replay.md has what that is worth).

Invariant: only values handed in are used; scaling them all scales the answer; what is not known
takes no part.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from wattmesh.policies.decision import IntensitySlot

BELIEVED = timedelta(hours=24)
"""Up to here the forecast alone counts."""

FADES = timedelta(hours=48)
"""Beyond, e^-1 of its weight is left after each of these."""

MEMORY = timedelta(days=30)
"""A day counts e^-1 of yesterday when it is so much older: a season goes, the weather averages."""

OLDEST = timedelta(days=120)
"""Days before are not looked at."""

HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Recorded intervals that follow each other, the newest last; NaN where unknown."""

    start: datetime
    step: timedelta
    values: Sequence[float]

    @property
    def end(self) -> datetime:
        """When the newest is over."""
        return self.start + len(self.values) * self.step


def usual_day(past: Past) -> tuple[float, ...] | None:
    """Give the mean of each hour of the day (UTC), newer days counting more.

    Returns:
        24 values in g/kWh; None while some hour was never seen.
    """
    sums, weights = [0.0] * HOURS, [0.0] * HOURS
    first = max(0, len(past.values) - OLDEST // past.step)
    age_days = (len(past.values) - first) * past.step / timedelta(days=1)
    step_days = past.step / timedelta(days=1)
    hour = (past.start + first * past.step).astimezone(UTC)
    at_h = hour.hour + hour.minute / 60
    step_h = past.step / timedelta(hours=1)
    for n, value in enumerate(past.values[first:]):
        if math.isfinite(value):
            weight = math.exp(-(age_days - n * step_days) / (MEMORY / timedelta(days=1)))
            which = int(at_h + n * step_h) % HOURS
            sums[which] += weight * value
            weights[which] += weight
    if not all(weights):
        return None
    return tuple(total / weight for total, weight in zip(sums, weights, strict=True))


def lengthened(
    slots: Sequence[IntensitySlot], past: Past, now: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Lead a forecast over into the usual day, and on to `end`.

    Args:
        slots: the running slot first, without gaps; at least one.
        past: what was recorded; without a whole day the forecast is given back as it is.
        now: aware.
        end: how far to go.

    Returns:
        Slots without quantiles where the usual day takes part.
    """
    usual = usual_day(past)
    if usual is None:
        return tuple(slots)
    found: list[IntensitySlot] = []
    for slot in slots:
        weight = _weight(slot.start - now)
        like = usual[slot.start.astimezone(UTC).hour]
        mixed = weight * slot.g_per_kwh + (1.0 - weight) * like
        found.append(
            slot
            if weight >= 1.0
            else replace(slot, g_per_kwh=mixed, low_g_per_kwh=None, high_g_per_kwh=None)
        )
    last, step = found[-1], max(past.step, timedelta(hours=1))
    at = last.end
    while at < end:
        value = beyond(usual, last, at, step)
        found.append(IntensitySlot(start=at, end=at + step, g_per_kwh=value))
        at += step
    return tuple(found)


def beyond(usual: Sequence[float], last: IntensitySlot, at: datetime, step: timedelta) -> float:
    """Give the intensity at a moment after the last slot that is known.

    What that slot is off from the usual day fades like a forecast.

    Args:
        usual: 24 values.
        last: the slot that is known.
        at: a moment after it.
        step: how long the value is to hold.
    """
    off = last.g_per_kwh - usual[last.start.astimezone(UTC).hour]
    middle = at + step / 2
    left = math.exp(-(middle - last.end) / FADES)
    return max(0.0, usual[middle.astimezone(UTC).hour] + off * left)


def _weight(lead: timedelta) -> float:
    """Share of the forecast in what is shown so far ahead."""
    return math.exp(-max(timedelta(), lead - BELIEVED) / FADES)
