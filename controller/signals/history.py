"""The stored history of a signal laid on its grid, and the plain profile that follows. Pure.

Invariant: only measured or estimated values are history, and missing ones are NaN; a profile has no
values for intervals of the history.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.forecast.anchored import anchored_profile
from wattmesh.telemetry.carbon import CarbonPoint, Series
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

KNOWN = (Quality.MEASURED, Quality.ESTIMATED)

PROFILE_DAYS = timedelta(days=9)
"""How much of the past a plain profile uses, with a day to spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesHistory:
    """Consecutive intervals of a series, oldest first, NaN where nothing is known."""

    start: datetime
    end: datetime
    values: tuple[float, ...]


def history_of(points: Sequence[CarbonPoint], series: Series) -> SeriesHistory | None:
    """Lay the known values on the grid of the series; None when there are none.

    Points whose length differs from the series' are left out: they have an older granularity.
    """
    known: dict[int, float] = {}
    for point in points:
        place = index_at(series.origin, series.interval_s, point.start)
        whole = border(series.origin, series.interval_s, place + 1) == point.end
        if point.quality in KNOWN and whole:
            known[place] = point.g_per_kwh
    if not known:
        return None
    first, last = min(known), max(known)
    return SeriesHistory(
        start=border(series.origin, series.interval_s, first),
        end=border(series.origin, series.interval_s, last + 1),
        values=tuple(known.get(each, math.nan) for each in range(first, last + 1)),
    )


def profile_slots(
    history: SeriesHistory, series: Series, now: datetime, reach: timedelta
) -> tuple[IntensitySlot, ...]:
    """Forecast by the anchored profile, from the interval that holds `now` until `now + reach`.

    Empty when less than a day is known. No value is below the lowest of the history.
    """
    per_day = max(1, round(series.day_s / series.interval_s))
    steps = math.ceil((now + reach - history.end).total_seconds() / series.interval_s)
    values = anchored_profile(history.values, steps=max(0, steps), per_day=per_day) or ()
    least = min(each for each in history.values if not math.isnan(each))
    first = index_at(series.origin, series.interval_s, history.end)
    slots = []
    for place, value in enumerate(values, first):
        end = border(series.origin, series.interval_s, place + 1)
        if end > now:
            start = border(series.origin, series.interval_s, place)
            slots.append(IntensitySlot(start=start, end=end, g_per_kwh=max(value, least)))
    return tuple(slots)
