"""Budget periods in the site's time zone: where each begins and ends, and what it is called. Pure.

Invariant: periods of one kind follow each other without a gap or an overlap, through every change
of daylight saving time.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.slots import midnight

FIRST_YEAR, LAST_YEAR = 1970, 2999
"""Months outside have no report: local time cannot be computed at the calendar's ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """One day, week, month or year, half-open, with the name that people give it."""

    name: str
    start: datetime
    end: datetime


def period_of(moment: datetime, kind: str, timezone: str) -> Period:
    """Give the period that contains `moment`; `kind`: day | week | month | year."""
    zone = ZoneInfo(timezone)
    today = moment.astimezone(zone).date()
    first, after = _first_day_and_day_after(today, kind)
    return Period(
        name=_name(first, kind),
        start=midnight(first, timezone),
        end=midnight(after, timezone),
    )


def month_named(name: str, timezone: str) -> Period:
    """Give the month of a name like `2026-10`.

    Raises:
        InputInvalid: the name is no month.
    """
    try:
        first = date.fromisoformat(f"{name}-01")
        if not FIRST_YEAR <= first.year <= LAST_YEAR:
            raise ValueError
        return period_of(midnight(first, timezone), "month", timezone)
    except (ValueError, OverflowError):
        raise InputInvalid(f"{name!r} is no month; write one like 2026-10") from None


def period_before(moment: datetime, kind: str, timezone: str) -> Period:
    """Give the newest period that has ended at `moment`."""
    running = period_of(moment, kind, timezone)
    return period_of(running.start - timedelta(seconds=1), kind, timezone)


def _first_day_and_day_after(today: date, kind: str) -> tuple[date, date]:
    if kind == "day":
        return today, today + timedelta(days=1)
    if kind == "week":
        monday = today - timedelta(days=today.weekday())
        return monday, monday + timedelta(days=7)
    if kind == "month":
        first = today.replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)
    first = today.replace(month=1, day=1)
    return first, first.replace(year=first.year + 1)


def _name(first: date, kind: str) -> str:
    """Write a period's name without its zone: `2026-11-20`, `week from ...`, `2026-11`, `2026`."""
    words = {"day": f"{first}", "week": f"week from {first}", "month": f"{first:%Y-%m}"}
    return words.get(kind, f"{first:%Y}")
