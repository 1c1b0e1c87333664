"""Electricity Maps and WattTime as the daemon polls them: real HTTP, a real journal, for hours."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.clock import Clock
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.poller import Poller
from wattmesh.errors import AuthFailed, Transient
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.watttime import WattTime
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.readings import Quality

START = datetime(2026, 11, 20, 0, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
FREE_LIMIT = 50
"""Requests an hour that a free key of Electricity Maps has."""


@pytest.fixture
def clock() -> Clock:
    """Give the clock."""
    return Clock(START)


@pytest.fixture
def grid(clock: Clock) -> Iterator[GridServer]:
    """Give a running grid server."""
    with GridServer(clock=clock).serving() as server:
        yield server


@pytest.fixture
def http(grid: GridServer, clock: Clock) -> Iterator[dict[str, JsonHttp]]:
    """Give a client for each provider, on the one clock."""
    clients = {
        name: JsonHttp(
            grid.base(name),
            patience=PATIENT,
            pause=lambda _: None,
            clock_s=clock.seconds,
        )
        for name in ("electricity_maps", "watttime")
    }
    yield clients
    for client in clients.values():
        client.close()


def polls(provider: Provider, journal: Journal, clock: Clock, hours: float) -> Poller:
    """Poll a provider at its own cadence for so many hours."""
    poller = Poller(provider, journal)
    until = clock.now + hours * HOUR
    while clock.now < until:
        poller.poll(clock.now)
        clock.now += timedelta(seconds=provider.series.cadence_s)
    return poller


def hourly(grid: GridServer, service: str) -> Counter[datetime]:
    """Count the requests of each hour."""
    return Counter(
        asked.at.replace(minute=0, second=0) for asked in grid.asked if asked.service == service
    )


def test_a_free_key_is_served_within_its_limit(
    grid: GridServer, journal: Journal, clock: Clock, http: dict[str, JsonHttp]
) -> None:
    """A day with latest and history alone: every hour is booked, under 50 requests an hour."""
    for endpoint in ("past-range", "forecast"):
        grid.fail(Fault.FORBIDDEN_TEXT, provider="electricity_maps", path=endpoint)
    em = ElectricityMaps(zone="DE", key="k", http=http["electricity_maps"])
    polls(em, journal, clock, 24)
    told = journal.carbon.observed(em.signal, START - 12 * HOUR, START + 22 * HOUR)
    wanted = [START.replace(minute=0) + i * HOUR for i in range(-11, 23)]
    assert [point.start for point in told] == wanted
    assert {point.quality for point in told} == {Quality.ESTIMATED, Quality.MEASURED}
    assert max(hourly(grid, "electricity_maps").values()) <= FREE_LIMIT / 2
    assert grid.count("electricity_maps", "past-range") <= 2
    assert grid.count("electricity_maps", "forecast") <= 2


def test_an_outage_of_hours_costs_few_requests_and_no_hour(
    grid: GridServer, journal: Journal, clock: Clock, http: dict[str, JsonHttp]
) -> None:
    """Six hours of failure: the breaker spares the provider, and what was missed comes later."""
    begin, end = START + 4 * HOUR, START + 10 * HOUR
    grid.fail(Fault.SERVER_ERROR, provider="electricity_maps", during=(begin, end))
    em = ElectricityMaps(zone="DE", key="k", http=http["electricity_maps"])
    polls(em, journal, clock, 14)
    told = journal.carbon.observed(em.signal, START, START + 13 * HOUR)
    assert [point.start for point in told] == [
        START.replace(minute=0) + i * HOUR for i in range(1, 14)
    ]
    failing = sum(begin <= asked.at < end for asked in grid.asked)
    assert 24 <= failing <= 24 * 4
    assert em.breaker_state == "closed"


def test_a_marginal_signal_is_stored_every_five_minutes(
    grid: GridServer, journal: Journal, clock: Clock, http: dict[str, JsonHttp]
) -> None:
    """Forty minutes of WattTime, a token that dies in between: each interval, few logins."""
    wt = WattTime(zone="CAISO_NORTH", username="ann", password="p", http=http["watttime"])
    polls(wt, journal, clock, 1 / 3)
    grid.fail(Fault.TOKEN_EXPIRED, provider="watttime", times=1)
    polls(wt, journal, clock, 1 / 3)
    told = journal.carbon.observed(wt.signal, START, clock.now - timedelta(minutes=5))
    assert [point.start for point in told] == [START + i * timedelta(minutes=5) for i in range(8)]
    assert told[-1].quality is Quality.PROVISIONAL
    assert told[0].quality is Quality.MEASURED
    assert grid.count("watttime", "login") == 2


def test_a_refused_provider_is_named_and_an_outage_is_not_confused_with_it(
    grid: GridServer, journal: Journal, clock: Clock, http: dict[str, JsonHttp]
) -> None:
    """A wrong key needs a person, an outage needs time: the poll says which."""
    em = ElectricityMaps(zone="DE", key="k", http=http["electricity_maps"])
    poller = Poller(em, journal)
    for fault, error in ((Fault.UNAUTHORIZED, AuthFailed), (Fault.SERVER_ERROR, Transient)):
        grid.fail(fault, provider="electricity_maps")
        assert isinstance(poller.poll(clock.now).failure, error)
        grid.mend()
    assert poller.poll(clock.now).failure is None
