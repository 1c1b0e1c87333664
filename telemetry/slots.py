"""Borders of fixed intervals and of local days; every border in the product is computed here.

Invariant: one rounding rule, so a carbon interval and the ledger slot that it prices have the same
borders to the microsecond, and a day ends where the next one begins.
"""

import math
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY = timedelta(days=1)


def border(origin: datetime, interval_s: float, index: int) -> datetime:
    """Return the start of interval `index`; interval 0 starts at `origin`."""
    return origin + timedelta(seconds=index * interval_s)


def index_at(origin: datetime, interval_s: float, at: datetime) -> int:
    """Return the index of the interval that contains `at`."""
    index = math.floor((at - origin).total_seconds() / interval_s)
    while border(origin, interval_s, index) > at:
        index -= 1
    while border(origin, interval_s, index + 1) <= at:
        index += 1
    return index


def midnight(day: date, timezone: str) -> datetime:
    """Return the start of a day in a time zone, in UTC (zone arithmetic ignores DST changes)."""
    return datetime.combine(day, time(), ZoneInfo(timezone)).astimezone(UTC)


def local_day(at: datetime, timezone: str) -> tuple[datetime, datetime]:
    """Return the half-open local day that contains `at`: 23 to 25 hours where clocks change.

    Raises:
        ZoneInfoNotFoundError: this machine does not know the zone.
    """
    borders = _midnights(timezone, at.astimezone(UTC).date())
    index = next(number for number, each in enumerate(borders) if each > at)
    return borders[index - 1], borders[index]


@lru_cache(maxsize=256)
def _midnights(timezone: str, day: date) -> tuple[datetime, ...]:
    """The midnights of a zone around a UTC day; no zone is more than a day from UTC.

    A day that a zone skipped (Samoa, December 2011) starts when the next day does, and counts once.
    """
    found = {midnight(day + number * DAY, timezone) for number in range(-2, 4)}
    return tuple(sorted(found))
