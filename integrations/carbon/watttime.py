"""WattTime, API v3: the marginal emission rate of a region, and its hourly average, by login.

A token is valid for 30 min and replaced after 25. Values are converted from pounds per
megawatt-hour to grams per kilowatt-hour. In requests both ends of a span are inclusive, and time
zones are mandatory.

Invariant: one call logs in at most once, and a refused login is not retried for half an hour, so
that the daemon cannot lock its own account.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from wattmesh.errors import AuthFailed, InputInvalid, NoData, NotEntitled
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.integrations.carbon.reading.rows import (
    ORIGIN,
    DecodedRows,
    batch,
    floor,
    joined,
    moment,
    stamp,
)
from wattmesh.integrations.carbon.watttime_answers import (
    AnswerRows,
    RegionQuery,
    forecast,
    login_verdict,
    observed,
    token,
    verdict,
)
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

BASE_URL = "https://api.watttime.org"

TOKEN_KEPT = timedelta(minutes=25)
"""Shorter than the 30 minutes of a token, to allow for clock differences and requests under way."""

LOGIN_RESTS = timedelta(minutes=30)
LONGEST = timedelta(days=30)
"""Longest span of one request for history."""

LONGEST_FORECAST_H = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalType:
    """One of WattTime's signals.

    Attributes:
        step: length of an interval.
        forecast_h: how far its forecast reaches; 0: no forecast and no current value.
        lag_s: how long after its end an interval is published.
    """

    kind: str
    step: timedelta
    forecast_h: int
    lag_s: float


SIGNAL_TYPES = {
    "co2_moer": SignalType(
        kind="marginal", step=timedelta(minutes=5), forecast_h=LONGEST_FORECAST_H, lag_s=3600.0
    ),
    # It has past values only, with an undocumented delay; a day is assumed.
    "co2_aoer": SignalType(
        kind="average", step=timedelta(hours=1), forecast_h=0, lag_s=24 * 3600.0
    ),
}


class WattTime(BehindBreaker):
    """One signal of one region (`Provider`)."""

    def __init__(
        self,
        *,
        zone: str,
        username: str,
        password: str,
        signal_type: str = "co2_moer",
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Set the identity of the series, and the login.

        Args:
            zone: WattTime's region: `CAISO_NORTH`.
            username: of the account.
            password: of the account; never shown.
            signal_type: co2_moer (marginal, every 5 min) or co2_aoer (average, hourly, past only).
            base_url: without version; a mirror or a test server.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown signal, or no login; the message lists the signals.
        """
        if signal_type not in SIGNAL_TYPES:
            raise InputInvalid(
                f"carbon: signal_type {signal_type!r} of watttime is not a supported carbon "
                f"intensity; there are {', '.join(SIGNAL_TYPES)}"
            )
        if not zone or ":" in zone:
            raise InputInvalid(f"carbon: {zone!r} is not a region of watttime, like 'CAISO_NORTH'")
        self._type = SIGNAL_TYPES[signal_type]
        self._asked = RegionQuery(region=zone, signal_type=signal_type, step=self._type.step)
        self._login = Credentials.basic(username, password)
        self._http = http or JsonHttp(base_url)
        self._token: Credentials | None = None
        self._token_at: datetime | None = None
        self._refused: tuple[datetime, str] | None = None
        self._model = ""

    @property
    def signal(self) -> Signal:
        """The identity of the series; its unit says direct emissions of CO2 only."""
        return Signal(provider="watttime", zone=self._asked.region, kind=self._type.kind)

    @property
    def series(self) -> Series:
        """The intervals of the signal.

        The average is so late (`lag_s`) that accounting with it is provisional for a day; it has no
        forecast and no current value, so it cannot be used for decisions.
        """
        return Series(
            interval_s=self._type.step.total_seconds(),
            origin=ORIGIN,
            cadence_s=self._type.step.total_seconds(),
            lag_s=self._type.lag_s,
            forecast_s=self._type.forecast_h * 3600.0,
        )

    def capabilities(self, now: datetime) -> Capabilities:
        """Query which endpoints this user may use for this signal and region.

        Raises:
            NotEntitled: the user may use none.
        """
        endpoints = _endpoints(self._get("/v3/my-access", {}, now), self._asked)
        if not endpoints:
            raise NotEntitled(
                f"WattTime: this user has no access to {self._asked.signal_type} of "
                f"{self._asked.region}; without a plan all of CAISO_NORTH may be asked"
            )
        past, ahead = endpoints.get("historical"), endpoints.get("forecast")
        offered = ahead is not None and self._type.forecast_h > 0
        models = [each for rows in endpoints.values() for each in rows]
        begins = [begin for each in past or [] if (begin := _day(each.get("data_start")))]
        return Capabilities(
            latest=offered or (past is not None and self._type.forecast_h == 0),
            history=past is not None,
            forecast=offered,
            history_since=min(begins, default=None),
            models=tuple(dict.fromkeys(str(each.get("model")) for each in models)),
            detail="" if offered else f"{self._asked.signal_type} has no forecast.",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the current value; of the average the newest published one.

        Only the forecast endpoint always has values, so the current value is a forecast over 0 h.

        Raises:
            NoData: it does not include the current interval.
        """
        if not self._type.forecast_h:
            return self.history(now - timedelta(seconds=2 * self._type.lag_s), now, now=now)
        told = forecast(self._ahead(0, now), self._asked, now)
        found = self._batch((told,), now)
        running = tuple(
            replace(each, quality=Quality.PROVISIONAL, model=f"{each.model} nowcast")
            for each in found.points
            if each.start <= now
        )
        if not running and not found.refused:
            raise NoData(f"WattTime has no value of {self._asked.region} for now")
        return replace(found, points=running)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the intervals that begin in [start, end), in requests of thirty days.

        Raises:
            NoData: there are none in the whole span.
        """
        first, last = floor(start, self._type.step), min(end, now)
        if first >= last:
            return CarbonBatch(points=())
        found = self._batch(tuple(self._spans(first, last, now)), now)
        return replace(found, points=_within(found.points, start, end))

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast, at most 72 h; empty for the average, which has none."""
        if not self._type.forecast_h:
            return CarbonBatch(points=())
        horizon_h = max(1, min(math.ceil(hours), self._type.forecast_h))
        told = forecast(self._ahead(horizon_h, now), self._asked, now)
        return self._batch((told,), now, judged=False)

    def close(self) -> None:
        """End the request thread."""
        self._http.close()

    def _spans(self, first: datetime, last: datetime, now: datetime) -> Iterator[AnswerRows]:
        """Fetch [first, last) in spans of thirty days; an empty one does not stop the others."""
        empty: NoData | None = None
        any_told = False
        while first < last:
            until = min(first + LONGEST, last)
            # Both ends are inclusive, so the border is fetched twice and used once.
            query = self._query() | {"start": stamp(first), "end": stamp(until)}
            try:
                yield observed(self._get("/v3/historical", query, now), self._asked, now)
                any_told = True
            except NoData as error:
                empty = error
            first = until
        if empty and not any_told:
            raise empty

    def _ahead(self, horizon_h: int, now: datetime) -> Any:
        """Fetch a forecast; over 0 h it is the current value."""
        return self._get("/v3/forecast", self._query() | {"horizon_hours": str(horizon_h)}, now)

    def _query(self) -> dict[str, str]:
        return {"region": self._asked.region, "signal_type": self._asked.signal_type}

    def _batch(
        self, told: tuple[AnswerRows, ...], now: datetime, *, judged: bool = True
    ) -> CarbonBatch:
        """Check the values, and report a change of the model."""
        reading = joined(each.reading for each in told)
        changes = tuple(change for each in told if (change := self._changed(each.model)))
        return batch(
            DecodedRows(rows=reading.rows, refused=reading.refused + changes),
            signal=self.signal,
            step=self._type.step,
            now=now,
            judged=judged,
        )

    def _changed(self, model: str) -> str:
        """Remember the newest model; report when it is another one."""
        before, self._model = self._model, model or self._model
        if not before or before == self._model:
            return ""
        return (
            f"WattTime's model of {self._asked.region} changed from {before} to {self._model}: "
            "values differ for that reason too."
        )

    def _get(self, path: str, query: dict[str, str], now: datetime) -> Any:
        """Request with the token; if that is refused, once more with a new one."""
        fresh = self._token_may_be_old(now)
        try:
            return self._with_token(path, query, now)
        except AuthFailed:
            if fresh:
                raise
        self._token = None
        return self._with_token(path, query, now)

    def _with_token(self, path: str, query: dict[str, str], now: datetime) -> Any:
        """Request, after a login if the token is old."""
        if self._token is None or self._token_may_be_old(now):
            self._log_in(now)
        return self._http.get(
            path, query=query, credentials=self._token or self._login, classify=verdict
        )

    def _token_may_be_old(self, now: datetime) -> bool:
        age = None if self._token is None or self._token_at is None else now - self._token_at
        return age is None or not timedelta() <= age < TOKEN_KEPT

    def _log_in(self, now: datetime) -> None:
        """Get a token.

        Raises:
            AuthFailed: user or password are wrong, now or at a login in the last half hour.
        """
        if self._refused and timedelta() <= now - self._refused[0] < LOGIN_RESTS:
            raise AuthFailed(f"{self._refused[1]}; not tried again before half an hour is over")
        try:
            body = self._http.get("/login", credentials=self._login, classify=login_verdict)
        except AuthFailed as error:
            self._refused = (now, str(error))
            raise
        self._token = Credentials.header("Authorization", token(body), scheme="Bearer")
        self._token_at, self._refused = now, None


def _within(
    points: tuple[CarbonPoint, ...], start: datetime, end: datetime
) -> tuple[CarbonPoint, ...]:
    return tuple(point for point in points if start <= point.start < end)


def _endpoints(body: Any, asked: RegionQuery) -> dict[str, list[dict[str, Any]]]:
    """The models behind each permitted endpoint, by its name without version."""
    found: dict[str, list[dict[str, Any]]] = {}
    for signal in _objects(body, "signal_types"):
        if signal.get("signal_type") != asked.signal_type:
            continue
        for region in _objects(signal, "regions"):
            if region.get("region") != asked.region:
                continue
            for endpoint in _objects(region, "endpoints"):
                name = str(endpoint.get("endpoint", "")).strip("/").removeprefix("v3/")
                found[name] = _objects(endpoint, "models")
    return found


def _day(value: Any) -> datetime | None:
    """Parse a time, or a date as its start in UTC."""
    return moment(value) or moment(f"{value}T00:00:00Z")


def _objects(body: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list; none when it is missing."""
    rows = body.get(name) if isinstance(body, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
