"""Replays a recorded grid day, in real or compressed time, as if it happened now.

Recorded time `starts_at` plays at real time `plays_at`; `compress` recorded seconds pass in one
real second. Invariant: it returns only what would have been known at `now`: measured values of
past intervals, a provisional value for the current one, forecasts for later ones.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.errors import InputInvalid, NoData
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, fault, refusal
from wattmesh.integrations.carbon.reading.trace import Trace, load
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

TRAILING = timedelta(hours=48)
"""How far back each poll returns measured values again, in recorded time."""

DEEP_TRAILING = timedelta(days=10)
"""How far back one poll per day returns them, in recorded time."""

DAY_S = 86_400.0

HORIZON = timedelta(hours=48)
"""How far a forecast reaches, in recorded time."""

RECORDED = "recorded forecast"


class CsvReplay:
    """One recorded series (`Provider`)."""

    def __init__(
        self,
        path: Path,
        *,
        zone: str,
        plays_at: datetime,
        starts_at: datetime | None = None,
        compress: float = 1.0,
    ) -> None:
        """Load the recording and align it with the clock.

        Args:
            path: the trace (`integrations.carbon.trace`).
            zone: zone of the trace.
            plays_at: real time at which `starts_at` plays, aware.
            starts_at: time in the recording, aware; None = its beginning.
            compress: recorded seconds per real second, > 0; 1.0 = as recorded.

        Raises:
            InputInvalid: a malformed trace, another zone, or a time outside the recording.
        """
        trace = load(path)
        if zone != trace.signal.zone:
            raise InputInvalid(f"{path} is a trace of zone {trace.signal.zone!r}, not {zone!r}")
        begin = starts_at or trace.start
        if not trace.start <= begin < trace.end:
            raise InputInvalid(
                f"{path} runs from {_minute(trace.start)} to {_minute(trace.end)}; starts_at "
                f"{_minute(begin)} is not in it"
            )
        if not compress > 0:
            raise InputInvalid(f"carbon: compress = {compress} must be > 0")
        self._trace = trace
        self._compress = compress
        self._interval_s = trace.step.total_seconds() / compress
        self._first = (begin - trace.start) // trace.step
        into = (begin - trace.start) % trace.step
        self._origin = plays_at.astimezone(UTC) - timedelta(seconds=into.total_seconds() / compress)
        self._places = tuple((row.start - trace.start) // trace.step for row in trace.rows)
        self._values, self._refused = _judged(trace)

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return self._trace.signal

    @property
    def series(self) -> Series:
        """The recording's intervals in real seconds; each interval brings one measured value."""
        told = any(not fault(row.forecast_g_per_kwh) for row in self._trace.rows)
        return Series(
            interval_s=self._interval_s,
            origin=self._origin,
            cadence_s=self._interval_s,
            forecast_s=HORIZON.total_seconds() / self._compress if told else 0.0,
            trailing=TRAILING / self._compress,
            deep_trailing=DEEP_TRAILING / self._compress,
            day_s=DAY_S / self._compress,
        )

    def capabilities(self, now: datetime) -> Capabilities:
        """Return what the recording has.

        Raises:
            NoData: it does not play at `now`.
        """
        self._position(now)
        ends = border(self._origin, self._interval_s, self._places[-1] + 1 - self._first)
        return Capabilities(
            latest=True,
            history=True,
            forecast=self.series.forecast_s > 0,
            history_since=self._origin,
            detail=f"The recording plays until {ends:%Y-%m-%d %H:%M:%S} UTC.",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Return the current interval and the newest measured one.

        Raises:
            NoData: the recording does not play at `now`.
        """
        self._position(now)
        begin, end = now - timedelta(seconds=2 * self._interval_s), now + timedelta(microseconds=1)
        return self.history(begin, end, now=now)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Return the intervals that begin in [start, end), measured, or provisional if current.

        Raises:
            NoData: the recording does not play yet, or ended before `start`.
        """
        grid = self._position_or_end(now)
        first = max(self._first, index_at(self._origin, self._interval_s, start) + self._first)
        if first > self._places[-1] + 1:
            raise NoData(self._over())
        last = min(grid, index_at(self._origin, self._interval_s, end) + self._first)
        rows = range(bisect_left(self._places, first), bisect_left(self._places, last + 1))
        points = [point for row in rows for point in self._point(row, grid, now)]
        return CarbonBatch(
            points=tuple(point for point in points if start <= point.start < end),
            refused=tuple(
                self._refused[row]
                for row in rows
                if self._refused[row] and self._places[row] < grid
            ),
        )

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Return the recorded forecast from the current interval on, for `hours` of real time.

        Raises:
            NoData: the recording does not play at `now`.
        """
        grid = self._position(now)
        reach = min(timedelta(hours=hours), HORIZON / self._compress)
        last = index_at(self._origin, self._interval_s, now + reach) + self._first
        points = [
            self._made(row, value, (Quality.FORECAST, RECORDED), grid, now)
            for row in range(bisect_left(self._places, grid), bisect_left(self._places, last + 1))
            if (value := self._trace.rows[row].forecast_g_per_kwh) is not None and not fault(value)
        ]
        return CarbonBatch(points=tuple(points))

    def _position(self, now: datetime) -> int:
        """Return the position in the recording at `now`.

        Raises:
            NoData: it does not play at `now`.
        """
        grid = self._position_or_end(now)
        if grid > self._places[-1]:
            raise NoData(self._over())
        return grid

    def _position_or_end(self, now: datetime) -> int:
        """Return the position at `now`, beyond the last one after the end.

        Raises:
            NoData: the recording does not play yet.
        """
        grid = index_at(self._origin, self._interval_s, now) + self._first
        if grid < self._first:
            raise NoData(
                f"the recording {self._trace.path.name} begins to play at "
                f"{self._origin:%Y-%m-%d %H:%M:%S} UTC; set plays_at earlier to have it now"
            )
        return grid

    def _over(self) -> str:
        over = border(self._origin, self._interval_s, self._places[-1] + 1 - self._first)
        return (
            f"the recording {self._trace.path.name} ended at {over:%Y-%m-%d %H:%M:%S} UTC; give a "
            "longer one, or set plays_at again"
        )

    def _point(self, index: int, grid: int, now: datetime) -> Iterator[CarbonPoint]:
        """Yield what is known at `now` about one interval, if anything."""
        place = self._places[index]
        quality, value, model = Quality.MEASURED, self._values[index], ""
        if place >= grid or value is None:
            quality = Quality.FORECAST if place > grid else Quality.PROVISIONAL
            value, model = self._expected(index, place, grid)
        if value is not None:
            yield self._made(index, value, (quality, model), grid, now)

    def _made(
        self, index: int, value: float, said: tuple[Quality, str], grid: int, now: datetime
    ) -> CarbonPoint:
        """Build the point of one row at position `grid`. `said`: (quality, model)."""
        quality, model = said
        place = self._places[index]
        end = border(self._origin, self._interval_s, place + 1 - self._first)
        # A forecast is issued once per interval: polls in between return the same.
        issued_at = border(self._origin, self._interval_s, min(place, grid) - self._first)
        return CarbonPoint(
            signal=self.signal,
            start=border(self._origin, self._interval_s, place - self._first),
            end=end,
            g_per_kwh=value,
            quality=quality,
            issued_at=end if quality is Quality.MEASURED else issued_at,
            fetched_at=now,
            model=model,
        )

    def _expected(self, index: int, place: int, grid: int) -> tuple[float | None, str]:
        """(value, model) of an interval without a measured value at position `grid`."""
        forecast = self._trace.rows[index].forecast_g_per_kwh
        if not fault(forecast):
            return forecast, RECORDED
        if place == grid and index and self._places[index - 1] == place - 1:
            # Without recorded forecasts the current interval repeats the last one.
            return self._values[index - 1], "persistence"
        return None, ""


def _judged(trace: Trace) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Check every measured value: (valid values, else None; refusals, else "")."""
    judge = PlausibilityFilter()
    values: list[float | None] = []
    refused: list[str] = []
    for row in trace.rows:
        why = judge.fault(row.start, row.g_per_kwh)
        values.append(None if why else row.g_per_kwh)
        refused.append(refusal(row.start, why) if why else "")
    return tuple(values), tuple(refused)


def _minute(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}Z"
