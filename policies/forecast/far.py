"""The grid further ahead than a forecast knows anything: its usual day. Pure, plain Python.

A forecast for the day after tomorrow still leans on the weather of today, and by the third day it
leans wrongly: a plan that reaches over two weeks then waits for clean days that are not to come, or
fears dirty ones. So a forecast is led over, as it looks further ahead, into the mean of each hour
of the day over weeks or months, the newer the more (docs/replay.md has what that is worth). How far
hours of the last weeks lay from their usual day says what band is to be expected around it.

Invariant: only values handed in are used; scaling them all scales the answer; what is not known
takes no part.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import truediv

from wattmesh.policies.decision import IntensitySlot, UsualDay
from wattmesh.policies.forecast.memory import weights_by_age

BELIEVED = timedelta(hours=24)
"""Up to here the forecast alone counts."""

FADES = timedelta(hours=48)
"""Beyond, e^-1 of its weight is left after each of these."""

OLDEST = timedelta(days=365)
"""Days before are not looked at."""

BAND_OF = timedelta(days=60)
"""Days whose distance from the usual day makes the band."""

HOURS = 24

LOW, HIGH = 0.1, 0.9
"""Quantiles of the band."""


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


def usual_day(past: Past) -> UsualDay | None:
    """Give the mean of each hour of the day (UTC), newer days counting more, and the band.

    How much more is learned from the past itself (memory.py).

    Returns:
        None while some hour was never seen.
    """
    values = list(_by_hour(past))
    weights = weights_by_age(_days(values))
    sums, totals = [0.0] * HOURS, [0.0] * HOURS
    for hour, age, value in values:
        sums[hour] += weights[age] * value
        totals[hour] += weights[age]
    if not all(totals):
        return None
    hours = tuple(map(truediv, sums, totals))
    near = BAND_OF / timedelta(days=1)
    shares = sorted(
        value / hours[hour] for hour, age, value in values if age < near and hours[hour] > 0
    )
    low, high = (shares[int(each * (len(shares) - 1))] if shares else 1.0 for each in (LOW, HIGH))
    return UsualDay(hours=hours, low=min(1.0, low), high=max(1.0, high))


def _by_hour(past: Past) -> Iterator[tuple[int, int, float]]:
    """Give hour of the day, whole days of age and value of what is known, the oldest first."""
    first = max(0, len(past.values) - OLDEST // past.step)
    count, per_day = len(past.values) - first, max(1, timedelta(days=1) // past.step)
    step_h = past.step / timedelta(hours=1)
    begin = (past.start + first * past.step).astimezone(UTC)
    at_h = begin.hour + begin.minute / 60
    for n, value in enumerate(past.values[first:]):
        if math.isfinite(value):
            yield int(at_h + n * step_h) % HOURS, (count - 1 - n) // per_day, value


def _days(values: Sequence[tuple[int, int, float]]) -> list[float]:
    """Give the mean of each day, the newest last; a day without a value takes the one before."""
    sums: dict[int, list[float]] = {}
    for _, age, value in values:
        sums.setdefault(age, []).append(value)
    found: list[float] = []
    for age in range(max(sums, default=-1), -1, -1):
        known = sums.get(age)
        found.append(math.fsum(known) / len(known) if known else found[-1])
    return found


def lengthened(
    slots: Sequence[IntensitySlot], usual: UsualDay, now: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Lead a forecast over into the usual day, and on to `end`.

    Args:
        slots: the running slot first, without gaps; at least one.
        usual: the usual day.
        now: aware.
        end: how far to go.
    """
    found = [_led(slot, usual, slot.start - now) for slot in slots]
    step = max(found[-1].end - found[-1].start, timedelta(hours=1))
    return (*found, *beyond(usual, found[-1], end, step))


def _led(slot: IntensitySlot, usual: UsualDay, lead: timedelta) -> IntensitySlot:
    """Mix the usual day into a slot, the more the further ahead."""
    weight = math.exp(-max(timedelta(), lead - BELIEVED) / FADES)
    if weight >= 1.0:
        return slot
    mixed = weight * slot.g_per_kwh + (1.0 - weight) * usual.at(slot.start)
    # Variances add up: what the forecast leaves open is the rest of a usual day's.
    return usual.slot(slot.start, slot.end, mixed, math.sqrt(1.0 - weight * weight))


def beyond(
    usual: UsualDay, last: IntensitySlot, end: datetime, step: timedelta
) -> Iterator[IntensitySlot]:
    """Go on after the last slot that is known; what it is off from the usual day fades.

    Its band is led over likewise into that of usual days.

    Args:
        usual: the usual day.
        last: the slot that is known.
        end: how far to go.
        step: length of the slots; the last is cut at `end`.
    """
    off = last.g_per_kwh - usual.at(last.start)
    known = 1.0 - usual.share(last) ** 2
    at = last.end
    while at < end:
        until = min(end, at + step)
        middle = at + (until - at) / 2
        left = math.exp(-(middle - last.end) / FADES)
        value = max(0.0, usual.at(middle) + off * left)
        yield usual.slot(at, until, value, math.sqrt(1.0 - known * left * left))
        at = until
