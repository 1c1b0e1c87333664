"""From EIA-930 and NESO through poller and journal to what the forecasting child is asked.

A real client asks a local grid server whose clock a test sets, a real journal keeps the values, and
a real process takes the question that a forecast puts. At no moment does the question hold an hour
that the server told only later; providers that claim issue times of their own are caught at that.
"""

import math
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.builders.journals import fresh_file
from tests.carbon.asking import PATIENT
from wattmesh.controller.journal.carbon.exogenous import day_ahead
from wattmesh.controller.planner.process import PlanProcess
from wattmesh.controller.signals.exogenous_poller import ExogenousPoller
from wattmesh.controller.signals.weather import Weather, WeatherProcess
from wattmesh.controller.signals.weather_wire import WeatherQuestion, read_question
from wattmesh.integrations.carbon.exogenous.eia930 import Eia930Demand
from wattmesh.integrations.carbon.exogenous.neso import NesoWind
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.grid_server.exogenous.eia930_demand import told_from
from wattmesh.integrations.carbon.grid_server.exogenous.neso_portal import taken_in
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.policies.forecast.series import Observed
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousProvider

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIRST = datetime(2026, 11, 20, 21, 30, tzinfo=UTC)
"""Half past four in the evening in the East: tomorrow's load is not told yet."""
START = FIRST.replace(minute=0) - 10 * DAY
DAYS = [START + 3 * DAY + n * 13 * HOUR for n in range(11)]
"""Moments to look back to."""
KEEPS = (
    "import sys\n"
    "for line in open(0, 'rb', closefd=False):\n"
    "    open(sys.argv[1], 'wb').write(line)\n"
    "    open(0, 'wb', closefd=False).write(b'{\"told\":[],\"by_weather\":0}\\n')\n"
)
"""A child that keeps what it is asked, and knows nothing."""


class Clock:
    """The server's clock, which a test sets."""

    now = FIRST

    def __call__(self) -> datetime:
        """Tell the time."""
        return self.now


class Claims:
    """A provider whose values claim to be known from a time before their own hour."""

    def __init__(self, honest: ExogenousProvider, before: timedelta) -> None:
        """Keep the provider that is falsified."""
        self._honest, self._before = honest, before
        self.kinds, self.cadence = honest.kinds, honest.cadence

    def forecast(self, *, now: datetime) -> ExogenousBatch:
        """Falsify what is ahead."""
        return self._claimed(self._honest.forecast(now=now))

    def past_forecasts(self, start: datetime, end: datetime, *, now: datetime) -> ExogenousBatch:
        """Falsify the past."""
        return self._claimed(self._honest.past_forecasts(start, end, now=now))

    def _claimed(self, batch: ExogenousBatch) -> ExogenousBatch:
        return replace(
            batch,
            points=tuple(
                replace(each, issued_at=each.start - self._before) for each in batch.points
            ),
        )


class Site:
    """A poller, its journal, and the part that asks the forecasting child."""

    def __init__(self, name: str, grid: GridServer, clock: Clock, folder: Path) -> None:
        """Name one provider; nothing is asked yet."""
        http = JsonHttp(grid.base(name), patience=PATIENT, pause=lambda _: None)
        self.zone = "PJM" if name == "eia930" else "GB"
        self.provider: ExogenousProvider = (
            Eia930Demand(zone=self.zone, key="eia-key-0123456789", http=http)
            if name == "eia930"
            else NesoWind(http=http)
        )
        self.name, self.clock, self.grid, self._kept = name, clock, grid, folder / "asked"
        self.journal = fresh_file(folder / "journal.db")
        child = (sys.executable, "-c", KEEPS, str(self._kept))
        self._process = WeatherProcess(PlanProcess(child))
        self.polled_at: list[datetime] = []

    @property
    def series(self) -> str:
        """What the journal calls it."""
        return f"exogenous:{self.name}:{self.zone}"

    def poll(self, now: datetime) -> None:
        """Let the daemon's poller ask at a moment."""
        self.clock.now = now
        polled = ExogenousPoller(self.name, self.zone, self.provider, self.journal).poll(now)
        assert polled.failure is None
        self.polled_at.append(now)

    def close(self) -> None:
        """End child and journal."""
        self._process.stop()
        self.journal.close()

    def question(self, now: datetime) -> WeatherQuestion | None:
        """What the child is asked at a moment; None: nothing reaches past it."""
        self._kept.unlink(missing_ok=True)
        values = [300.0] * ((now - START) // HOUR)
        observed = Observed(start=START, interval_s=3600.0, values=values)
        weather = Weather(self.journal, "neso:GB", (self.series,), self._process)
        assert weather.outlook(observed, now).trouble
        return read_question(self._kept.read_bytes()) if self._kept.exists() else None

    def told(self, hour: datetime) -> datetime:
        """From when the server told of an hour, whatever anybody claims."""
        if self.name == "eia930":
            return told_from(hour, late=True)
        fetched = [at for at in self.polled_at if hour + HOUR > at]
        archived = max(taken_in(at, late=False) for at in (hour, hour + HOUR / 2))
        return min([archived, *fetched[:1]])


@pytest.fixture(params=["eia930", "neso"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site with each of the two."""
    clock = Clock()
    with GridServer(clock=clock).serving() as grid:
        grid.fail(Fault.LATE_ISSUE, provider="eia930")
        with closing(Site(request.param, grid, clock, tmp_path)) as made:
            yield made


def leaks(site: Site, moments: list[datetime]) -> list[str]:
    """Name what a question of a moment holds that was told only later.

    An hour that is over has to claim no earlier moment than the server's either: lessons are made
    of what was known when.
    """
    found = []
    for now in moments:
        asked = site.question(now)
        for told, known in zip(asked.told, asked.known_at, strict=True) if asked else ():
            for hour, (value, known_h) in enumerate(zip(told, known, strict=True)):
                at = START + hour * HOUR
                if math.isnan(value):
                    continue
                over = at + HOUR <= now
                if site.told(at) > (min(now, START + known_h * HOUR) if over else now):
                    found.append(f"{now:%d %H:%M}: {at:%d %H:%M}")
    return found


def test_a_question_holds_nothing_that_was_told_later(site: Site) -> None:
    """Now, in an hour, and at moments of the days before, as replay would ask."""
    site.poll(FIRST)
    site.poll(FIRST + 3 * HOUR)
    assert leaks(site, [*DAYS, FIRST - HOUR, FIRST, FIRST + 2 * HOUR, FIRST + 3 * HOUR]) == []
    asked = site.question(FIRST + 3 * HOUR)
    assert asked is not None
    assert asked.columns == ("load" if site.name == "eia930" else "wind",)
    assert sum(not math.isnan(value) for value in asked.told[0]) > 9 * 24


@pytest.mark.parametrize("before", [timedelta(), DAY], ids=["its-own-hour", "a-day-before"])
def test_claims_that_come_of_the_hour_itself_are_caught(site: Site, before: timedelta) -> None:
    """The sabotaged twins of the test above."""
    site.provider = Claims(site.provider, before)
    site.poll(FIRST)
    assert leaks(site, DAYS)


def test_what_comes_later_is_asked_about_later_only(site: Site) -> None:
    """The next issue adds its hours; whoever looks back to before it finds none of them."""
    site.poll(FIRST)
    reach, _ = site.journal.exogenous.reach(site.series)
    later = FIRST + 15 * HOUR  # past seven in the East: the day is told at last
    site.poll(later)
    further, known_at = site.journal.exogenous.reach(site.series)
    assert reach is not None
    assert further is not None
    assert known_at is not None
    assert further > reach
    assert FIRST < known_at <= later
    rows = site.journal.exogenous.between(site.series, reach, further)
    assert {row.known_at for row in rows} == {known_at}
    asked = site.question(known_at - timedelta(minutes=1))
    assert asked is None or len(asked.told[0]) <= (reach - START) // HOUR
    if site.name == "eia930":  # NESO's reach lies beyond what is asked about
        asked = site.question(later)
        assert asked is not None
        assert len(asked.told[0]) == (further - START) // HOUR


def test_a_restated_value_is_known_from_when_it_came(site: Site) -> None:
    """Both rows stay; hours that are over keep what was told first."""
    site.poll(FIRST)
    hour = FIRST.replace(minute=0) + 4 * HOUR
    about = (FIRST - 3 * DAY, FIRST + 3 * DAY)
    site.grid.mend()
    again = FIRST + 2 * HOUR
    site.grid.fail(Fault.REVISED, provider=site.name, about=about)
    site.poll(again)
    rows = site.journal.exogenous.between(site.series, hour, hour + HOUR)
    assert rows[-1].known_at == again
    assert [row.known_at > FIRST for row in rows] == [False, True][-len(rows) :]
    over = FIRST.replace(minute=0) - 6 * HOUR
    (kept,) = site.journal.exogenous.between(site.series, over, over + HOUR)
    assert kept.known_at <= FIRST
    assert day_ahead([kept]) == kept
