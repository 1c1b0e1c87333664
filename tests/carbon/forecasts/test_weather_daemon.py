"""From a provider of wind and sun to the forecast that decisions rest on, over real HTTP.

A real client asks a local grid server, a real journal keeps what it says, and the real forecasting
child learns from it. Each fault ends in a forecast from the past alone that says so.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders.carbon import intensities
from tests.builders.journals import fresh_file
from tests.carbon.asking import PATIENT
from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view
from wattmesh.controller.journal.carbon.forecasts import Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.planner.process import PlanProcess
from wattmesh.controller.signals.exogenous_poller import ExogenousPoller
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.controller.signals.lines import forecast_view
from wattmesh.controller.signals.weather import Weather, WeatherProcess
from wattmesh.errors import AuthFailed, SourceUnavailable
from wattmesh.integrations.carbon.exogenous.entsoe import Entsoe
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.grid_server.entsoe import megawatts
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.policies.decision import Rung
from wattmesh.telemetry.carbon import Series, Signal
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind

EVENING = datetime(2026, 11, 20, 19, 10, tzinfo=UTC)
"""Ten past eight in Brussels: tomorrow's forecasts are out."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DAYS = 108
SIGNAL = Signal(provider="http_json", zone="DE")
FACTS = SignalFacts(signal=SIGNAL, interval_s=3600.0, stale_after_s=1e6)
SERIES = Series(interval_s=3600.0, origin=datetime(2026, 1, 1, tzinfo=UTC), cadence_s=3600.0)
GERMANY = "10Y1001A1001A82H"
NAME = "exogenous:entsoe:DE"


class Clock:
    """The server's clock, which a test sets."""

    now = EVENING

    def __call__(self) -> datetime:
        """Tell the time."""
        return self.now


def intensity(start: datetime) -> float:
    """What the grid emits: less, the more wind and sun there is."""
    quarters = [start + n * timedelta(minutes=15) for n in range(4)]
    clean = sum(megawatts(GERMANY, kind, at) for kind in ("B16", "B18", "B19") for at in quarters)
    load = sum(megawatts(GERMANY, "", at) for at in quarters)
    return 60.0 + 600.0 * max(0.1, 1.0 - clean / load)


def observe(journal: Journal, until: datetime, count: int) -> None:
    """Store so many hours of the signal, the last one ending at `until`."""
    first = until - count * HOUR
    values = [intensity(first + n * HOUR) for n in range(count)]
    journal.carbon.store(intensities(SIGNAL, values, first, HOUR, at=until))


class Site:
    """A daemon's part that forecasts one signal, on one journal and one grid server."""

    def __init__(self, journal: Journal, grid: GridServer, clock: Clock, **process: Any) -> None:
        """Name one provider beside the signal; nothing is asked yet."""
        http = JsonHttp(grid.base("entsoe"), patience=PATIENT, pause=lambda _: None)
        provider = Entsoe(zone="DE", token="entsoe-token-0123456789", http=http)
        self.journal, self.clock, self.grid = journal, clock, grid
        self.poller = ExogenousPoller("entsoe", "DE", provider, journal)
        self.process = WeatherProcess(**process)
        weather = Weather(journal, str(SIGNAL), (NAME,), self.process)
        self.forecaster = Forecaster(journal, SIGNAL, SERIES, weather)

    def turn(self, now: datetime) -> Forecast:
        """Poll and forecast at a moment; give what decisions would rest on."""
        self.clock.now = now
        self.poller.poll(now)
        return self.forecast(now)

    def forecast(self, now: datetime) -> Forecast:
        """Forecast without asking anybody."""
        self.clock.now = now
        self.forecaster.turn(now)
        view = carbon_view(self.journal, FACTS, now)
        found = self.journal.forecasts.get(view.forecast or 0)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal file with the past of the signal and of its wind and sun, as polls filled it."""
    path = tmp_path_factory.mktemp("weather") / "journal.db"
    clock = Clock()
    clock.now = EVENING - DAY
    with (
        closing(fresh_file(path)) as journal,
        GridServer(clock=clock, keys=frozenset()).serving() as grid,
    ):
        observe(journal, clock.now.replace(minute=0), DAYS * 24)
        site = Site(journal, grid, clock)
        for _ in range(4):
            site.poller.poll(clock.now)
    return path


@pytest.fixture
def site(learned: Path, tmp_path: Path) -> Iterator[Site]:
    """A site whose past is known, a day later; each test has a journal of its own."""
    path, clock = tmp_path / "journal.db", Clock()
    path.write_bytes(learned.read_bytes())
    with (
        closing(Journal.open(f"sqlite:///{path}")) as journal,
        GridServer(clock=clock, keys=frozenset()).serving() as grid,
    ):
        observe(journal, EVENING.replace(minute=0), 24)
        made = Site(journal, grid, clock)
        yield made
        made.process.stop()


def off(made: Forecast) -> float:
    """Mean relative error of the next day's hours."""
    ahead = [each for each in made.slots if EVENING < each.start < EVENING + DAY]
    return float(np.mean([abs(each.g_per_kwh / intensity(each.start) - 1) for each in ahead]))


def test_the_forecast_knows_tomorrow_s_wind_and_counts_as_issued(site: Site) -> None:
    """Far better than from the past alone, plans may rest on it, and `wattmesh carbon` tells."""
    past = Forecaster(site.journal, SIGNAL, SERIES).preview(EVENING)
    assert past is not None
    assert past.rung is Rung.PROFILE
    made = site.turn(EVENING)
    assert (made.rung, made.issued_at) == (Rung.ISSUED, EVENING.replace(minute=0))
    assert "wind, sun and weather" in made.model
    assert off(made) < 0.6 * off(past)
    view = forecast_view(site.journal, FACTS, EVENING, exogenous=(NAME,))
    (line,) = view.exogenous
    assert (line.series, line.state, line.age_s) == ("entsoe:DE", "ok", 0.0)
    assert line.reaches_at is not None
    assert line.reaches_at > EVENING + DAY
    # An hour later what it said is scored, by source and by how far ahead it was.
    observe(site.journal, EVENING.replace(minute=0) + HOUR, 1)
    site.turn(EVENING + HOUR)
    scored = forecast_view(site.journal, FACTS, EVENING + HOUR).skill
    assert {each.source for each in scored} >= {"exogenous", "own", "day"}


def test_a_silent_provider_costs_the_weather_only_when_its_hours_are_over(site: Site) -> None:
    """What was known stays of use; then the past speaks alone, says why, and plans may not rest."""
    site.turn(EVENING)
    site.grid.fail(Fault.CLOSED, provider="entsoe")
    site.poller.poll(EVENING + HOUR)
    fetch = site.journal.exogenous.last_fetch(NAME)
    assert fetch is not None
    assert (fetch.state, fetch.ok_at) == ("failed", EVENING)
    observe(site.journal, EVENING.replace(minute=0) + HOUR, 1)
    assert site.forecast(EVENING + HOUR).rung is Rung.ISSUED
    later = EVENING + timedelta(hours=29)  # past midnight in Brussels: nothing is told any more
    observe(site.journal, later.replace(minute=0), 28)
    stale = site.forecast(later)
    assert stale.rung is Rung.PROFILE
    assert "without wind, sun and weather" in stale.model


def test_a_missing_day_leaves_it_to_the_past(site: Site) -> None:
    """The operator publishes tomorrow late: nothing reaches past midnight, and few hours do."""
    midnight = datetime(2026, 11, 20, 23, tzinfo=UTC)
    site.grid.fail(Fault.GAP, provider="entsoe", about=(midnight, midnight + 2 * DAY))
    late = midnight + 2 * HOUR
    observe(site.journal, late.replace(minute=0), 7)
    made = site.turn(late)
    assert made.rung is Rung.PROFILE
    assert "no forecast of wind, sun or weather reaches past now" in made.model
    site.grid.mend()
    assert site.turn(late + timedelta(minutes=20)).rung is Rung.ISSUED


def test_what_was_not_there_at_the_last_poll_was_not_known_then(
    sqlite_journal: Journal,
) -> None:
    """An operator a day late: ENTSO-E's deadline is over, and is not when its hours were known."""
    clock = Clock()
    with GridServer(clock=clock, keys=frozenset()).serving() as grid:
        grid.fail(Fault.LATE_ISSUE, provider="entsoe")
        site = Site(sqlite_journal, grid, clock)
        site.poller.poll(EVENING)
        reach, _ = sqlite_journal.exogenous.reach(NAME)
        assert reach is not None
        assert reach < EVENING + 6 * HOUR
        clock.now = EVENING + 23 * HOUR
        site.poller.poll(clock.now)
    rows = sqlite_journal.exogenous.between(NAME, reach, EVENING + 2 * DAY)
    assert len(rows) > 24
    assert {row.known_at for row in rows} == {EVENING}


def test_a_past_that_was_refused_once_is_asked_for_a_day_later(tmp_path: Path) -> None:
    """Nor every hour: it may be refused for good; what is ahead is asked for all the while."""
    clock = Clock()
    with (
        closing(fresh_file(tmp_path / "journal.db")) as journal,
        GridServer(clock=clock, keys=frozenset()).serving() as grid,
    ):
        site = Site(journal, grid, clock)
        whole, past = site.poller.provider.past_forecasts, (EVENING - 9 * DAY, EVENING - 8 * DAY)
        asked: list[datetime] = []

        def refusing(start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
            asked.append(now)
            if end <= now < EVENING + DAY:
                raise AuthFailed("the key is suspended for a while")
            return whole(start, end, now=now)

        site.poller.provider.past_forecasts = refusing  # type: ignore[method-assign]
        for hours in (0, 1, 23):
            clock.now = EVENING + hours * HOUR
            assert site.poller.poll(clock.now).failure is None
            assert not journal.exogenous.between(NAME, *past)
        assert len(asked) == 3 + 1
        clock.now = EVENING + DAY
        site.poller.poll(clock.now)
        assert journal.exogenous.between(NAME, *past)
        site.process.stop()


def test_another_resolution_tells_the_same_hours(site: Site) -> None:
    """A day in quarter hours, the next in hours: whole hours come of both."""
    site.grid.fail(Fault.RESOLUTION, provider="entsoe")
    site.poller.poll(EVENING)
    told = site.journal.exogenous.between(NAME, EVENING + 6 * HOUR, EVENING + 20 * HOUR)
    assert len({each.start for each in told if each.kind is ExogenousKind.LOAD}) == 14


def test_a_restated_value_is_known_from_when_it_came(site: Site) -> None:
    """Both rows stay; the first holds for whoever looks back, and hours that are over keep it."""
    hour = EVENING.replace(minute=0) + 12 * HOUR
    site.poller.poll(EVENING)
    site.grid.fail(Fault.REVISED, provider="entsoe", about=(EVENING - 2 * DAY, EVENING + 2 * DAY))
    site.clock.now = EVENING + 2 * HOUR
    site.poller.poll(site.clock.now)
    rows = [
        each
        for each in site.journal.exogenous.between(NAME, hour, hour + HOUR)
        if each.kind is ExogenousKind.WIND
    ]
    assert [each.known_at > EVENING for each in rows] == [False, True]
    assert rows[1].value == pytest.approx(1.2 * rows[0].value, rel=1e-3)
    over = [
        each
        for each in site.journal.exogenous.between(NAME, EVENING - 12 * HOUR, EVENING - 11 * HOUR)
        if each.kind is ExogenousKind.WIND
    ]
    assert len(over) == 1


@pytest.mark.parametrize(
    "child", ["import sys; sys.exit(3)", "print('nonsense', file=open(0, 'wb', closefd=False))"]
)
def test_a_child_that_fails_costs_the_weather_and_rests(site: Site, child: str) -> None:
    """The forecast from the past is made all the same; nothing is asked again for a while."""
    process = WeatherProcess(PlanProcess((sys.executable, "-c", child)), limit_s=60.0)
    weather = Weather(site.journal, str(SIGNAL), (NAME,), process)
    site.forecaster = Forecaster(site.journal, SIGNAL, SERIES, weather)
    made = site.turn(EVENING)
    assert made.rung is Rung.PROFILE
    assert "without wind, sun and weather" in made.model
    with pytest.raises(Exception, match="rests"):
        process.ask(b"{}\n")
    process.stop()


def test_a_server_that_never_answered_is_a_failure_with_a_reason(
    sqlite_journal: Journal,
) -> None:
    """Nothing is stored but how the poll ended."""
    clock = Clock()
    with GridServer(clock=clock, keys=frozenset()).serving() as grid:
        grid.fail(Fault.SERVER_ERROR, provider="entsoe")
        site = Site(sqlite_journal, grid, clock)
        polled = site.poller.poll(EVENING)
    assert isinstance(polled.failure, SourceUnavailable)
    assert sqlite_journal.exogenous.reach(NAME) == (None, None)
    fetch = sqlite_journal.exogenous.last_fetch(NAME)
    assert fetch is not None
    assert fetch.state == "failed"
    assert "500" in fetch.detail


def test_hours_of_the_past_keep_what_was_forecast_a_day_before(site: Site) -> None:
    """Pruning leaves one row of each hour that is over, and nothing of before the limit."""
    store = site.journal.exogenous
    site.poller.poll(EVENING)
    before = store.between(NAME, EVENING - 60 * DAY, EVENING + 2 * DAY)
    assert store.prune(EVENING - 30 * DAY, EVENING) > 0
    after = store.between(NAME, EVENING - 60 * DAY, EVENING + 2 * DAY)
    assert {each for each in before if each.start >= EVENING - 30 * DAY} == set(after)
