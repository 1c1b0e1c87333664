"""Great Britain's national carbon intensity, live: NESO's Carbon Intensity API (CC BY 4.0, no key).

Half-hourly, UTC, average, direct. `actual` is null for a while after its half hour; until then the
forecast stands in, as provisional. For regions see `neso_region.py`.

Invariant: a point's half hour comes from its own `from` and `to`, not from the request.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, NoData, Transient
from wattmesh.integrations.carbon.reading.believed import PlausibilityFilter, fault, refusal
from wattmesh.integrations.carbon.reading.http import BehindBreaker, JsonHttp
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

BASE_URL = "https://api.carbonintensity.org.uk"
ZONES = ("GB",)
HALF_HOUR = timedelta(minutes=30)
LATEST = timedelta(hours=2)
"""Usually `actual` is published within an hour of its half hour."""
LONGEST = timedelta(days=14)
"""Longest span of one request."""
ORIGIN = datetime(2018, 1, 1, tzinfo=UTC)
AHEAD_S = 48 * 3600.0
"""How far its forecasts reach."""

EMPTY = "NESO answered an empty list; it has had outages of days"
FORM = "%Y-%m-%dT%H:%MZ"
MODEL = "NESO forecast"


class Neso(BehindBreaker):
    """The national series (`Provider`)."""

    def __init__(
        self, *, zone: str = "GB", base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Set the zone; `base_url` or `http` select a mirror or a test server.

        Raises:
            InputInvalid: a zone other than GB.
        """
        if zone not in ZONES:
            raise InputInvalid(
                f"carbon: zone {zone!r} is not served by neso; it serves GB, the national value "
                "(its regions have forecasts only, nothing measured to account with)"
            )
        self._http = http or JsonHttp(base_url)

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return Signal(provider="neso", zone="GB")

    @property
    def series(self) -> Series:
        """Half hours from :00 and :30 UTC, with new values every half hour."""
        return Series(
            interval_s=HALF_HOUR.total_seconds(),
            origin=ORIGIN,
            cadence_s=HALF_HOUR.total_seconds(),
            lag_s=HALF_HOUR.total_seconds(),
            forecast_s=AHEAD_S,
        )

    def capabilities(self, now: datetime) -> Capabilities:
        """Fetch the newest values, which shows that the service answers; there are no keys.

        Raises:
            SourceUnavailable: no usable answer.
        """
        self.latest(now)
        return Capabilities(latest=True, history=True, forecast=True, models=(MODEL,))

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the half hours of the last two hours, and the current one.

        Raises:
            SourceUnavailable: no usable answer.
        """
        return self.history(half_hour(now) - LATEST, now + HALF_HOUR, now=now)

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the half hours that begin in [start, end), in requests of 14 days.

        Raises:
            NoData: it has nothing for the whole span. SourceUnavailable: no usable answer.
        """
        rows: list[Any] = []
        begin, stop = half_hour(start), half_hour(end + HALF_HOUR - timedelta(microseconds=1))
        if begin == stop:
            return CarbonBatch(points=())
        while begin < stop:
            until = min(begin + LONGEST, stop)
            rows += rows_of(self._http.get(f"/intensity/{begin:{FORM}}/{until:{FORM}}"))
            begin = until
        if not rows:
            raise NoData(EMPTY)
        batch = self._read(rows, now)
        asked = tuple(point for point in batch.points if start <= point.start < end)
        return CarbonBatch(points=asked, refused=batch.refused)

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Fetch the newest forecast from the current half hour on, at most 48 h.

        Raises:
            NoData: it has none. SourceUnavailable: no usable answer.
        """
        first = half_hour(now)
        return expected(
            rows_of(self._http.get(f"/intensity/{first:{FORM}}/fw48h")),
            signal=self.signal,
            until=now + timedelta(hours=hours),
            now=now,
        )

    def _read(self, rows: list[Any], now: datetime) -> CarbonBatch:
        """Decode rows to points, oldest first, each half hour once."""
        judge = PlausibilityFilter()
        refused: list[str] = []
        spans: dict[datetime, dict[str, Any]] = {}
        for row in rows:
            why = malformed(row)
            if why:
                refused.append(f"NESO sent {str(row)[:120]!r}: {why}.")
            else:
                spans[moment(row["from"])] = row["intensity"]
        points = [
            point
            for start in sorted(spans)
            for point in self._point(start, spans[start], judge, now, refused)
        ]
        return CarbonBatch(points=tuple(points), refused=tuple(refused))

    def _point(
        self,
        start: datetime,
        intensity: dict[str, Any],
        judge: PlausibilityFilter,
        now: datetime,
        refused: list[str],
    ) -> Iterator[CarbonPoint]:
        """Yield the point of a half hour if a value is plausible; else add to `refused`."""
        end = start + HALF_HOUR
        if start > now:
            return
        actual, forecast = intensity.get("actual"), intensity.get("forecast")
        if end <= now and actual is not None:
            why = judge.fault(start, actual)
            if not why:
                yield self._made(start, actual, Quality.MEASURED, end, now)
                return
            refused.append(refusal(start, why))
        why = fault(forecast)
        if why or forecast is None:
            refused.append(refusal(start, f"(forecast) {why}"))
            return
        # NESO publishes no issue time; it issues values every half hour.
        issued_at = min(start, half_hour(now))
        yield self._made(start, forecast, Quality.PROVISIONAL, issued_at, now)

    def _made(
        self, start: datetime, value: float, quality: Quality, issued_at: datetime, now: datetime
    ) -> CarbonPoint:
        return CarbonPoint(
            signal=self.signal,
            start=start,
            end=start + HALF_HOUR,
            g_per_kwh=float(value),
            quality=quality,
            issued_at=issued_at,
            fetched_at=now,
            model="" if quality is Quality.MEASURED else MODEL,
        )


def rows_of(body: Any) -> list[Any]:
    """Return the rows of an answer.

    Raises:
        Transient: it is malformed.
    """
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise Transient(f"NESO answered {str(body)[:80]!r}, which has no list of data")
    return rows


def expected(rows: list[Any], *, signal: Signal, until: datetime, now: datetime) -> CarbonBatch:
    """Decode a forecast with one issue time, from the current half hour to `until`.

    Raises:
        NoData: there is no such half hour.
    """
    issued_at, refused = half_hour(now), []
    points: dict[datetime, CarbonPoint] = {}
    for row in rows:
        why = malformed(row)
        if why:
            refused.append(f"NESO sent {str(row)[:120]!r}: {why}.")
            continue
        start, value = moment(row["from"]), row["intensity"].get("forecast")
        if not issued_at <= start < until:
            continue
        why = fault(value)
        if why:
            refused.append(refusal(start, f"(forecast) {why}"))
            continue
        points[start] = CarbonPoint(
            signal=signal,
            start=start,
            end=start + HALF_HOUR,
            g_per_kwh=float(value),
            quality=Quality.FORECAST,
            issued_at=issued_at,
            fetched_at=now,
            model=MODEL,
        )
    if not points and not refused:
        raise NoData(EMPTY)
    return CarbonBatch(
        points=tuple(points[start] for start in sorted(points)), refused=tuple(refused)
    )


def malformed(row: Any) -> str:
    """Say why a row is malformed; "" when it is not."""
    if not isinstance(row, dict) or not isinstance(row.get("intensity"), dict):
        return "it has no intensity"
    try:
        start, end = moment(row["from"]), moment(row["to"])
    except (KeyError, TypeError, ValueError):
        return "its from and to are not times like 2018-01-20T12:00Z"
    if end - start != HALF_HOUR or start != half_hour(start):
        return "it is not a half hour that begins at :00 or :30"
    for name in ("actual", "forecast"):
        value = row["intensity"].get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not number:
            return f"{name} is not a number of g/kWh"
    return ""


def moment(text: str) -> datetime:
    """Parse NESO's time format."""
    return datetime.strptime(text, FORM).replace(tzinfo=UTC)


def half_hour(at: datetime) -> datetime:
    """Return the start of the half hour that contains `at`."""
    at = at.astimezone(UTC)
    return at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)
