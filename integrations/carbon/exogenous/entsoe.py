"""ENTSO-E's transparency platform: day-ahead wind, sun (A69) and load (A65) of European zones.

Free, with a security token (CC BY 4.0: name ENTSO-E where you show it). Operators must publish the
day-ahead forecasts of a day by 18:00 Brussels time of the day before (Regulation (EU) 543/2013,
articles 6 and 14); the platform keeps the newest version alone and does not say when it was made.

Invariant: a value counts as issued at that 18:00, or when it was fetched if that was before: never
earlier than it can have been known.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from zoneinfo import ZoneInfo

from wattmesh.errors import AuthFailed, InputInvalid, NoData, RateLimited, ZoneMismatch
from wattmesh.integrations.carbon.exogenous.collected import Collected
from wattmesh.integrations.carbon.exogenous.entsoe_xml import (
    Acknowledgement,
    DocumentError,
    MarketDocument,
    parsed,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer, ErrorClass
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

BASE_URL = "https://web-api.tp.entsoe.eu"
PATH = "/api"
BRUSSELS = ZoneInfo("Europe/Brussels")
PUBLISHED = clock_time(18)
DAY = timedelta(days=1)
SPAN = 90 * DAY
"""Of one request: a year is allowed, but a year of quarter hours is 10 MB."""
AHEAD = 2 * DAY
HTTP_BAD_REQUEST, HTTP_UNAUTHORIZED = 400, 401
NOTHING = "999"
"""The reason code of an acknowledgement for many mistakes; most often there is no data."""
DAY_AHEAD = "A01"
PRODUCTION: Mapping[str, ExogenousKind] = {
    "B16": ExogenousKind.SOLAR,
    "B18": ExogenousKind.WIND,
    "B19": ExogenousKind.WIND,
}
"""Solar, wind offshore, wind onshore."""
AREAS: Mapping[str, str] = {
    "AT": "10YAT-APG------L",
    "BE": "10YBE----------2",
    "CH": "10YCH-SWISSGRIDZ",
    "CZ": "10YCZ-CEPS-----N",
    "DE": "10Y1001A1001A82H",
    "DK1": "10YDK-1--------W",
    "DK2": "10YDK-2--------M",
    "ES": "10YES-REE------0",
    "FI": "10YFI-1--------U",
    "FR": "10YFR-RTE------C",
    "NL": "10YNL----------L",
    "PL": "10YPL-AREA-----S",
    "PT": "10YPT-REN------W",
    "SE1": "10Y1001A1001A44P",
    "SE2": "10Y1001A1001A45N",
    "SE3": "10Y1001A1001A46L",
    "SE4": "10Y1001A1001A47J",
}
"""Energy identification codes of bidding zones; DE is Germany with Luxembourg."""
CODE_LENGTH = 16


class Entsoe:
    """Day-ahead forecasts of one bidding zone (`ExogenousProvider`)."""

    def __init__(
        self, *, zone: str, token: str, base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Take the zone and the token.

        Args:
            zone: a key of `AREAS`, or a code of 16 characters.
            token: the security token of an account.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown zone, or a malformed token.
        """
        area = AREAS.get(zone, zone)
        if len(area) != CODE_LENGTH or not area.replace("-", "").isalnum():
            raise InputInvalid(
                f"carbon: zone {zone!r} is neither one of {', '.join(AREAS)} nor a code of "
                f"{CODE_LENGTH} characters like {AREAS['FR']}"
            )
        self._zone, self._area = zone, area
        self._credentials = Credentials.parameter("securityToken", token)
        self._http = http or JsonHttp(base_url)

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """Wind, sun and load."""
        return (ExogenousKind.WIND, ExogenousKind.SOLAR, ExogenousKind.LOAD)

    @property
    def breaker_state(self) -> str:
        """State of the circuit breaker before it: closed, half-open or open."""
        return self._http.breaker_state

    @property
    def cadence(self) -> timedelta:
        """Operators are late now and then, and restate."""
        return timedelta(hours=1)

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Fetch what is forecast of today and tomorrow.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the token or the zone is wrong.
        """
        today = datetime.combine(now.astimezone(BRUSSELS).date(), clock_time(), BRUSSELS)
        return self.past_forecasts(today, today + AHEAD, now=now)

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Fetch what had been forecast of [start, end).

        Raises:
            NoData: nothing at all is told. SourceUnavailable: nothing usable came. SourceRefused:
                the token or the zone is wrong.
        """
        told = Collected(provider="entsoe", zone=self._zone, now=now)
        first, nothing = start.astimezone(UTC), ""
        found = False
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            for query in (
                {"documentType": "A69", "in_Domain": self._area},
                {"documentType": "A65", "outBiddingZone_Domain": self._area},
            ):
                document = self._document(query, first, last)
                if isinstance(document, Acknowledgement):
                    nothing = document.text
                    told.refuse(f"{query['documentType']}: {document.text[:120]}")
                    continue
                found = True
                self._collect(document, told, load=query["documentType"] == "A65")
            first = last
        if not found:
            raise NoData(
                f"ENTSO-E has no day-ahead forecast of {self._zone} for {start:%Y-%m-%d} to "
                f"{end:%Y-%m-%d} ({nothing[:120]}); days are missing now and then"
            )
        starts = {hour: min(now, _published(hour)) for hour in _whole_hours(start, end)}
        return told.batch(starts)

    def _document(
        self, query: Mapping[str, str], start: datetime, end: datetime
    ) -> MarketDocument | Acknowledgement:
        """Fetch one document; an acknowledgement that there is no data is an answer."""
        asked = {
            **query,
            "processType": DAY_AHEAD,
            "periodStart": f"{start:%Y%m%d%H%M}",
            "periodEnd": f"{end:%Y%m%d%H%M}",
        }
        try:
            answer = self._http.get(
                PATH,
                query=asked,
                headers={"Accept": "application/xml"},
                credentials=self._credentials,
                classify=_classify,
                read=parsed,
            )
        except NoData as error:
            return Acknowledgement(code=NOTHING, text=str(error))
        if isinstance(answer, Acknowledgement) and answer.code != NOTHING:
            raise InputInvalid(
                f"ENTSO-E refused a question about {self._zone}: {answer.code} {answer.text[:160]}"
            )
        assert isinstance(answer, MarketDocument | Acknowledgement)
        return answer

    def _collect(self, document: MarketDocument, told: Collected, *, load: bool) -> None:
        """Take a document's values.

        Raises:
            ZoneMismatch: it is of another zone.
        """
        for why in document.refused:
            told.refuse(f"ENTSO-E: {why}")
        for series in document.series:
            if series.zone != self._area:
                raise ZoneMismatch(
                    f"ENTSO-E answered for {series.zone[:20]!r}, asked for {self._area!r}; nothing "
                    "was used"
                )
            kind = ExogenousKind.LOAD if load else PRODUCTION.get(series.production)
            if kind is None:
                told.refuse(f"ENTSO-E: production {series.production[:10]!r} was left out")
                continue
            for start, end, value in series.intervals:
                told.add(kind, start, end, value, series.production)


def _published(hour: datetime) -> datetime:
    """By when the forecast of an hour had to be out."""
    day = hour.astimezone(BRUSSELS).date() - DAY
    return datetime.combine(day, PUBLISHED, BRUSSELS).astimezone(UTC)


def _whole_hours(start: datetime, end: datetime) -> Iterator[datetime]:
    """Every hour (UTC) that an answer about [start, end) may tell of: answers tell whole days."""
    hour = (start - DAY).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end + DAY:
        yield hour
        hour += timedelta(hours=1)


def _classify(answer: ErrorAnswer) -> ErrorClass | None:
    """Decode ENTSO-E's errors: a refusal is mostly an acknowledgement with status 400."""
    if answer.status == HTTP_UNAUTHORIZED:
        advice = "check the token; a new account must ask for API access by mail"
        return ErrorClass(error=AuthFailed, advice=advice)
    if answer.status != HTTP_BAD_REQUEST:
        return None
    try:
        told = parsed(answer.body)
    except DocumentError:
        return None
    if not isinstance(told, Acknowledgement):
        return None
    if "maximum allowed" in told.text or "limit" in told.text.lower():
        return ErrorClass(error=RateLimited, advice=told.text[:160])
    return ErrorClass(error=NoData, advice=told.text[:160])
