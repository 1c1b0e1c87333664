"""NESO: the day-ahead wind forecast of Great Britain, from its data portal (CKAN), without a key.

NESO Open Data Licence: name NESO where you show it. What is ahead comes from the resource "14 Days
Ahead Wind Forecast", made anew some eight times a day, the past from "Historic Day Ahead Wind
Forecasts". Both are half hours of the wind farms that are metered; neither has a unit (megawatts,
by NESO's pages) or a zone. NESO asks for two questions of data a minute at most, so a failed one
is not repeated before the next poll.

Invariant: what is ahead counts as known from when it was fetched; of the past, each half hour from
the moment that its row bears, which is when the archive took it in and often lies within the day
itself. The earliest row of a half hour holds, so a value that was put right later is not known
before. A row whose settlement period is not that of its own time is not used.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as clock_time
from typing import Any
from zoneinfo import ZoneInfo

from wattmesh.errors import InputInvalid, NoData
from wattmesh.integrations.carbon.exogenous.collected import Collected
from wattmesh.integrations.carbon.exogenous.neso_portal import (
    BASE_URL,
    NesoPortal,
    Resource,
    read_moment,
)
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import finite_number
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

ZONES = ("GB",)
LONDON = ZoneInfo("Europe/London")
HALF_HOUR = timedelta(minutes=30)
AHEAD = timedelta(days=4)
SPAN = timedelta(days=60)
"""Of one question: 2,880 half hours, some of which have two rows."""
STALE = timedelta(days=1)
"""A forecast that reaches two weeks ahead looks alive for long after NESO stopped making it."""
EARLIEST = timedelta(days=15)
"""No row of the past was made longer before its half hour."""
LEAST_CAPACITY_MW, MOST_CAPACITY_MW = 2_000.0, 400_000.0
"""Of all metered wind farms, 11 GW in 2018: outside it the unit is another one."""

FORECAST = Resource(
    id="93c3048e-1dab-4057-a2a9-417540583929",
    package="14-days-ahead-wind-forecasts",
    name="14 Days Ahead Wind Forecast",
    time="Datetime",
    value="Wind_Forecast",
    made="ForecastDateTime",
)
ARCHIVE = Resource(
    id="7524ec65-f782-4258-aaf8-5b926c17b966",
    package="day-ahead-wind-forecast",
    name="Historic Day Ahead Wind Forecasts",
    time="Datetime_GMT",
    value="Incentive_forecast",
    made="Forecast_Timestamp",
)


class NesoWind:
    """The wind forecast of Great Britain (`ExogenousProvider`)."""

    def __init__(
        self, *, zone: str = "GB", base_url: str = BASE_URL, http: JsonHttp | None = None
    ) -> None:
        """Set the zone; `base_url` or `http` select a mirror or a test server.

        Raises:
            InputInvalid: a zone other than GB.
        """
        if zone not in ZONES:
            raise InputInvalid(f"carbon: zone {zone!r} is not served by neso; it serves GB")
        self._zone = zone
        self._portal = NesoPortal(base_url=base_url, http=http)

    @property
    def kinds(self) -> tuple[ExogenousKind, ...]:
        """The wind."""
        return (ExogenousKind.WIND,)

    @property
    def breaker_state(self) -> str:
        """State of the circuit breaker before it: closed, half-open or open."""
        return self._portal.breaker_state

    @property
    def cadence(self) -> timedelta:
        """NESO makes it every few hours; two questions a poll."""
        return timedelta(hours=1)

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Fetch what is forecast from the running hour on, four days.

        Raises:
            NoData: nothing is told, or nothing newer than a day. SourceUnavailable: nothing usable
                came. ZoneMismatch: the answer is not of Great Britain.
        """
        told = Collected(provider="neso", zone=self._zone, now=now)
        running = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        newest: datetime | None = None
        for start, value, made in self._half_hours(FORECAST, running, running + AHEAD, told):
            if made is not None and now - made > STALE:
                newest = max(newest or made, made)
                continue
            told.add(ExogenousKind.WIND, start, start + HALF_HOUR, value)
        batch = told.batch(now)
        if not batch.points and newest is not None:
            raise NoData(
                f"NESO's newest wind forecast was made {newest:%Y-%m-%d %H:%M} UTC, "
                f"{(now - newest) / timedelta(hours=1):.0f} h ago; it is not used"
            )
        return batch

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Fetch what had been forecast of [start, end).

        Raises:
            NoData: nothing is told. SourceUnavailable: nothing usable came. ZoneMismatch: the
                answer is not of Great Britain.
        """
        told = Collected(provider="neso", zone=self._zone, now=now)
        found: dict[datetime, tuple[datetime, float]] = {}
        first, missing = start.astimezone(UTC), None
        while first < end:
            last = min(end.astimezone(UTC), first + SPAN)
            try:
                for at, value, made in self._half_hours(ARCHIVE, first, last, told):
                    known = min(now, made or now)
                    if at - known > EARLIEST:
                        told.refuse(
                            f"NESO, {at:%Y-%m-%dT%H:%MZ}: made {known:%Y-%m-%d}, which is earlier "
                            "than any forecast of it; left out"
                        )
                    elif at not in found or known < found[at][0]:
                        found[at] = (known, value)
            except NoData as error:
                missing = error
            first = last
        if missing is not None and not found:
            raise missing
        issued: dict[datetime, datetime] = {}
        for at, (known, value) in found.items():
            told.add(ExogenousKind.WIND, at, at + HALF_HOUR, value)
            hour = at.replace(minute=0)
            issued[hour] = max(issued.get(hour, known), known)
        return told.batch(issued)

    def _half_hours(
        self, resource: Resource, start: datetime, end: datetime, told: Collected
    ) -> Iterator[tuple[datetime, float, datetime | None]]:
        """Yield start, megawatts and the moment that the row bears, of what can be believed."""
        for row in self._portal.rows(resource, start, end):
            at, made = read_moment(row.get(resource.time)), read_moment(row.get(resource.made))
            value = finite_number(row.get(resource.value))
            capacity = finite_number(row.get("Capacity"))
            if at is None or at != at.replace(minute=at.minute // 30 * 30, second=0, microsecond=0):
                told.refuse(f"NESO sent {str(row)[:120]!r}: it is not a half hour")
                continue
            why = _period_mistake(at, row)
            if not why and value is None:
                why = f"{str(row.get(resource.value))[:40]!r} is no number"
            if not why and not (LEAST_CAPACITY_MW <= (capacity or 0.0) <= MOST_CAPACITY_MW):
                why = f"a fleet of {str(row.get('Capacity'))[:20]!r} MW is not that of GB"
            if not why and value is not None and capacity is not None and value > 1.1 * capacity:
                why = f"{value:g} MW of a fleet of {capacity:g} MW are outside what can be"
            if why:
                told.refuse(f"NESO, {at:%Y-%m-%dT%H:%MZ}: {why}; left out")
            elif value is not None and start <= at < end:
                yield at, value, made


def settlement_period(at: datetime) -> tuple[str, int]:
    """Give date and number of the settlement period that begins at a moment.

    Periods count from 1 at midnight in London; a day has 48, or 46 or 50 when clocks change.
    """
    date = at.astimezone(LONDON).date()
    midnight = datetime.combine(date, clock_time(), LONDON).astimezone(UTC)
    return f"{date:%Y-%m-%d}", (at - midnight) // HALF_HOUR + 1


def _period_mistake(at: datetime, row: dict[str, Any]) -> str:
    """Say how date and settlement period of a row contradict its time; "" when they agree."""
    date, period = settlement_period(at)
    said, number_said = str(row.get("Date"))[:10], finite_number(row.get("Settlement_Period"))
    if (said, number_said) == (date, period):
        return ""
    return f"it is period {period} of {date}, not {str(number_said)[:8]} of {said}"
