"""The forecast with wind, sun and weather of one signal, asked of the forecasting child.

Invariant: whatever fails (no exogenous values, a child that hangs, dies or answers nonsense), the
forecast from the past alone is made all the same, and `trouble` says in a clause what is missing.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.controller.journal.carbon.exogenous import ExogenousValue
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.planner.process import PlannerFailed, PlanProcess
from wattmesh.controller.signals.weather_wire import (
    WeatherAnswer,
    columns_of,
    question_of,
    read_answer,
    to_line,
)
from wattmesh.errors import InputInvalid
from wattmesh.policies.forecast.series import HOUR_S, Observed

log = logging.getLogger(__name__)

CHILD = (sys.executable, "-m", "wattmesh.controller.signals.weather_child")
LIMIT_S = 180.0
"""For an answer: learning and the rehearsal of a month take some ten seconds of a processor."""
REST_S = 600.0
"""After a failure nothing is asked for so long."""
AHEAD = timedelta(hours=72)
HOUR = timedelta(hours=1)


class WeatherProcess:
    """The forecasting child, shared by all signals of the daemon."""

    def __init__(
        self,
        process: PlanProcess | None = None,
        limit_s: float = LIMIT_S,
        rest_s: float = REST_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; the process starts with the first question."""
        self._process = process or PlanProcess(CHILD)
        self._limit_s, self._rest_s, self._monotonic = limit_s, rest_s, monotonic
        self._asking = threading.Lock()
        self._rest_until_s = 0.0

    def ask(self, line: bytes) -> WeatherAnswer:
        """Put a question to the child.

        Raises:
            PlannerFailed: no answer came, or it rests after a failure.
            InputInvalid: the answer is nonsense; the child was ended.
        """
        with self._asking:
            if self._monotonic() < self._rest_until_s:
                raise PlannerFailed("the forecasting process failed a while ago and rests")
            try:
                return read_answer(self._process.ask(line, self._limit_s))
            except (PlannerFailed, InputInvalid):
                self._process.end()
                self._rest_until_s = self._monotonic() + self._rest_s
                raise

    def stop(self) -> None:
        """End the child, also while it is asked."""
        self._process.kill()
        if self._asking.acquire(timeout=1.0):
            self._process.end()
            self._asking.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeatherOutlook:
    """What the weather makes of the hours ahead.

    Attributes:
        told: value and quantiles by the hour after the observed ones; empty when there is none.
        by_weather: hours that rest on it.
        trouble: why there is none, as a clause; "" when there is.
    """

    told: tuple[tuple[float, ...], ...] = ()
    by_weather: int = 0
    trouble: str = ""


class NoWeather:
    """The null object for signals without exogenous series."""

    used = False

    def outlook(self, observed: Observed, now: datetime) -> WeatherOutlook:
        """Tell nothing."""
        return WeatherOutlook()


class Weather:
    """What the exogenous series of one signal make of its hours ahead."""

    used = True

    def __init__(
        self, journal: Journal, signal: str, series: Sequence[str], process: WeatherProcess
    ) -> None:
        """Keep where the values are, and whom to ask."""
        self._journal, self._signal = journal, signal
        self._series, self._process = tuple(series), process

    def outlook(self, observed: Observed, now: datetime) -> WeatherOutlook:
        """Forecast the hours after those observed; they must be hours of UTC.

        Raises:
            JournalUnavailable: the exogenous values cannot be read.
        """
        rows: list[ExogenousValue] = []
        for each in self._series:
            rows += self._journal.exogenous.between(each, observed.start, now + AHEAD)
        origin = (observed.end - observed.start) // HOUR
        columns = columns_of(rows, observed.start, origin, now)
        if not any(hour >= origin for told in columns.values() for hour in told):
            return WeatherOutlook(trouble="no forecast of wind, sun or weather reaches past now")
        asked = question_of(self._signal, observed.start, observed.values, columns)
        try:
            answer = self._process.ask(to_line(asked))
        except (PlannerFailed, InputInvalid) as error:
            log.warning("%s: %s; it is forecast from its past alone", self._signal, error)
            return WeatherOutlook(trouble=str(error))
        if not answer.by_weather:
            return WeatherOutlook(
                trouble="too little is known of the past beside forecasts of wind, sun and weather"
                if not answer.told
                else "too few of the forecasts of wind, sun and weather reach past now"
            )
        return WeatherOutlook(told=answer.told, by_weather=answer.by_weather)


def hourly(observed: Observed) -> Observed:
    """Give the whole hours of UTC of a series; what does not fill one at the end is left out."""
    if observed.interval_s > HOUR_S:
        return observed
    step = timedelta(seconds=observed.interval_s)
    over = observed.end.replace(minute=0, second=0, microsecond=0)
    count = (over - observed.start) // step
    values = observed.values[:count] if count > 0 else ()
    return Observed(start=observed.start, interval_s=observed.interval_s, values=values).coarse()
