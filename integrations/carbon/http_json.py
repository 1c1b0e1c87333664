"""A series from any JSON service: in-house, carbon-aware-sdk, a yearly table.

The settings declare kind, factor, gas and unit of the numbers, because answers do not contain them.
Invariant: every point is one whole interval of the declared grid; any other row is refused.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, NoData, Transient
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, fault, refusal
from wattmesh.integrations.carbon.reading.credentials import NONE, Credentials
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import (
    G_PER_KWH,
    ORIGIN,
    JsonShape,
    at_path,
    filled,
    moment,
    number,
    placed,
    split,
)
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

LATEST = 4
"""Intervals that `latest` asks for, in addition to the lag."""


class HttpJson(BehindBreaker):
    """A declared series (`Provider`)."""

    def __init__(
        self,
        *,
        signal: Signal,
        shape: JsonShape,
        interval_s: float = 3600.0,
        cadence_s: float | None = None,
        lag_s: float = 0.0,
        forecast_hours: float = 48.0,
        longest_hours: float = 240.0,
        credentials: Credentials = NONE,
        http: JsonHttp | None = None,
    ) -> None:
        """Set what the settings declare about the service.

        Args:
            signal: the identity of the series.
            shape: the form of requests and answers.
            interval_s: length of every interval, seconds, > 0; intervals begin at multiples of it.
            cadence_s: seconds between two polls; None: one interval.
            lag_s: how long after its end an interval is usually published, seconds.
            forecast_hours: how far its forecast reaches; used only with a forecast URL.
            longest_hours: longest span of one request.
            credentials: a header with a token.
            http: client to use instead of one for the URL.

        Raises:
            InputInvalid: history and forecast are on different hosts.
        """
        self._base, self._path = split(shape.url)
        self._ahead = split(shape.forecast_url)[1] if shape.forecast_url else ""
        if self._ahead and split(shape.forecast_url)[0] != self._base:
            # The token is for one host, and a breaker is per host.
            raise InputInvalid(
                f"carbon: forecast_url is on {split(shape.forecast_url)[0]}, url on {self._base}; "
                "one source asks one host"
            )
        self._signal = signal
        self._shape = shape
        self._series = Series(
            interval_s=interval_s,
            origin=ORIGIN,
            cadence_s=cadence_s or interval_s,
            lag_s=lag_s,
            forecast_s=forecast_hours * 3600.0 if self._ahead else 0.0,
        )
        self._longest = timedelta(hours=longest_hours)
        self._credentials = credentials
        self._http = http or JsonHttp(self._base)

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return self._signal

    @property
    def series(self) -> Series:
        """The declared intervals."""
        return self._series

    def capabilities(self, now: datetime) -> Capabilities:
        """Fetch the newest intervals, which shows whether the settings fit the service.

        Raises:
            SourceUnavailable: no usable answer. SourceRefused: the token is wrong.
        """
        batch = self.latest(now)
        if not batch.points and batch.refused:
            raise Transient(f"{self._base} returned nothing usable: {batch.refused[0]}")
        return Capabilities(latest=True, history=True, forecast=bool(self._ahead))

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the last four intervals beyond the lag.

        Raises:
            SourceUnavailable: no usable answer. SourceRefused: the token is wrong.
        """
        back_s = LATEST * self._series.interval_s + self._series.lag_s
        return self.history(now - timedelta(seconds=back_s), now, now=now)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the intervals that begin in [start, end), in requests of `longest_hours`.

        Raises:
            NoData: the list is empty. SourceUnavailable: no usable answer. SourceRefused: the
                token is wrong.
        """
        found: list[Any] = []
        begin = start
        while begin < end:
            until = min(begin + self._longest, end)
            hours = (now - begin).total_seconds() / 3600
            path = filled(self._path, zone=self._signal.zone, start=begin, end=until, hours=hours)
            found += self._rows(path, self._shape.rows)[0]
            begin = until
        if not found and start < end:
            raise NoData(f"{self._base} returned an empty list for {self._signal.zone}")
        judge = PlausibilityFilter(self._signal.kind)
        refused: list[str] = []
        points: list[CarbonPoint] = []
        for index, row in sorted(
            placed(found, self._shape, self._series.interval_s, refused).items()
        ):
            at = border(ORIGIN, self._series.interval_s, index)
            if start <= at < end and at <= now:
                points += self._observed(index, row, judge, now, refused)
        return CarbonBatch(points=tuple(points), refused=tuple(dict.fromkeys(refused)))

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast from the current interval on; empty where none is declared.

        Raises:
            NoData: it has none. SourceUnavailable: no usable answer. SourceRefused: the token is
                wrong.
        """
        if not self._ahead:
            return CarbonBatch(points=())
        until = now + timedelta(hours=hours)
        running = index_at(ORIGIN, self._series.interval_s, now)
        begin = border(ORIGIN, self._series.interval_s, running)
        path = filled(self._ahead, zone=self._signal.zone, start=begin, end=until, hours=hours)
        found, body = self._rows(path, self._shape.forecast_rows)
        refused: list[str] = []
        issued_at = min(moment(at_path(body, self._shape.issued)) or begin, now)
        points = []
        for index, row in sorted(
            placed(found, self._shape, self._series.interval_s, refused).items()
        ):
            if index < running or border(ORIGIN, self._series.interval_s, index) >= until:
                continue
            value = self._value(row, self._shape.forecast_value)
            why = fault(value, kind=self._signal.kind)
            if why or value is None:
                at = border(ORIGIN, self._series.interval_s, index)
                refused.append(refusal(at, f"(forecast) {why}"))
            else:
                points.append(self._made(index, value, Quality.FORECAST, issued_at, now))
        if not points and not refused:
            raise NoData(f"{self._base} returned no forecast from now on for {self._signal.zone}")
        return CarbonBatch(points=tuple(points), refused=tuple(dict.fromkeys(refused)))

    def _rows(self, path: str, where: str) -> tuple[list[Any], Any]:
        """Fetch one answer: (its rows, its body).

        Raises:
            Transient: there is no list at the declared path.
        """
        body = self._http.get(path, credentials=self._credentials)
        rows = at_path(body, where)
        if not isinstance(rows, list):
            said = self._credentials.hidden(str(body)[:80])
            raise Transient(
                f"{self._base} answered {said!r}, which has no list at "
                f"{where or 'its root'!r}; check `rows` of the source"
            )
        return rows, body

    def _observed(
        self, index: int, row: Any, judge: PlausibilityFilter, now: datetime, refused: list[str]
    ) -> Iterator[CarbonPoint]:
        """Yield the point of an interval that has begun, if its value is plausible."""
        start = border(ORIGIN, self._series.interval_s, index)
        end = border(ORIGIN, self._series.interval_s, index + 1)
        value = self._value(row, self._shape.value)
        if end > now:
            if value is not None and not fault(value, kind=self._signal.kind):
                yield self._made(index, value, Quality.PROVISIONAL, start, now)
            return
        why = judge.fault(start, value)
        if why or value is None:
            # A missing value is a fault only after the usual lag.
            if value is not None or (now - end).total_seconds() > self._series.lag_s:
                refused.append(refusal(start, why))
            return
        estimated = at_path(row, self._shape.estimated) if self._shape.estimated else None
        quality = Quality.ESTIMATED if _marked_estimated(estimated) else Quality.MEASURED
        yield self._made(index, value, quality, end, now)

    def _value(self, row: Any, path: str) -> float | None:
        """Decode a number and convert it to g/kWh."""
        value = number(at_path(row, path))
        return None if value is None else value * G_PER_KWH[self._shape.unit]

    def _made(
        self, index: int, value: float, quality: Quality, issued_at: datetime, now: datetime
    ) -> CarbonPoint:
        return CarbonPoint(
            signal=self._signal,
            start=border(ORIGIN, self._series.interval_s, index),
            end=border(ORIGIN, self._series.interval_s, index + 1),
            g_per_kwh=value,
            quality=quality,
            issued_at=issued_at,
            fetched_at=now,
            model="" if quality is Quality.MEASURED else "as declared",
        )


def _marked_estimated(mark: Any) -> bool:
    if isinstance(mark, str):
        return mark.strip().lower() not in {"", "false", "no", "measured", "actual"}
    return bool(mark)
