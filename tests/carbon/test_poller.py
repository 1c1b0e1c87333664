"""Polls over real HTTP into a real journal: what is asked when, and what every failure leaves."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tests.carbon.asking import PATIENT
from tests.daemon.clocks import SteppedClock
from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view
from wattmesh.controller.daemon.loop_bodies import REFUSED_AGAIN_S, PollDuty
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.controller.signals.poller import HISTORY, Poller
from wattmesh.errors import RateLimited, SourceUnavailable, ZoneMismatch
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.neso import Neso
from wattmesh.integrations.carbon.neso_region import NesoRegion
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.policies.decision import Rung
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HALF_HOUR = timedelta(minutes=30)
DAY = timedelta(days=1)
KEY = "a-key-of-this-test"


@dataclass(slots=True)
class World:
    """A grid, a clock and a journal."""

    clock: SteppedClock
    server: GridServer
    journal: Journal
    opened: list[JsonHttp]

    @property
    def now(self) -> datetime:
        """What the clock says."""
        return self.clock.wall

    def http(self, service: str) -> JsonHttp:
        """Connect, impatiently; a breaker that opens is another file's."""
        http = JsonHttp(
            self.server.base(service),
            patience=PATIENT,
            pause=lambda _: None,
            breaker=Breaker(failures=1000),
        )
        self.opened.append(http)
        return http

    def neso(self) -> Neso:
        """Give the provider that has a forecast."""
        return Neso(http=self.http("neso"))

    def maps(self) -> ElectricityMaps:
        """Give a provider whose answers name a zone."""
        return ElectricityMaps(zone="DE", key=KEY, http=self.http("electricity_maps"))

    def duty(self, provider: Provider) -> PollDuty:
        """Make the job of a provider, as a daemon that has just started does."""
        forecaster = Forecaster(self.journal, provider.signal, provider.series)
        loop_facts = LoopFacts(clock=self.clock.clock, settings=Settings(), started_s=0.0)
        return PollDuty(Poller(provider, self.journal), forecaster, loop_facts, lambda: None)

    def rung(self, provider: Provider) -> Rung:
        """Say what decisions would rest on."""
        facts = SignalFacts(
            signal=provider.signal,
            interval_s=provider.series.interval_s,
            stale_after_s=72 * 3600.0,
        )
        return carbon_view(self.journal, facts, self.now).rung


@pytest.fixture
def world(journal: Journal) -> Iterator[World]:
    """Give all three, running."""
    clock = SteppedClock()
    clock.wall = NOW
    with GridServer(clock=lambda: clock.wall, keys=frozenset({KEY})).serving() as server:
        made = World(clock=clock, server=server, journal=journal, opened=[])
        yield made
        for http in made.opened:
            http.close()


def test_the_first_poll_brings_ten_days_and_a_whole_issue(world: World) -> None:
    """What was is measured, what is expected is one issue, both are in the journal."""
    neso = world.neso()
    world.duty(neso).turn()
    points = world.journal.carbon.observed(neso.signal, NOW - 10 * DAY, NOW)
    assert len(points) == 480
    assert {each.quality for each in points[:-4]} == {Quality.MEASURED}
    issue = next(
        each for each in world.journal.forecasts.newest(neso.signal) if each.source == "neso"
    )
    assert issue.slots[0].start == NOON
    assert len(issue.slots) == 96


def test_a_poll_that_finds_nothing_new_stores_nothing(world: World) -> None:
    """Two polls within a half hour: one set of rows, one issue."""
    neso = world.neso()
    poller = Poller(neso, world.journal)
    world.journal.carbon.filled(neso.signal, deep_at=NOW, since=NOW - HISTORY)
    assert poller.poll(NOW).new
    assert poller.poll(NOW).new == 0


def test_a_forecast_that_nobody_wants_is_not_asked_for(world: World) -> None:
    """Fallbacks and signals of reports; a region, which has nothing else, is asked all the same."""
    neso = world.neso()
    assert Poller(neso, world.journal, ahead=False).poll(NOW).failure is None
    assert world.server.count("neso", "fw48h") == 0
    assert world.journal.carbon.observed(neso.signal, NOW - DAY, NOW)
    assert world.journal.forecasts.newest(neso.signal) == ()
    region = NesoRegion(zone="13", http=world.http("neso"))
    Poller(region, world.journal, ahead=False).poll(NOW)
    assert world.journal.forecasts.newest(region.signal)


def test_the_past_is_filled_a_week_at_a_time_and_once(world: World) -> None:
    """Each poll fetches one week more until two months are there; a restart does not begin anew."""
    neso = world.neso()
    poller = Poller(neso, world.journal)
    reached = []
    for _ in range(10):
        poller.poll(NOW)
        first = world.journal.carbon.observed(neso.signal, NOW - 100 * DAY, NOW)[0]
        reached.append(round((NOW - first.start) / DAY))
    assert reached == [17, 24, 31, 38, 45, 52, 59, 60, 60, 60]
    asked = world.server.count("neso", "intensity")
    Poller(neso, world.journal).poll(NOW)
    assert world.server.count("neso", "intensity") - asked == 2


def test_the_trailing_days_are_asked_for_once_a_day(world: World) -> None:
    """So a value that was revised after a week is heard of the next day, and not each half hour."""
    neso = world.neso()
    duty = world.duty(neso)
    duty.turn()
    old = NOON - 6 * DAY
    (before,) = world.journal.carbon.observed(neso.signal, old, old)
    world.server.fail(Fault.REVISED, provider="neso", about=(old, old + HALF_HOUR))
    world.clock.pass_s(1800.0)
    duty.turn()
    assert world.journal.carbon.observed(neso.signal, old, old) == (before,)
    world.clock.pass_s(DAY.total_seconds())
    duty.turn()
    (after,) = world.journal.carbon.observed(neso.signal, old, old)
    assert after.g_per_kwh == pytest.approx(1.2 * before.g_per_kwh, abs=1)


def test_a_long_pause_is_made_up_for(world: World) -> None:
    """A daemon that was gone for two weeks asks from where its values end."""
    neso = world.neso()
    world.duty(neso).turn()
    world.clock.pass_s(14 * DAY.total_seconds())
    world.journal.carbon.filled(neso.signal, deep_at=world.now, since=NOW - HISTORY)
    world.duty(neso).turn()
    points = world.journal.carbon.observed(neso.signal, NOW - DAY, world.now)
    assert len({each.start for each in points}) == 15 * 48


def test_a_missing_forecast_costs_only_itself(world: World) -> None:
    """Observations are stored, the poll is a success, and the sentence says what is missing."""
    neso = world.neso()
    world.server.fail(Fault.SERVER_ERROR, provider="neso", path="fw48h")
    polled = Poller(neso, world.journal).poll(NOW)
    assert polled.failure is None
    assert polled.refused[0].startswith("The forecast did not come: ")
    assert world.journal.carbon.observed(neso.signal, NOW - DAY, NOW)
    fetch = world.journal.carbon.last_fetch(neso.signal)
    assert fetch is not None
    assert (fetch.state, fetch.detail) == ("ok", polled.refused[0])


def test_a_forecast_that_stays_away_is_said_once(world: World) -> None:
    """However often it is asked for, and whatever the sentence counts."""
    neso = world.neso()
    world.server.fail(Fault.SERVER_ERROR, provider="neso", path="fw48h")
    poller = Poller(neso, world.journal)
    said = [each for _ in range(8) for each in poller.poll(NOW).refused]
    assert len(said) <= 2  # that it fails; that it is left alone
    world.server.mend()
    assert poller.poll(NOW).refused == ()


def test_what_was_refused_is_said_once(world: World) -> None:
    """A false zero is in every answer for two days; it is one line in the log."""
    neso = world.neso()
    zero = NOON - timedelta(hours=3)
    world.server.fail(Fault.ZERO, provider="neso", about=(zero, zero + HALF_HOUR))
    poller = Poller(neso, world.journal)
    assert len(poller.poll(NOW).refused) == 1
    assert poller.poll(NOW).refused == ()


def test_a_dead_provider_leaves_what_is_stored_and_a_profile_is_made(world: World) -> None:
    """Down the ladder as it ages: its forecast, then a profile of its days, then nothing."""
    neso = world.neso()
    duty = world.duty(neso)
    duty.turn()
    assert world.rung(neso) is Rung.ISSUED
    world.server.fail(Fault.CLOSED, provider="neso")
    rungs = []
    for _ in range(8):
        world.clock.pass_s(12 * 3600.0)
        with pytest.raises(SourceUnavailable):
            duty.turn()
        rungs.append(world.rung(neso))
    assert rungs == [Rung.ISSUED] * 1 + [Rung.PROFILE] * 4 + [Rung.NONE] * 3
    world.server.mend()
    duty.turn()
    assert world.rung(neso) is Rung.ISSUED


def test_a_restart_needs_no_network(world: World) -> None:
    """The provider is dead when the daemon starts: decisions rest on what the journal has."""
    neso = world.neso()
    world.duty(neso).turn()
    world.server.fail(Fault.CLOSED, provider="neso")
    world.clock.pass_s(3 * 3600.0)
    assert world.rung(neso) is Rung.ISSUED
    world.clock.pass_s(30 * 3600.0)
    fresh = world.duty(world.neso())
    with pytest.raises(SourceUnavailable):
        fresh.turn()
    assert world.rung(neso) is Rung.PROFILE


def test_another_zone_in_mid_run_is_refused_and_asked_for_slowly(world: World) -> None:
    """Nothing of it is stored; the journal says that a person must mend it; later it goes on."""
    maps = world.maps()
    duty = world.duty(maps)
    duty.turn()
    rows = world.journal.carbon.newest_id()
    world.server.fail(Fault.WRONG_ZONE, provider="electricity_maps")
    world.clock.pass_s(3600.0)
    with pytest.raises(ZoneMismatch):
        duty.turn()
    assert world.journal.carbon.newest_id() == rows
    fetch = world.journal.carbon.last_fetch(maps.signal)
    assert fetch is not None
    assert fetch.state == "refused"
    asked = world.server.count("electricity_maps")
    duty.turn()
    assert world.server.count("electricity_maps") == asked
    world.server.mend()
    world.clock.pass_s(REFUSED_AGAIN_S)
    duty.turn()
    assert world.journal.carbon.newest_id() > rows


def test_a_provider_that_asks_for_patience_is_left_alone(world: World) -> None:
    """429 with Retry-After: the next poll before that asks nobody, and says why."""
    neso = world.neso()
    duty = world.duty(neso)
    world.server.fail(Fault.RATE_LIMITED, provider="neso")
    with pytest.raises(SourceUnavailable):
        duty.turn()
    asked = world.server.count("neso")
    with pytest.raises(RateLimited, match="asked for a pause"):
        duty.turn()
    assert world.server.count("neso") == asked


def test_skill_is_measured_and_outlives_a_restart(world: World) -> None:
    """A day of polls: what was said of it is compared with what came, for every source."""
    neso = world.neso()
    duty = world.duty(neso)
    for _ in range(7):
        duty.turn()
        world.clock.pass_s(4 * 3600.0)
    kept = world.journal.forecasts.skill(neso.signal)
    assert '"issued"' in kept
    assert '"profile"' in kept
    world.duty(neso).turn()
    assert len(world.journal.forecasts.skill(neso.signal)) >= len(kept) - 200
