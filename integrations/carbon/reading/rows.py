"""From a provider's rows to points: what every JSON provider's reading has in common.

Pure. Invariant: each interval once, oldest first, on the series' own grid; a row that cannot be
used is one sentence and costs only itself.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.integrations.carbon.reading.believed import Judge, refusal
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

ORIGIN = datetime(2018, 1, 1, tzinfo=UTC)
"""Hours and their even parts begin at full hours of UTC, so any full hour serves."""

CENTURY = range(2000, 2100)
"""Years that a time can be of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One interval as the provider told it, in g/kWh, not judged yet."""

    start: datetime
    g_per_kwh: float | None
    quality: Quality
    issued_at: datetime
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Rows that could be read, and sentences about those that could not."""

    rows: tuple[Row, ...] = ()
    refused: tuple[str, ...] = ()


def joined(readings: Iterable[Reading]) -> Reading:
    """Put the answers to several requests together, in their order."""
    several = tuple(readings)
    return Reading(
        rows=tuple(row for each in several for row in each.rows),
        refused=tuple(dict.fromkeys(why for each in several for why in each.refused)),
    )


def batch(
    reading: Reading, *, signal: Signal, step: timedelta, now: datetime, judged: bool = True
) -> CarbonBatch:
    """Turn rows into points.

    An interval that was told twice, at the end of one request and at the begin of the next, is
    taken as it was told last.

    Args:
        reading: what was told.
        signal: identity of the series.
        step: length of its intervals.
        now: when it was heard; no point is issued later.
        judged: compare values with those before (`believed.Judge`); a forecast is judged value by
            value, because it may well be right about a fall.
    """
    told: dict[datetime, Row] = {}
    refused = list(reading.refused)
    for row in reading.rows:
        if (row.start - ORIGIN) % step:
            refused.append(refusal(row.start, f"does not begin an interval of {step}"))
        else:
            told[row.start] = row
    judge, points = Judge(signal.kind), []
    for start in sorted(told):
        row = told[start]
        judge = judge if judged else Judge(signal.kind)
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
    """Read an ISO 8601 time of this century that says its zone; None when it is none."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    # Near the ends of the calendar an offset or an interval more would overflow.
    return at.astimezone(UTC) if at.tzinfo and at.year in CENTURY else None


def number(row: Mapping[str, Any], name: str) -> tuple[float | None, str]:
    """Read a number: (it, ""), (None, "") when it is null or left out, else (None, why not)."""
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
    """Give the begin of the interval that holds `at`."""
    at = at.astimezone(UTC)
    return at - (at - ORIGIN) % step


def stamp(at: datetime) -> str:
    """Write a moment as all providers read it: `2026-11-01T00:00:00Z`."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
