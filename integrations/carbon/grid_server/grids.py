"""Invented grids: each zone's true emissions, and a provider's knowledge of them at a moment.

A zone's intensity has a season, a day with its sun, a week, weather and noise, all functions of
zone and time: two servers agree, and so do two years' runs. Or it comes from a trace of the user.
Invariant: `truth` never changes; `reported` tends to it as the interval grows older.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.trace import Trace

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
MOST_KEPT = 1 << 18
"""Values kept in a cache; 30 MB."""


class Measure(StrEnum):
    """Which series of a zone."""

    DIRECT = "direct"
    LIFECYCLE = "lifecycle"
    MARGINAL = "marginal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a zone's direct average intensity moves. Shares are of `base_g_per_kwh`.

    Attributes:
        east_h: local sun time minus UTC, hours.
        sun, season, weekend: how deep noon, summer and weekends cut.
        weather: how far half a day of wind moves it either way.
    """

    base_g_per_kwh: float
    east_h: float = 0.0
    sun: float = 0.25
    season: float = 0.12
    weekend: float = 0.06
    weather: float = 0.20


ZONES: Mapping[str, Shape] = {
    "DE": Shape(base_g_per_kwh=390, east_h=1),
    "FR": Shape(base_g_per_kwh=60, sun=0.10),
    "GB": Shape(base_g_per_kwh=190, weather=0.35),
    "PL": Shape(base_g_per_kwh=700, east_h=1, sun=0.12, weather=0.08),
    "US-CAL-CISO": Shape(base_g_per_kwh=250, east_h=-8, sun=0.55),
    "US-MIDA-PJM": Shape(base_g_per_kwh=380, east_h=-5, sun=0.05, weather=0.05),
    "IN-WE": Shape(base_g_per_kwh=640, east_h=5, sun=0.08, weather=0.03),
    "CAISO_NORTH": Shape(base_g_per_kwh=260, east_h=-8, sun=0.50),
    "PSCO": Shape(base_g_per_kwh=480, east_h=-7, sun=0.20),
    "CISO": Shape(base_g_per_kwh=230, east_h=-8, sun=0.50),
    "NSW1": Shape(base_g_per_kwh=620, east_h=10, sun=0.35),
    "VIC1": Shape(base_g_per_kwh=760, east_h=10, sun=0.25),
    "NEM": Shape(base_g_per_kwh=600, east_h=10, sun=0.35),
    "WEM": Shape(base_g_per_kwh=480, east_h=8, sun=0.35),
    "PJM": Shape(base_g_per_kwh=370, east_h=-5, sun=0.05, weather=0.05),
}
"""Zones and regions as the providers spell them. The levels are invented."""


class ReportedValue(NamedTuple):
    """A provider's value of an interval. `estimated`: it is not measured yet."""

    g_per_kwh: float
    estimated: bool
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Ripening:
    """How a value becomes final with age, counted from the end of the interval.

    Attributes:
        measured_after: until then the value is estimated, off by up to `estimate_error`.
        final_after: until then it is measured, off by up to `first_error`; then it is the truth.
    """

    measured_after: timedelta = 2 * HOUR
    final_after: timedelta = 30 * HOUR
    estimate_error: float = 0.15
    first_error: float = 0.04


@dataclass(slots=True, kw_only=True)
class SimulatedGrid:
    """All zones of the server.

    Attributes:
        zones: by name; another name is an unknown zone.
        traces: recorded series of the user; they stand in place of the shape of their zone for
            the measure they are of.
    """

    zones: Mapping[str, Shape] = field(default_factory=lambda: dict(ZONES))
    traces: tuple[Trace, ...] = ()
    ripening: Ripening = field(default_factory=Ripening)
    _cache: dict[tuple[str, datetime, timedelta, Measure], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A trace brings its zone along."""
        traced = {trace.signal.zone: Shape(base_g_per_kwh=400) for trace in self.traces}
        self.zones = traced | dict(self.zones)

    def truth(
        self,
        zone: str,
        start: datetime,
        length: timedelta = HOUR,
        measure: Measure = Measure.DIRECT,
    ) -> float:
        """Return the final intensity of an interval in g/kWh, on which later answers agree.

        Whole grams, as providers print them, but for the marginal series.

        Raises:
            InputInvalid: no such zone, or the trace of the zone has no value there.
        """
        key = (zone, start, length, measure)
        if key not in self._cache:
            if len(self._cache) >= MOST_KEPT:
                self._cache.clear()
            self._cache[key] = self._compute(zone, start, length, measure)
        return self._cache[key]

    def reported(
        self,
        zone: str,
        start: datetime,
        now: datetime,
        length: timedelta = HOUR,
        measure: Measure = Measure.DIRECT,
    ) -> ReportedValue:
        """Return a provider's value at `now` for an interval that has begun."""
        truth = self.truth(zone, start, length, measure)
        end, ripe = start + length, self.ripening
        if now >= end + ripe.final_after:
            return ReportedValue(truth, False, end + ripe.final_after)
        estimated = now < end + ripe.measured_after
        error = ripe.estimate_error if estimated else ripe.first_error
        value = truth * (1 + error * noise(zone, "estimate" if estimated else "first", start))
        return ReportedValue(
            max(1.0, round(value)), estimated, start if estimated else end + ripe.measured_after
        )

    def expected(
        self,
        zone: str,
        start: datetime,
        issued: datetime,
        length: timedelta = HOUR,
        measure: Measure = Measure.DIRECT,
    ) -> float:
        """Return the forecast issued at `issued`; its error grows with the lead time."""
        ahead_h = max(0.0, (start - issued) / HOUR)
        error = min(0.25, 0.03 + 0.004 * ahead_h)
        truth = self.truth(zone, start, length, measure)
        return max(1.0, round(truth * (1 + error * noise(zone, "forecast", start))))

    def _compute(self, zone: str, start: datetime, length: timedelta, measure: Measure) -> float:
        """Return the true value: from the zone's trace, else computed."""
        for trace in self.traces:
            if trace.signal.zone == zone and _measure_of(trace) is measure:
                return _traced(trace, start, length)
        if zone not in self.zones:
            raise InputInvalid(f"no zone {zone!r}; there are {', '.join(sorted(self.zones))}")
        direct = _direct(zone, self.zones[zone], start + length / 2)
        if measure is Measure.DIRECT:
            return float(max(2, round(direct)))
        if measure is Measure.LIFECYCLE:
            return float(max(5, round(1.15 * direct + 25)))
        jitter = 0.15 * noise(zone, "marginal", start)
        return max(20.0, round((300 + 0.5 * direct) * (1 + jitter), 1))


def noise(zone: str, what: str, at: datetime) -> float:
    """Return a pseudo-random number in [-1, 1], a function of its arguments only."""
    text = f"{zone}/{what}/{at.timestamp():.0f}".encode()
    whole = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())
    return whole / (1 << 55) - 1.0


def _direct(zone: str, shape: Shape, at: datetime) -> float:
    """Return the direct average intensity at a moment, g/kWh."""
    days = (at - EPOCH) / DAY
    local = days + shape.east_h / 24
    hour = (local % 1.0) * 24
    sun = math.sin(math.pi * (hour - 6) / 12) if 6 < hour < 18 else 0.0
    evening = math.exp(-(((hour - 19) / 2.5) ** 2))
    # 2020-01-01 was a Wednesday: days 3 and 4 of each seven are a weekend.
    weekend = 1.0 if int(local) % 7 in (3, 4) else 0.0
    change = (
        shape.season * math.cos(2 * math.pi * (days - 15) / 365.25)
        - shape.sun * sun
        + 0.10 * evening
        - shape.weekend * weekend
        + shape.weather * _weather(zone, at)
        + 0.02 * noise(zone, "hour", at.replace(minute=0, second=0, microsecond=0))
    )
    return shape.base_g_per_kwh * max(0.05, 1 + change)


def _weather(zone: str, at: datetime) -> float:
    """Return smooth noise in [-1, 1] with a new value every twelve hours."""
    half_days = (at - EPOCH) / (12 * HOUR)
    before = math.floor(half_days)
    part = half_days - before
    ease = part * part * (3 - 2 * part)
    left, right = (noise(zone, "weather", EPOCH + (before + i) * 12 * HOUR) for i in (0, 1))
    return left + (right - left) * ease


def _measure_of(trace: Trace) -> Measure:
    if trace.signal.kind == "marginal":
        return Measure.MARGINAL
    return Measure(trace.signal.factor)


def _traced(trace: Trace, start: datetime, length: timedelta) -> float:
    """Return the mean of the trace's rows that overlap an interval; a trace repeats for ever."""
    period = len(trace.rows)
    first = math.floor((start - trace.start) / trace.step)
    last = max(first + 1, math.ceil((start + length - trace.start) / trace.step))
    values = [trace.rows[i % period].g_per_kwh for i in range(first, last)]
    told = [value for value in values if value is not None]
    if not told:
        raise InputInvalid(f"{trace.path} has no value at {start:%Y-%m-%d %H:%M}Z")
    return sum(told) / len(told)
