"""Forecasts one series with its exogenous series, again and again, and learns from how that went.

It learns anew from time to time, forecasts as far as the weather is known, lets the forecast from
the past alone go on beyond, and widens or narrows the band as earlier bands proved too narrow or
too wide. Before the first forecast it rehearses: with lessons of a month before it makes the
forecasts of that month, so that it knows by how much its band is off.

Invariant: nothing that was not known at the end of the values that are given is read, in
rehearsals nothing that was not known at their own moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from wattmesh.policies.forecast.carried_on import carried_on
from wattmesh.policies.forecast.exogenous import Array, Panel
from wattmesh.policies.forecast.foresight import Foresight, learn
from wattmesh.policies.forecast.foresight_band import KEPT, IssuedBand, calibrated
from wattmesh.policies.forecast.lookback import DAY
from wattmesh.policies.forecast.predict import Lessons, teach
from wattmesh.policies.forecast.series import HOUR_S, Observed

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
REHEARSED = 30 * DAY
EVERY_H = 11
"""Hours between two rehearsals: prime to 24, so all hours of the day come in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherForecast:
    """What is told of the hours ahead.

    Attributes:
        told: value, 10 % and 90 % quantile by the hour, g/kWh, NaN where unknown.
        by_weather: hours that rest on forecasts of the weather; later ones on the past alone.
    """

    told: list[list[float]]
    by_weather: int


class WeatherForecaster:
    """Keeps what one series taught, and the bands that were issued."""

    def __init__(self, again_h: int, rehearsed_h: int = REHEARSED) -> None:
        """Learn anew every `again_h` hours; `rehearsed_h`: hours before the first forecast."""
        self._again_h, self._rehearsed_h = again_h, rehearsed_h
        self._taught: tuple[int, Foresight | None] | None = None
        self._issued: list[IssuedBand] | None = None

    def expect(
        self, values: Sequence[float], start: datetime, panel: Panel, past: Lessons | None
    ) -> WeatherForecast | None:
        """Forecast the hours after `values`; calls must not go back in time.

        Args:
            values: g/kWh, oldest first, NaN where unknown.
            start: when the first of them starts, aware UTC, a whole hour; `panel` starts there too.
            panel: exogenous forecasts; what is not known at the end of `values` is not read.
            past: what the series alone taught.

        Returns:
            None when too little is known of either.
        """
        first = (start - EPOCH) // HOUR
        now = first + len(values)
        if self._taught is None or not 0 <= now - self._taught[0] < self._again_h:
            self._taught = (now, learn(values, start, panel))
        lessons = self._taught[1]
        if lessons is None:
            return None
        if self._issued is None:
            self._issued = self._rehearse(values, start, panel)
        plain, by_weather = _told(lessons, values, start, panel, past)
        band = plain[:, :by_weather]
        self._issued = [each for each in self._issued if now - KEPT <= each.origin < now]
        told = plain.copy()
        told[:, :by_weather] = calibrated(band, self._issued, values, first)
        self._issued.append(IssuedBand(origin=now, told=band))
        return WeatherForecast(told=told.tolist(), by_weather=by_weather)

    def _rehearse(self, values: Sequence[float], start: datetime, panel: Panel) -> list[IssuedBand]:
        """Make the forecasts of the last month as they could have been made then."""
        begun = len(values) - self._rehearsed_h
        if not 0 < begun < len(values):
            return []
        lessons = learn(values[:begun], start, panel)
        if lessons is None:
            return []
        past = teach(Observed(start=start, interval_s=HOUR_S, values=values[:begun]))
        first = (start - EPOCH) // HOUR
        bands = []
        for origin in range(begun, len(values), EVERY_H):
            told, by_weather = _told(lessons, values[:origin], start, panel, past)
            bands.append(IssuedBand(origin=first + origin, told=told[:, :by_weather]))
        return bands


def _told(
    lessons: Foresight,
    values: Sequence[float],
    start: datetime,
    panel: Panel,
    past: Lessons | None,
) -> tuple[Array, int]:
    """Value and quantiles before any calibration, and how many hours rest on the weather."""
    told = lessons.expect(values, start, panel)
    by_weather = int(np.isfinite(told[0]).sum())
    if past is not None:
        told = carried_on(told, values, start.hour, past)
    return np.array(told), by_weather
