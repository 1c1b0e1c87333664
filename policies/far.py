"""The grid further ahead than any forecast reaches: days like the last weeks' days. Pure.

A forecast is the mean of what may come, and flatter the further ahead; a plan that took it for the
grid would think that neither very clean nor very dirty hours come any more, and would price a
token wrongly. So far ahead the plan is shown real days of the last weeks instead, of the same
weekday, one from each week in turn: their spread is what a token will have to be bought from.

Invariant: only values handed in are used; scaling them all scales the answer; a day that is not
known takes the forecast's place nowhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot

BELIEVED = timedelta(hours=48)
"""Up to here the forecast alone counts."""

FADES = timedelta(hours=36)
"""Beyond, e^-1 of its weight is left after each of these."""

WEEK = timedelta(days=7)
DAY = timedelta(days=1)
WEEKS = 5
"""Weeks whose days are shown in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """Recorded intervals, the newest last; NaN where unknown."""

    start: datetime
    step: timedelta
    values: Sequence[float]

    def at(self, moment: datetime) -> float | None:
        """Give the value that held at a moment; None when it is not known."""
        index = (moment - self.start) // self.step
        if not 0 <= index < len(self.values) or not math.isfinite(self.values[index]):
            return None
        return self.values[index]


def lengthened(
    slots: Sequence[IntensitySlot], past: Past, now: datetime, end: datetime
) -> tuple[IntensitySlot, ...]:
    """Lead a forecast over into recorded days, and on to `end`.

    Args:
        slots: the running slot first, without gaps; at least one.
        past: at least a week, or the forecast is given back as it is.
        now: aware.
        end: how far to go.
    """
    found: list[IntensitySlot] = []
    for slot in slots:
        weight = _weight(slot.start - now)
        like = _like(past, slot.start, now) if weight < 1.0 else None
        if like is None:
            found.append(slot)
            continue
        value = weight * slot.g_per_kwh + (1.0 - weight) * like
        found.append(IntensitySlot(start=slot.start, end=slot.end, g_per_kwh=value))
    step = max(past.step, timedelta(hours=1))
    at = found[-1].end
    while at < end:
        like = _like(past, at, now)
        if like is None:
            break
        found.append(IntensitySlot(start=at, end=at + step, g_per_kwh=like))
        at += step
    return tuple(found)


def _weight(lead: timedelta) -> float:
    """Share of the forecast in what is shown so far ahead."""
    return math.exp(-max(timedelta(), lead - BELIEVED) / FADES)


def _like(past: Past, moment: datetime, now: datetime) -> float | None:
    """Give the value of the same hour and weekday of one of the last weeks; None when unknown."""
    ahead = max(0, (moment - now) // DAY)
    nearest = ahead // 7 + 1
    for turn in range(WEEKS):
        value = past.at(moment - WEEK * (nearest + (ahead + turn) % WEEKS))
        if value is not None:
            return value
    return None
