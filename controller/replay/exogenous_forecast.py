"""What a replayed policy is told of the grid ahead with day-ahead wind, sun and weather.

The forecast of `wattmesh.policies.forecast.weather_forecaster`, which learns anew once a week.

Invariant: a forecast contains nothing recorded after the running interval, and no exogenous
forecast that was issued later than now; all calls for the same interval get the same slots.
"""

from datetime import datetime, timedelta

from wattmesh.controller.replay.forecasts import AHEAD_H, LONGEST, Slots, joined
from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.weather_file import WeatherZone
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import Climatology
from wattmesh.policies.forecast.climatology import climatology_of, extended
from wattmesh.policies.forecast.predict import Lessons, predict, teach
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.weather_forecaster import WeatherForecaster

HOUR = timedelta(hours=1)
DAY_H = 24
AGAIN_H = 7 * DAY_H
YEAR_H = 365 * DAY_H


class ExogenousForecast:
    """Our forecast with exogenous series, made from what was known, and kept for further calls."""

    def __init__(self, grid: GridSeries, zone: WeatherZone) -> None:
        """Take the grid that is replayed, and the same zone's file with exogenous forecasts.

        Raises:
            InputInvalid: the grid is not hourly, or the file does not cover it.
        """
        if grid.step != HOUR or (grid.start - zone.start) % HOUR:
            raise InputInvalid(f"{grid.name} is not hourly; exogenous forecasts are by the hour")
        if zone.hour(grid.start) < 0 or zone.hour(grid.end) > len(zone.target):
            raise InputInvalid(f"{zone.file} does not cover {grid.name}; give a file that does")
        self._grid, self._zone = grid, zone
        self._made: dict[int, Slots] = {}
        self._past: tuple[int, Lessons | None, Climatology | None] | None = None
        self._forecaster = WeatherForecaster(AGAIN_H)

    def slots(self, now: datetime, end: datetime) -> Slots:
        """Forecast from what was recorded up to the running interval, which is known."""
        running = self._grid.slots[self._grid.index(now)]
        origin = self._zone.hour(running.end)
        if origin not in self._made:
            self._made[origin] = self._predict(origin)
        return joined((running,), self._made[origin])

    def _predict(self, origin: int) -> Slots:
        """Forecast what comes after the hours before `origin`."""
        zone = self._zone
        values = zone.known(origin)
        if values is None:
            return ()
        first = max(0, origin - YEAR_H)
        told = values.tolist()
        observed = Observed(
            start=zone.start + first * HOUR, interval_s=HOUR.total_seconds(), values=told[first:]
        )
        if self._past is None or not 0 <= origin - self._past[0] < DAY_H:
            self._past = (origin, teach(observed), climatology_of(observed))
        _, lessons, climatology = self._past
        sighted = self._forecaster.expect(told, zone.start, zone.panel(origin), lessons)
        at = zone.start + origin * HOUR
        slots = predict(
            observed,
            now=at,
            hours=AHEAD_H,
            lessons=lessons,
            exogenous=sighted.told if sighted else None,
        ).slots
        return extended(slots, climatology, at, at + LONGEST) if climatology else slots
