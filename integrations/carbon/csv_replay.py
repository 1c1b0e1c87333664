"""A recorded grid day played again, at its own speed or faster, as if it happened now.

Recorded time `starts_at` plays at real time `plays_at`; `compress` recorded seconds pass in one
real second. Invariant: only what would have been known at `now` is told: measured values of
intervals that are over, a provisional value for the running one, forecasts for later ones.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.carbon.believed import Judge, fault, refusal
from wattmesh.integrations.carbon.trace import Trace, load
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

TRAILING = timedelta(hours=48)
"""How far back one poll tells measured values again, in recorded time."""

HORIZON = timedelta(hours=48)
"""How far a poll's forecast reaches, in recorded time."""


class CsvReplay:
    """One recorded series as a carbon source (`CarbonSource`)."""

    def __init__(
        self,
        path: Path,
        *,
        zone: str,
        plays_at: datetime,
        starts_at: datetime | None = None,
        compress: float = 1.0,
    ) -> None:
        """Load the recording and place it on today's clock.

        Args:
            path: the trace (`integrations.carbon.trace`).
            zone: must be the zone that the trace is of.
            plays_at: real time at which `starts_at` plays, aware.
            starts_at: moment of the recording, aware; None = its beginning.
            compress: recorded seconds per real second, > 0; 1.0 = as recorded.

        Raises:
            InputInvalid: a bad trace, another zone, or a moment that was not recorded.
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
        self._interval_s = trace.step.total_seconds() / compress
        self._first = (begin - trace.start) // trace.step
        into = (begin - trace.start) % trace.step
        self._origin = plays_at.astimezone(UTC) - timedelta(seconds=into.total_seconds() / compress)
        self._told = 0  # rows before this one were told as measured
        self._places = tuple((row.start - trace.start) // trace.step for row in trace.rows)
        self._values, self._refused = _judged(trace)

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return self._trace.signal

    @property
    def interval_s(self) -> float:
        """Length of one interval in real seconds."""
        return self._interval_s

    @property
    def cadence_s(self) -> float:
        """A new measured value comes once an interval."""
        return self._interval_s

    @property
    def origin(self) -> datetime:
        """Real time at which the interval that holds `starts_at` begins."""
        return self._origin

    def poll(self, now: datetime) -> CarbonBatch:
        """Tell what is known at `now`.

        Raises:
            SourceUnavailable: the recording does not play yet, or is over and all told.
        """
        grid = index_at(self._origin, self._interval_s, now) + self._first
        self._require_playing(grid)
        step = self._trace.step
        begin = bisect_left(self._places, self._first)
        over = bisect_left(self._places, grid)
        fresh = max(begin, self._told)  # what no poll told yet, however old
        oldest = min(fresh, bisect_left(self._places, grid - TRAILING // step, begin))
        last = bisect_left(self._places, grid + HORIZON // step)
        points = [point for index in range(oldest, last) for point in self._point(index, grid, now)]
        refused = tuple(why for why in self._refused[fresh:over] if why)
        self._told = max(self._told, over)
        return CarbonBatch(points=tuple(points), refused=refused)

    def _require_playing(self, grid: int) -> None:
        """Refuse a moment before the recording plays, or after everything was told."""
        name = self._trace.path.name
        if grid < self._first:
            raise SourceUnavailable(
                f"the recording {name} begins to play at {self._origin:%Y-%m-%d %H:%M:%S} UTC; set "
                "plays_at earlier to have it now"
            )
        end = self._places[-1] + 1
        if grid >= end and self._told == len(self._places):
            over = border(self._origin, self._interval_s, end - self._first)
            raise SourceUnavailable(
                f"the recording {name} ended at {over:%Y-%m-%d %H:%M:%S} UTC; give a longer one, "
                "or set plays_at again"
            )

    def _point(self, index: int, grid: int, now: datetime) -> Iterator[CarbonPoint]:
        """Give what is known at `now` about one interval, if anything."""
        place = self._places[index]
        quality, value, model = Quality.MEASURED, self._values[index], ""
        if place >= grid or value is None:
            quality = Quality.FORECAST if place > grid else Quality.PROVISIONAL
            value, model = self._expected(index, place, grid)
        if value is None:
            return
        start = border(self._origin, self._interval_s, place - self._first)
        end = border(self._origin, self._interval_s, place + 1 - self._first)
        issued_at = end
        if quality is not Quality.MEASURED:
            # A forecast is issued once an interval: polls between say the same.
            issued_at = border(self._origin, self._interval_s, min(place, grid) - self._first)
        yield CarbonPoint(
            signal=self.signal,
            start=start,
            end=end,
            g_per_kwh=value,
            quality=quality,
            issued_at=issued_at,
            fetched_at=now,
            model=model,
        )

    def _expected(self, index: int, place: int, grid: int) -> tuple[float | None, str]:
        """Give (value, model) expected for an interval that has no measured value at `grid`."""
        forecast = self._trace.rows[index].forecast_g_per_kwh
        if not fault(forecast):
            return forecast, "recorded forecast"
        if place == grid and index and self._places[index - 1] == place - 1:
            # A recording without forecasts: the running interval goes on as the one before.
            return self._values[index - 1], "persistence"
        return None, ""


def _judged(trace: Trace) -> tuple[tuple[float | None, ...], tuple[str, ...]]:
    """Judge every measured value: (what is believed, else None; the refusal, else "")."""
    judge = Judge()
    values: list[float | None] = []
    refused: list[str] = []
    for row in trace.rows:
        why = judge.fault(row.start, row.g_per_kwh)
        values.append(None if why else row.g_per_kwh)
        refused.append(refusal(row.start, why) if why else "")
    return tuple(values), tuple(refused)


def _minute(at: datetime) -> str:
    """Write a moment to the minute."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}Z"
