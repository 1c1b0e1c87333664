"""ENTSO-E's transparency platform: day-ahead wind, sun (A69), load (A65) and prices (A44).

Free, with a security token (CC BY 4.0: name ENTSO-E where you show it). Operators must publish the
day-ahead forecasts of a day by 18:00 Brussels time of the day before (Regulation (EU) 543/2013,
articles 6 and 14); the platform keeps the newest version alone and does not say when it was made.
The auction of prices closes at noon of the day before (Regulation (EU) 2015/1222, article 47), and
its result is out about an hour later. Germany and Austria have two: 1 is the coupled European one,
2 a local one.

Invariant: a value counts as issued at that 18:00 (a price at 13:00), or when it was fetched if that
was before: never earlier than it can have been known. No price is of another auction than 1.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from zoneinfo import ZoneInfo

from wattmesh.errors import NoData, ZoneMismatch
from wattmesh.integrations.carbon.exogenous.collected import Collected
from wattmesh.integrations.carbon.reading.entsoe_platform import BASE_URL, EntsoePlatform, area_of
from wattmesh.integrations.carbon.reading.entsoe_xml import (
    Acknowledgement,
    DocumentSeries,
    MarketDocument,
)
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

BRUSSELS = ZoneInfo("Europe/Brussels")
PUBLISHED, PRICED = clock_time(18), clock_time(13)
DAY = timedelta(days=1)
SPAN = 90 * DAY
"""Of one request: a year is allowed, but a year of quarter hours is 10 MB."""
AHEAD = 2 * DAY
DAY_AHEAD = "A01"
"""The process of a forecast, and the market of a price."""
FIRST_AUCTION = 1
WIND_AND_SUN, LOAD, PRICES = "A69", "A65", "A44"
PRODUCTION: Mapping[str, ExogenousKind] = {
    "B16": ExogenousKind.SOLAR,
    "B18": ExogenousKind.WIND,
    "B19": ExogenousKind.WIND,
}
"""Solar, wind offshore, wind onshore."""
KINDS_OF = {LOAD: ExogenousKind.LOAD, PRICES: ExogenousKind.PRICE}


class Entsoe:
    """Day-ahead forecasts and prices of one bidding zone (`ExogenousProvider`)."""

    def __init__(
        self,
        *,
        zone: str,
        token: str,
        prices: bool = False,
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Take the zone and the token.

        Args:
            zone: a key of `AREAS`, or a code of 16 characters.
            token: the security token of an account.
            prices: whether to ask for prices as well.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown zone, or a malformed token.
        """
        self._zone, self._area, self._prices = zone, area_of(zone), prices
        self._platform = EntsoePlatform(token=token, base_url=base_url, http=http)

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """Wind, sun and load, and the price where it is asked for."""
        told = (ExogenousKind.WIND, ExogenousKind.SOLAR, ExogenousKind.LOAD)
        return (*told, ExogenousKind.PRICE) if self._prices else told

    @property
    def breaker_state(self) -> str:
        """State of the circuit breaker before it: closed, half-open or open."""
        return self._platform.breaker_state

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
        prices = Collected(provider="entsoe", zone=self._zone, now=now)
        first, nothing = start.astimezone(UTC), ""
        found = False
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            for query in self._queries():
                document = self._platform.document(query, first, last, zone=self._zone)
                what = query["documentType"]
                if isinstance(document, Acknowledgement):
                    nothing = document.text
                    told.refuse(f"{what}: {document.text[:120]}")
                    continue
                found = True
                self._collect(document, prices if what == PRICES else told, what)
            first = last
        if not found:
            raise NoData(
                f"ENTSO-E has no day-ahead forecast of {self._zone} for {start:%Y-%m-%d} to "
                f"{end:%Y-%m-%d} ({nothing[:120]}); days are missing now and then"
            )
        hours = tuple(_whole_hours(start, end))
        forecast = told.batch({hour: min(now, _published(hour, PUBLISHED)) for hour in hours})
        priced = prices.batch({hour: min(now, _published(hour, PRICED)) for hour in hours})
        return ExogenousBatch(
            points=tuple(
                sorted((*forecast.points, *priced.points), key=lambda each: (each.start, each.kind))
            ),
            refused=(*forecast.refused, *priced.refused),
        )

    def _queries(self) -> Iterator[Mapping[str, str]]:
        """Yield what is asked for each stretch."""
        area = self._area
        yield {"documentType": WIND_AND_SUN, "processType": DAY_AHEAD, "in_Domain": area}
        yield {"documentType": LOAD, "processType": DAY_AHEAD, "outBiddingZone_Domain": area}
        if self._prices:
            yield {"documentType": PRICES, "in_Domain": area, "out_Domain": area}

    def _collect(self, document: MarketDocument, told: Collected, what: str) -> None:
        """Take a document's values; `what`: its type.

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
            if document.prices is not (what == PRICES):
                told.refuse(f"ENTSO-E: answered {what} with another kind of document")
                continue
            if what == PRICES and not _is_wanted(series):
                continue  # another auction, or the intraday market: prices of their own
            kind = KINDS_OF.get(what) or PRODUCTION.get(series.production)
            if kind is None:
                told.refuse(f"ENTSO-E: production {series.production[:10]!r} was left out")
                continue
            for start, end, value in series.intervals:
                told.add(kind, start, end, value, series.production)


def _is_wanted(series: DocumentSeries) -> bool:
    """Say whether prices are of the coupled day-ahead auction."""
    return series.contract in ("", DAY_AHEAD) and series.auction == FIRST_AUCTION


def _published(hour: datetime, by: clock_time) -> datetime:
    """By when what is told of an hour had to be out, a day before."""
    day = hour.astimezone(BRUSSELS).date() - DAY
    return datetime.combine(day, by, BRUSSELS).astimezone(UTC)


def _whole_hours(start: datetime, end: datetime) -> Iterator[datetime]:
    """Every hour (UTC) that an answer about [start, end) may tell of: answers tell whole days."""
    hour = (start - DAY).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    while hour < end + DAY:
        yield hour
        hour += timedelta(hours=1)
