"""EIA-930: the day-ahead demand forecast of US balancing authorities, type DF of EIA's API.

Public domain, with a free key: name EIA where you show it. Authorities send megawatts by hour of
UTC; not every authority forecasts. EIA tells only the newest version, and not when it came. Its
instructions of 2014 for the form want each day's forecast posted by 7:00 Eastern time of that day;
authorities were seen to be most of a day earlier, but nothing that we could read promises it.

Invariant: a value counts as issued at that 7:00, or when it was fetched if that was before: never
earlier than it can have been known. Every authority's day begins with or after the Eastern one, so
the Eastern day of an hour never gives too early a moment.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Any
from zoneinfo import ZoneInfo

from wattmesh.errors import InputInvalid, NoData
from wattmesh.integrations.carbon.exogenous.collected import HOUR, Collected
from wattmesh.integrations.carbon.reading.eia_api import BASE_URL, UNIT, EiaApi
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import finite_number
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

PATH = "/electricity/rto/region-data/data/"
TYPE = "DF"
EASTERN = ZoneInfo("America/New_York")
POSTED = clock_time(7)
BACK, AHEAD = timedelta(days=1), timedelta(days=3)
"""Around now: where the next day is posted late, the last one shows that the authority tells."""
SPAN = timedelta(days=180)
"""Of one question: 4,320 hours, less than a page."""
REGIONS = frozenset(
    "CAL CAR CENT FLA MIDA MIDW NE NW NY SE SW TEN TEX US48".split()  # noqa: SIM905
)
"""Sums over authorities: near their end only some of these have told, and the sum is too low."""
NOTHING = (
    "day-ahead demand forecast (not every authority sends one, and an unknown authority looks the "
    "same)"
)


class Eia930Demand:
    """The day-ahead demand forecast of one authority (`ExogenousProvider`)."""

    def __init__(
        self,
        *,
        zone: str,
        key: str,
        label: str = "ending",
        base_url: str = BASE_URL,
        http: JsonHttp | None = None,
    ) -> None:
        """Take the authority and the key.

        Args:
            zone: code of the authority, e.g. CISO, PJM, ERCO.
            key: the API key.
            label: whether an hour is labelled by its `ending` (as EIA documents) or `starting`.
            base_url: another address of the same API.
            http: client to use instead of one for `base_url`.

        Raises:
            InputInvalid: an unknown label, a malformed key or zone, or a region.
        """
        if zone in REGIONS:
            raise InputInvalid(
                f"carbon: zone {zone!r} is a sum over authorities, of which some tell their hours "
                "later than others; name an authority like CISO, PJM or ERCO"
            )
        self._api = EiaApi(zone=zone, key=key, label=label, base_url=base_url, http=http)

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """The load."""
        return (ExogenousKind.LOAD,)

    @property
    def breaker_state(self) -> str:
        """State of the circuit breaker before it: closed, half-open or open."""
        return self._api.breaker_state

    @property
    def cadence(self) -> timedelta:
        """Authorities send at different hours, some late, and restate."""
        return timedelta(hours=1)

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Fetch what is forecast of the day before now and of the hours after.

        Raises:
            NoData: nothing is told. SourceUnavailable: nothing usable came. SourceRefused: the key
                or the zone is wrong.
        """
        running = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        return self.past_forecasts(running - BACK, running + AHEAD, now=now)

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Fetch what had been forecast of the hours that begin in [start, end).

        Raises:
            NoData: nothing is told. SourceUnavailable: nothing usable came. SourceRefused: the key
                or the zone is wrong.
        """
        told = Collected(provider="eia930", zone=self._api.zone, now=now)
        issued: dict[datetime, datetime] = {}
        first, missing = start.astimezone(UTC), None
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            try:
                for begin, row in self._rows(first, last, told):
                    self._collect(begin, row, told)
                    issued[begin] = min(now, posted_by(begin))
            except NoData as error:
                missing = error
            first = last
        if missing is not None and not issued:
            raise missing
        return told.batch(issued)

    def _rows(
        self, first: datetime, last: datetime, told: Collected
    ) -> Iterator[tuple[datetime, Any]]:
        """Yield the rows of the hours that begin in [first, last), with where these begin."""
        for row in self._api.rows(PATH, first, last, nothing=NOTHING, facets={"type": TYPE}):
            begin = self._api.begin(row)
            if begin is None:
                told.refuse(f"EIA sent {str(row)[:120]!r}: not an hour like 2026-08-25T14")
            elif first <= begin < last:
                yield begin, row

    def _collect(self, begin: datetime, row: Any, told: Collected) -> None:
        """Take one row's value, or the reason against it."""
        kind, units = row.get("type"), row.get("value-units")
        value = finite_number(row.get("value"))
        if kind != TYPE:
            # What was measured, taken for a forecast, would be known before it was.
            told.refuse(f"EIA sent type {str(kind)[:10]!r}, asked for {TYPE}; left out")
        elif units != UNIT:
            told.refuse(f"EIA sent {TYPE} in {str(units)[:20]!r}, not in {UNIT}; left out")
        elif value is None:
            sent = str(row.get("value"))[:40]
            told.refuse(f"{begin:%Y-%m-%dT%H:%MZ}: EIA sent {sent!r}, which is no number; left out")
        else:
            told.add(ExogenousKind.LOAD, begin, begin + HOUR, value)


def posted_by(hour: datetime) -> datetime:
    """By when the forecast of an hour had to be posted, aware UTC: it may be after the hour."""
    day = hour.astimezone(EASTERN).date()
    return datetime.combine(day, POSTED, EASTERN).astimezone(UTC)
