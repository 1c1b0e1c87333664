"""Converts a provider's rows to points, for all JSON providers. Pure.

Invariant: each interval once, oldest first, on the grid of the series; an unusable row becomes one
sentence and does not affect the others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, refusal
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

ORIGIN = datetime(2018, 1, 1, tzinfo=UTC)
"""Origin of the grid: intervals that divide an hour begin at full hours of UTC."""

CENTURY = range(2000, 2100)
"""Legal years of a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonRow:
    """One interval from the provider, in g/kWh, not checked yet."""

    start: datetime
    g_per_kwh: float | None
    quality: Quality
    issued_at: datetime
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRows:
    """The decoded rows, and sentences about malformed ones."""

    rows: tuple[CarbonRow, ...] = ()
    refused: tuple[str, ...] = ()


def joined(readings: Iterable[DecodedRows]) -> DecodedRows:
    """Concatenate the answers to several requests."""
    several = tuple(readings)
    return DecodedRows(
        rows=tuple(row for each in several for row in each.rows),
        refused=tuple(dict.fromkeys(why for each in several for why in each.refused)),
    )


def batch(
    reading: DecodedRows, *, signal: Signal, step: timedelta, now: datetime, judged: bool = True
) -> CarbonBatch:
    """Convert rows to points.

    Of an interval that occurs twice, at the end of one request and the start of the next, the last
    value counts.

    Args:
        reading: the decoded rows.
        signal: identity of the series.
        step: length of its intervals.
        now: when they were fetched; no point is issued later.
        judged: compare values with earlier ones (`PlausibilityFilter`); the values of a forecast
            are checked one by one, because it may rightly predict a fall.
    """
    told: dict[datetime, CarbonRow] = {}
    refused = list(reading.refused)
    for row in reading.rows:
        if (row.start - ORIGIN) % step:
            refused.append(refusal(row.start, f"does not begin an interval of {step}"))
        else:
            told[row.start] = row
    judge, points = PlausibilityFilter(signal.kind), []
    for start in sorted(told):
        row = told[start]
        judge = judge if judged else PlausibilityFilter(signal.kind)
        why = judge.fault(start, row.g_per_kwh)
        if why or row.g_per_kwh is None:
            refused.append(refusal(start, why))
            continue
        points.append(
            CarbonPoint(
                signal=signal,
                start=start,
                end=start + step,
                g_per_kwh=row.g_per_kwh,
                quality=row.quality,
                issued_at=min(row.issued_at, now),
                fetched_at=now,
                model=row.model,
            )
        )
    return CarbonBatch(points=tuple(points), refused=tuple(refused))


def moment(value: Any) -> datetime | None:
    """Parse an ISO 8601 time of this century with a zone; None when it is malformed."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Near the ends of the calendar arithmetic would overflow.
    return at.astimezone(UTC) if at.tzinfo and at.year in CENTURY else None


def number(row: Mapping[str, Any], name: str) -> tuple[float | None, str]:
    """Parse a number: (it, ""), (None, "") when it is null or missing, else (None, why not)."""
    value = row.get(name)
    if value is None:
        return None, ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None, f"{name} {str(value)[:40]!r} is not a number"
    try:
        return float(value), ""
    except OverflowError:
        return math.inf, ""


def floor(at: datetime, step: timedelta) -> datetime:
    """Return the start of the interval that contains `at`."""
    at = at.astimezone(UTC)
    return at - (at - ORIGIN) % step


def stamp(at: datetime) -> str:
    """Format a time for all providers: `2026-11-01T00:00:00Z`."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
