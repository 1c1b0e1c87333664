"""Recorded carbon series with day-ahead forecasts of wind, sun and weather, read from CSV files.

A file is one when its header has `carbon_direct_g_per_kwh` and some `forecast_*` column. Each
zone's last six months are scored, everything before trains. Invariant: what belongs to a day is
known from 18:00 UTC of the day before and not earlier; whether a row carries the forecasts of its
own hour or those of 24 h later is found out on the training months alone.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.trace import MOST_BYTES
from wattmesh.named_file import read_named
from wattmesh.policies.forecast.exogenous import Panel
from wattmesh.telemetry.exogenous import ExogenousKind

Array = NDArray[np.float64]

TARGET = "carbon_direct_g_per_kwh"
BEFORE = "carbon_unstated_g_per_kwh"
"""Another observation of the same zone: where the target starts late, its shape trains."""
RIVAL = "dacf_forecast_g_per_kwh"
COLUMNS: Mapping[str, ExogenousKind] = {
    "forecast_wind_mwh": ExogenousKind.WIND,
    "forecast_solar_mwh": ExogenousKind.SOLAR,
    "forecast_load_mwh": ExogenousKind.LOAD,
    "forecast_wind_speed_m_per_s": ExogenousKind.WIND_SPEED,
    "forecast_dswrf_w_per_m2": ExogenousKind.RADIATION,
    "forecast_temperature_k": ExogenousKind.TEMPERATURE,
    "forecast_dewpoint_k": ExogenousKind.DEW_POINT,
    "forecast_precipitation_mm": ExogenousKind.PRECIPITATION,
}
SEEN_IN: Mapping[str, tuple[str, float]] = {
    "forecast_wind_mwh": ("wind_mwh", 1.0),
    "forecast_solar_mwh": ("solar_mwh", 1.0),
    "forecast_wind_speed_m_per_s": (BEFORE, -1.0),
    "forecast_dswrf_w_per_m2": (BEFORE, -1.0),
}
"""What a forecast must agree with, and whether it rises or falls with it: places it in time."""
SCORED_MONTHS = 6
KNOWN_H = 6
"""The forecasts of a day are known so many hours before it begins."""
DAY = 24
LEAST_DAYS = 240
MOST_DAYS = 3660
LEAST_PAIRS = 24
OVERLAP = 60 * DAY
"""Hours by which the other observation is brought to the target's level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherZone:
    """One file, hour by hour from a midnight on.

    Attributes:
        target, other, rival: g/kWh, NaN where unknown: what is scored, another observation of it
            for the time before it began, and DACF's forecast of it.
        panel: the exogenous forecasts. shift_h: by how many hours their rows were moved.
        scored: the first scored hour, a midnight.
    """

    file: str
    zone: str
    target: Array
    other: Array
    rival: Array
    panel: Panel
    shift_h: int
    scored: int

    @property
    def start(self) -> datetime:
        """When the first hour starts."""
        return self.panel.start

    def hour(self, at: datetime) -> int:
        """Count the whole hours from the start."""
        return int((at - self.start) // timedelta(hours=1))

    def known(self, origin: int) -> Array | None:
        """Give the hours before `origin` as they could be known then; None without any target.

        Where the target had not begun, the other observation takes its place, brought to its level
        by what is known of both.
        """
        target, other = self.target[:origin], self.other[:origin]
        both = np.flatnonzero(np.isfinite(target) & np.isfinite(other))[-OVERLAP:]
        told = np.isfinite(target)
        if told.all() or not np.isfinite(other).any():
            return target if told.any() else None
        if len(both) < LEAST_PAIRS:
            return None
        slope, offset = np.polyfit(other[both], target[both], 1)
        first = int(np.flatnonzero(told)[0])
        early = np.maximum(slope * other[:first] + offset, 1e-3 * float(np.nanmean(target)))
        return np.concatenate([early, target[first:]])


def is_weather(path: Path) -> bool:
    """Say whether a file's header is of this kind."""
    try:
        names = set(_rows(path).fieldnames or ())
    except InputInvalid:
        return False
    return TARGET in names and bool(names & set(COLUMNS))


def weather_files(given: Path) -> Mapping[str, WeatherZone]:
    """Read a file, or every such file of a folder: zones by name.

    Raises:
        InputInvalid: it cannot be read, or holds no such file.
    """
    paths = [given]
    if given.is_dir():
        paths = [*given.glob("*.csv"), *given.glob("*.csv.gz")]
        paths = [path for path in sorted(paths) if is_weather(path)]
    zones = {zone.zone: zone for zone in map(read_weather, paths)}
    if not zones:
        raise InputInvalid(f"{given} holds no CSV file with {TARGET} and forecast_* columns")
    return zones


def read_weather(path: Path) -> WeatherZone:
    """Read one file.

    Raises:
        InputInvalid: it cannot be read, or is too short to learn from; the message says why.
    """
    try:
        rows = list(_rows(path))
        start, places, hours = _laid_out(path, [row["timestamp_utc"] for row in rows])
    except (csv.Error, KeyError, ValueError) as error:
        raise InputInvalid(f"{path} is not a series with exogenous forecasts: {error}") from error
    zones = {row.get("zone") or path.name for row in rows}
    if len(zones) != 1 or TARGET not in rows[0]:
        raise InputInvalid(f"{path} needs the column {TARGET} and one zone, not {sorted(zones)}")
    names = [name for name in rows[0] if name and name not in ("zone", "timestamp_utc")]
    table = {name: np.full(hours, np.nan) for name in names}
    for place, row in zip(places, rows, strict=True):
        for name in names:
            table[name][place] = _number(row[name])
    nothing = np.full(hours, np.nan)
    scored = _scored(start, hours)
    shift_h = _shift(table, scored)
    return WeatherZone(
        file=path.name,
        zone=zones.pop(),
        target=_positive(table[TARGET]),
        other=_positive(table.get(BEFORE, nothing)),
        rival=_positive(table.get(RIVAL, nothing)),
        panel=_panel(table, start, shift_h),
        shift_h=shift_h,
        scored=scored,
    )


def _rows(path: Path) -> "csv.DictReader[str]":
    try:
        data = read_named(path, MOST_BYTES)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as file:
                data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputInvalid(f"{path} cannot be read: {error}") from error
    if len(data) > MOST_BYTES:
        raise InputInvalid(f"{path} is larger than {MOST_BYTES >> 20} MiB; cut it")
    return csv.DictReader(io.StringIO(text, newline=""))


def _laid_out(path: Path, texts: list[str]) -> tuple[datetime, list[int], int]:
    """Give the first midnight, the place of each row in hours, and how many hours there are."""
    moments = []
    for text in texts:
        at = datetime.fromisoformat(text)
        moments.append(at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
    if not moments:
        raise InputInvalid(f"{path} has no rows")
    start = min(moments).replace(hour=0, minute=0, second=0, microsecond=0)
    places = [(moment - start) / timedelta(hours=1) for moment in moments]
    if any(place != int(place) for place in places):
        raise InputInvalid(f"{path} has rows that do not start at a whole hour")
    hours = int(max(places)) + 1
    if not LEAST_DAYS * DAY <= hours <= MOST_DAYS * DAY:
        raise InputInvalid(
            f"{path} spans {hours / DAY:.0f} days; from {LEAST_DAYS} to {MOST_DAYS} are read"
        )
    return start, [int(place) for place in places], hours


def _scored(start: datetime, hours: int) -> int:
    """Give the hour of the midnight six months before the end."""
    months = _end_month(start, hours) - SCORED_MONTHS
    begin = datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)
    return round((begin - start).total_seconds() / 3600)


def _end_month(start: datetime, hours: int) -> int:
    """The month that the last hour lies in, plus one, counted from year 0."""
    last = datetime.fromtimestamp(start.timestamp() + (hours - 1) * 3600, UTC)
    return last.year * 12 + last.month


def _shift(table: Mapping[str, Array], scored: int) -> int:
    """Find out by the training months how many hours later than its row a forecast is for: 0 or 24.

    One answer for the whole file: whoever made it labelled all its forecasts alike.
    """
    evidence = 0.0
    for name, (against, sign) in SEEN_IN.items():
        seen = table.get(against, table[TARGET]) if against == BEFORE else table.get(against)
        if name in table and seen is not None:
            said = table[name][:scored]
            at, later = (sign * _agreement(said, seen[:scored], by) for by in (0, DAY))
            evidence += later - at
    return DAY if evidence > 0 else 0


def _agreement(said: Array, seen: Array, by: int) -> float:
    """Correlation of changes from a day to the next; 0 where too little is known."""
    later, then = said[: len(said) - by], seen[by:]
    x, y = later[DAY:] - later[:-DAY], then[DAY:] - then[:-DAY]
    both = np.isfinite(x) & np.isfinite(y)
    if both.sum() < 30 * DAY or x[both].std() < 1e-9 or y[both].std() < 1e-9:
        return 0.0
    return float(np.corrcoef(x[both], y[both])[0, 1])


def _panel(table: Mapping[str, Array], start: datetime, shift_h: int) -> Panel:
    """Move the forecasts to the hours they are for; each day's are known the evening before."""
    names = [name for name in COLUMNS if name in table]
    hours = len(table[TARGET])
    values = np.full((hours + shift_h, len(names)), np.nan)
    for column, name in enumerate(names):
        values[shift_h:, column] = table[name]
    days = np.arange(hours + shift_h) // DAY
    known_at = np.where(np.isfinite(values), (days * DAY - KNOWN_H)[:, None], np.inf)
    kinds = tuple(COLUMNS[name] for name in names)
    return Panel(start=start, kinds=kinds, values=values, known_at=known_at)


def _number(text: str | None) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")


def _positive(values: Array) -> Array:
    """An average intensity is never zero: a zero is a hole."""
    return np.where(values > 0, values, np.nan)
