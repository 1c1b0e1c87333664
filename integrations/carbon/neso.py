"""Great Britain's national carbon intensity, live: NESO's Carbon Intensity API (CC BY 4.0, no key).

Half-hourly, UTC, average, direct. `actual` is null for a while after its half hour: until it comes
the forecast stands in, marked provisional. The regional endpoints have forecasts only and so can
never be accounted with; they are not served.

Invariant: a point says which half hour it is of by its own `from` and `to`, not by what was asked.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.integrations.carbon.believed import Judge, fault, refusal
from wattmesh.integrations.carbon.http import JsonHttp
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

BASE_URL = "https://api.carbonintensity.org.uk"
ZONES = ("GB",)
HALF_HOUR = timedelta(minutes=30)
TRAILING = timedelta(hours=48)
LONGEST = timedelta(days=14)
"""Longest span that one request may ask for."""

_FORM = "%Y-%m-%dT%H:%MZ"


class Neso:
    """The national series as a carbon source (`CarbonSource`)."""

    def __init__(
        self, *, zone: str = "GB", base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Take the zone; `base_url` or `http` point elsewhere in tests and behind a mirror.

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
    def interval_s(self) -> float:
        """Half an hour."""
        return HALF_HOUR.total_seconds()

    @property
    def cadence_s(self) -> float:
        """A new half hour is told every half hour."""
        return HALF_HOUR.total_seconds()

    @property
    def origin(self) -> datetime:
        """Half hours begin at :00 and :30 UTC."""
        return datetime(2018, 1, 1, tzinfo=UTC)

    def poll(self, now: datetime) -> CarbonBatch:
        """Fetch the trailing 48 h and the 48 h forecast.

        A forecast that does not come costs only itself: it is named in `refused`.

        Raises:
            SourceUnavailable: nothing usable came about the trailing hours.
        """
        past = self.history(now - TRAILING, now + HALF_HOUR, now=now)
        try:
            rows = _rows(self._http.get(f"/intensity/{_half_hour(now):{_FORM}}/fw48h"))
            ahead = self._read(rows, now)
        except SourceUnavailable as error:
            return CarbonBatch(points=past.points, refused=(*past.refused, _sentence(error)))
        known = {point.start for point in past.points}
        later = tuple(point for point in ahead.points if point.start not in known)
        return CarbonBatch(
            points=past.points + later,
            refused=tuple(dict.fromkeys((*past.refused, *ahead.refused))),
        )

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the half hours in [start, end), however long ago, in requests of 14 days.

        Raises:
            SourceUnavailable: nothing usable came.
        """
        start, rows = _half_hour(start), []
        while start < end:
            until = min(start + LONGEST, end)
            rows += _rows(self._http.get(f"/intensity/{start:{_FORM}}/{until:{_FORM}}"))
            start = until
        return self._read(rows, now)

    def _read(self, rows: list[Any], now: datetime) -> CarbonBatch:
        """Turn rows into points, oldest first; each half hour once."""
        judge = Judge()
        refused: list[str] = []
        spans: dict[datetime, dict[str, Any]] = {}
        for row in rows:
            why = _malformed(row)
            if why:
                refused.append(f"NESO sent {str(row)[:120]!r}: {why}.")
            else:
                spans[_moment(row["from"])] = row["intensity"]
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
        judge: Judge,
        now: datetime,
        refused: list[str],
    ) -> Iterator[CarbonPoint]:
        """Give what one half hour says, if it can be believed; say so in `refused` if not."""
        end = start + HALF_HOUR
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
        quality = Quality.FORECAST if start > now else Quality.PROVISIONAL
        # NESO does not say when it issued a value; it does so every half hour.
        yield self._made(start, forecast, quality, min(start, _half_hour(now)), now)

    def _made(
        self, start: datetime, value: float, quality: Quality, issued_at: datetime, now: datetime
    ) -> CarbonPoint:
        """Make one point."""
        return CarbonPoint(
            signal=self.signal,
            start=start,
            end=start + HALF_HOUR,
            g_per_kwh=float(value),
            quality=quality,
            issued_at=issued_at,
            fetched_at=now,
            model="" if quality is Quality.MEASURED else "NESO forecast",
        )


def _rows(body: Any) -> list[Any]:
    """Give the rows of an answer.

    Raises:
        SourceUnavailable: it is not of the documented form, or holds nothing.
    """
    rows = body.get("data") if isinstance(body, dict) else None
    if not isinstance(rows, list):
        raise SourceUnavailable(f"NESO answered {str(body)[:80]!r}, which has no list of data")
    if not rows:
        raise SourceUnavailable("NESO answered an empty list; it has had outages of days")
    return rows


def _malformed(row: Any) -> str:
    """Say why a row is not a half hour of the documented form; "" when it is."""
    if not isinstance(row, dict) or not isinstance(row.get("intensity"), dict):
        return "it has no intensity"
    try:
        start, end = _moment(row["from"]), _moment(row["to"])
    except (KeyError, TypeError, ValueError):
        return "its from and to are not times like 2018-01-20T12:00Z"
    if end - start != HALF_HOUR or start != _half_hour(start):
        return "it is not a half hour that begins at :00 or :30"
    for name in ("actual", "forecast"):
        value = row["intensity"].get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not number:
            return f"{name} is not a number of g/kWh"
    return ""


def _moment(text: str) -> datetime:
    """Read NESO's time format."""
    return datetime.strptime(text, _FORM).replace(tzinfo=UTC)


def _half_hour(at: datetime) -> datetime:
    """Give the half hour that holds `at`."""
    at = at.astimezone(UTC)
    return at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0)


def _sentence(error: SourceUnavailable) -> str:
    """Say that the forecast is missing."""
    return f"The forecast did not come: {error}."
