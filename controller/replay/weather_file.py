"""Recorded carbon series with day-ahead forecasts of wind, sun and weather, read from CSV files.

A file is one when its header has `carbon_direct_g_per_kwh` and some `forecast_*` column. Each
zone's last six months are scored, everything before trains. Invariant: what belongs to a day is
known from 18:00 UTC of the day before and not earlier; whether a row carries the forecasts of its
own hour or those of 24 h later is judged at each moment by what was known then (`weather_labels`).
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

from wattmesh.controller.replay.weather_labels import (
    DAY,
    KNOWN_H,
    Array,
    Counterpart,
    Judgement,
    judged,
    moved,
    moved_then,
    moves,
)
from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.trace import MOST_BYTES
from wattmesh.named_file import read_named
from wattmesh.policies.forecast.exogenous import Panel
from wattmesh.telemetry.exogenous import ExogenousKind

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
PRODUCTION = ("forecast_wind_mwh", "forecast_solar_mwh", "forecast_load_mwh")
"""Labelled alike, and apart from the columns of weather: another source makes them."""
SEEN_IN: Mapping[str, tuple[str, str]] = {
    "wind_mwh": ("forecast_wind_mwh", "forecast_wind_speed_m_per_s"),
    "solar_mwh": ("forecast_solar_mwh", "forecast_dswrf_w_per_m2"),
}
"""What is observed, and the forecasts of production and of weather that go with it."""
SCORED_MONTHS = 6
HOUR = timedelta(hours=1)
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
        start: when the first hour starts.
        names, said: the columns of exogenous forecasts, by row, shape (hours, columns).
        labels: what hours their rows were held to be for, and from when on, for each column.
        scored: the first scored hour, a midnight.
    """

    file: str
    zone: str
    target: Array
    other: Array
    rival: Array
    start: datetime
    names: tuple[str, ...]
    said: Array
    labels: tuple[tuple[Judgement, ...], ...]
    scored: int

    def panel(self, origin: int) -> Panel:
        """Give the forecasts, moved to the hours that they were held to be for at `origin`."""
        placed = [
            moved(column, moves(judgements, len(column), origin))
            for column, judgements in zip(self.said.T, self.labels, strict=True)
        ]
        values = np.stack(placed, axis=1)
        days = np.arange(len(values)) // DAY
        return Panel(
            start=self.start,
            kinds=tuple(COLUMNS[name] for name in self.names),
            values=values,
            known_at=np.where(np.isfinite(values), (days * DAY - KNOWN_H)[:, None], np.inf),
        )

    def labelled(self) -> str:
        """Say of each column by how many hours its rows were moved, and from which row on."""
        told = []
        for name, judgements in zip(self.names, self.labels, strict=True):
            each = [
                f"{one.shift_h} from {self.start + one.since * HOUR:%Y-%m-%d} "
                f"(known {self.start + one.known_at * HOUR:%Y-%m-%d %H:%M})"
                for one in judgements
            ]
            told.append(f"{name}: {', '.join(each) or 'undecided'}")
        return "; ".join(told)

    def hour(self, at: datetime) -> int:
        """Count the whole hours from the start."""
        return int((at - self.start) // HOUR)

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
    columns = tuple(name for name in COLUMNS if name in table)
    if not columns:
        raise InputInvalid(f"{path} has no forecast_* column that is known here")
    labels = _labels(table, columns)
    return WeatherZone(
        file=path.name,
        zone=zones.pop(),
        target=_positive(table[TARGET]),
        other=_positive(table.get(BEFORE, nothing)),
        rival=_positive(table.get(RIVAL, nothing)),
        start=start,
        names=columns,
        said=np.stack([table[name] for name in columns], axis=1),
        labels=tuple(labels[name in PRODUCTION] for name in columns),
        scored=_scored(start, hours),
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
    places = [(moment - start) / HOUR for moment in moments]
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


def _labels(
    table: Mapping[str, Array], columns: tuple[str, ...]
) -> Mapping[bool, tuple[Judgement, ...]]:
    """Judge the columns of production (True) and those of weather (False).

    Weather is held against what was observed of wind and sun, or else against the carbon that they
    save; production against what was observed, and against the weather where that has its place.
    """
    carbon = table[TARGET]
    if BEFORE in table:
        carbon = np.where(np.isfinite(table[BEFORE]), table[BEFORE], carbon)
    of_weather, of_production = [], []
    for observed, (_, weather) in SEEN_IN.items():
        if weather in table:
            seen = [Counterpart(said=table[weather], seen=carbon, sign=-1.0)]
            if observed in table:
                seen.insert(0, Counterpart(said=table[weather], seen=table[observed]))
            of_weather.append(seen)
    others = [table[name] for name in columns if name not in PRODUCTION]
    placed = judged(others, of_weather)
    for observed, (production, weather) in SEEN_IN.items():
        if production in table:
            said = table[production]
            against = [table[observed]] if observed in table else []
            if weather in table:
                against.append(moved_then(table[weather], placed))
            against = against or [-carbon]
            of_production += [[Counterpart(said=said, seen=each)] for each in against]
    ours = [table[name] for name in columns if name in PRODUCTION]
    return {False: placed, True: judged(ours, of_production)}


def _number(text: str | None) -> float:
    try:
        value = float(text or "nan")
    except ValueError:
        return float("nan")
    return value if np.isfinite(value) else float("nan")


def _positive(values: Array) -> Array:
    """An average intensity is never zero: a zero is a hole."""
    return np.where(values > 0, values, np.nan)
