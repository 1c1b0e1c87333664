"""Recorded carbon series, read from a folder of CSV files, as hours without false values.

A file is a series when its header has `zone`, `timestamp_utc` and
`carbon_intensity_gco2eq_per_kwh` and no `generated_at_utc`; its step is what most rows keep.
Invariant: an hour is known only when every step in it is; a file that is no series, or too short to
score, is named with the reason, never silently left out.
"""

import csv
import gzip
import io
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from wattmesh.policies.forecast.series import Observed

VALUE = "carbon_intensity_gco2eq_per_kwh"
HOUR_S = 3600.0
SHORTEST_DAYS = 60
DAY_S = 86400.0
"""What a file must hold: a month to learn from, and a month to be scored on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One file: hours of one zone, oldest first."""

    file: str
    zone: str
    kind: str
    step_s: float
    hours: Observed

    @property
    def year(self) -> int:
        """The year that most of it lies in."""
        return (self.hours.start + (self.hours.end - self.hours.start) / 2).year


class NoSeriesError(Exception):
    """A file that cannot be scored; the message says why."""


def read(folder: Path) -> tuple[list[Recorded], dict[str, str]]:
    """Read every CSV of a folder: what can be scored, and of the others why not."""
    found: list[Recorded] = []
    skipped: dict[str, str] = {}
    for path in sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")]):
        try:
            found.append(_series(path))
        except (NoSeriesError, OSError, ValueError, csv.Error) as error:
            skipped[path.name] = str(error)
    return found, skipped


def _series(path: Path) -> Recorded:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows = csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline=""))
    names = set(rows.fieldnames or ())
    if "generated_at_utc" in names:
        raise NoSeriesError("holds issued forecasts, not a series")
    if not {"timestamp_utc", VALUE} <= names:
        raise NoSeriesError(f"has no columns timestamp_utc and {VALUE}")
    told: dict[datetime, float] = {}
    zones: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for row in rows:
        zones[row.get("zone") or path.name] += 1
        kinds[row.get("kind") or "average"] += 1
        told[_moment(row["timestamp_utc"])] = _value(row[VALUE])
    if len(zones) != 1 or len(kinds) != 1:
        raise NoSeriesError(f"mixes zones {sorted(zones)} or kinds {sorted(kinds)}")
    zone, kind = next(iter(zones)), next(iter(kinds))
    hours, step_s = _hourly(told, least=0.0 if kind == "marginal" else 1e-9)
    return Recorded(file=path.name, zone=zone, kind=kind, step_s=step_s, hours=hours)


def _moment(text: str) -> datetime:
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


def _value(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def _hourly(told: dict[datetime, float], least: float) -> tuple[Observed, float]:
    """Lay values on a grid from the first whole hour and take means of hours.

    A value below `least` is false: an average intensity is never zero.
    """
    if len(told) < 2:
        raise NoSeriesError("has fewer than two rows")
    moments = sorted(told)
    steps = Counter((after - before).total_seconds() for before, after in pairwise(moments))
    step_s = steps.most_common(1)[0][0]
    if HOUR_S % step_s != 0:
        raise NoSeriesError(f"has a step of {step_s:g} s, which does not divide an hour")
    first = moments[0].replace(minute=0, second=0, microsecond=0)
    first += timedelta(hours=1) if first < moments[0] else timedelta()
    count = round((moments[-1] - first).total_seconds() / step_s) + 1
    values = [float("nan")] * (count - count % round(HOUR_S / step_s))
    for at, value in told.items():
        index = (at - first).total_seconds() / step_s
        if index.is_integer() and 0 <= index < len(values) and value >= least:
            values[int(index)] = value
    hours = Observed(start=first, interval_s=step_s, values=values).coarse()
    if len(hours.values) < SHORTEST_DAYS * DAY_S / HOUR_S:
        days = len(hours.values) * HOUR_S / DAY_S
        raise NoSeriesError(f"holds {days:.0f} days; {SHORTEST_DAYS} are the least to score")
    return hours, step_s
