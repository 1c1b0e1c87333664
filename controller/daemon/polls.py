"""The polls of grid signals and of what is forecast beside them, as jobs by the wall clock.

Invariant: each series is polled once, whatever it is used for; an exogenous provider that does not
answer costs the forecast its weather, and no carbon signal a poll.
"""

from collections.abc import Callable
from functools import partial

from wattmesh.controller.daemon.loop_bodies import PatientPolls, PollDuty
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.process.scheduler import Jobs
from wattmesh.controller.signals.exogenous_poller import ExogenousPoller
from wattmesh.controller.signals.forecaster import Forecaster, NoForecaster, history_length
from wattmesh.controller.signals.grid import GridProviders
from wattmesh.controller.signals.poller import HISTORY, Poller
from wattmesh.controller.signals.weather import NoWeather, Weather, WeatherProcess
from wattmesh.telemetry.carbon import Provider

NAME = "carbon "


class SignalPolls:
    """Schedules the polls of every series that the settings name."""

    def __init__(
        self,
        journal: Journal,
        loop_facts: LoopFacts,
        jobs: Jobs,
        wake: Callable[[], None],
        fenced: Callable[[str, Callable[[], None]], Callable[[], None]],
    ) -> None:
        """Keep journal, loop facts and jobs.

        `wake` makes the next control cycle due; `fenced` binds a named turn to its epoch.
        """
        self._journal, self._loop_facts, self._jobs, self._wake = journal, loop_facts, jobs, wake
        self._fenced = fenced
        self._process = WeatherProcess()

    def schedule(self, grid: GridProviders) -> None:
        """Poll each signal at its provider's cadence; forget what was polled before."""
        self._jobs.forget(NAME)
        self._loop_facts.breakers = {
            str(each.signal): partial(getattr, each, "breaker_state", "") for each in grid.providers
        } | {
            f"{each.name}:{each.zone}": partial(getattr, each.provider, "breaker_state", "")
            for each in grid.exogenous
        }
        beside = grid.decision.signal if grid.decision is not None else None
        pollers = [
            ExogenousPoller(each.name, each.zone, each.provider, self._journal)
            for each in grid.exogenous
        ]
        for each in pollers:
            duty = ExogenousDuty(each, self._loop_facts)
            self._poll(str(each.series), each.cadence_s, duty.turn)
        series = tuple(each.series for each in pollers)
        for source in grid.providers:
            used = series if source.signal == beside else ()
            self._signal(source, ahead=str(source.signal) in grid.ahead, exogenous=used)

    def stop(self) -> None:
        """End the forecasting child."""
        self._process.stop()

    def _signal(self, source: Provider, *, ahead: bool, exogenous: tuple[str, ...]) -> None:
        weather: Weather | NoWeather = NoWeather()
        history = HISTORY
        if exogenous:
            weather = Weather(self._journal, str(source.signal), exogenous, self._process)
            history = history_length(source.series)
        poller = Poller(source, self._journal, ahead=ahead, history=history)
        forecaster = (
            Forecaster(self._journal, source.signal, source.series, weather)
            if ahead
            else NoForecaster()
        )
        duty = PollDuty(poller, forecaster, self._loop_facts, self._wake)
        self._poll(str(source.signal), source.series.cadence_s, duty.turn)

    def _poll(self, series: str, cadence_s: float, turn: Callable[[], None]) -> None:
        name = f"{NAME}{series}"
        self._jobs.every(name, cadence_s, self._fenced(name, turn))


class ExogenousDuty:
    """Ask one provider of exogenous series for what is new."""

    def __init__(self, poller: ExogenousPoller, loop_facts: LoopFacts) -> None:
        """Keep the poller and the loop facts."""
        self._polls, self._loop_facts = (
            PatientPolls(poller.poll, poller.series, loop_facts),
            loop_facts,
        )

    def turn(self) -> None:
        """Poll and store; a provider that refused is left alone for a while.

        Raises:
            SourceUnavailable: the provider did not answer; stored values stand.
            SourceRefused: a person must fix something; stored values stand.
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        polled = self._polls.turn(self._loop_facts.clock.now())
        if polled.failure is not None:
            raise polled.failure
