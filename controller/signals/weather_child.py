"""The forecasting process: learns what the weather makes of a grid, and forecasts it.

    python -m wattmesh.controller.signals.weather_child PARENT

It is a child of the daemon, with a socket as its standard input, so that the 150 MB and the seconds
that learning takes stay out of the daemon. What it learned it keeps as long as it lives; a new one
learns anew from the question, and rehearses the month before.

Invariant: it never outlives the daemon that started it, however that one ends.
"""

import os
import signal
import socket
import sys
from contextlib import suppress

import numpy as np

from wattmesh.controller.process.life import end_with
from wattmesh.controller.signals.weather_wire import (
    WeatherAnswer,
    WeatherQuestion,
    answer_line,
    read_question,
)
from wattmesh.policies.forecast.exogenous import Panel
from wattmesh.policies.forecast.predict import Lessons, teach
from wattmesh.policies.forecast.series import HOUR_S, Observed
from wattmesh.policies.forecast.weather_forecaster import WeatherForecaster

NICER = 10
DAY_H, WEEK_H = 24, 7 * 24


class SignalForecasts:
    """The forecasts of one signal, one after the other."""

    def __init__(self) -> None:
        """Start without lessons."""
        self._forecaster = WeatherForecaster(WEEK_H)
        self._past: tuple[int, Lessons | None] | None = None

    def answer(self, asked: WeatherQuestion) -> WeatherAnswer:
        """Forecast what follows the question's values."""
        if not asked.columns:
            return WeatherAnswer()
        observed = Observed(start=asked.start, interval_s=HOUR_S, values=asked.values)
        hour = int(observed.end.timestamp() // HOUR_S)
        if self._past is None or not 0 <= hour - self._past[0] < DAY_H:
            self._past = (hour, teach(observed))
        panel = Panel(
            start=asked.start,
            kinds=asked.columns,
            values=np.array(asked.told, dtype=np.float64).T,
            known_at=np.array(asked.known_at, dtype=np.float64).T,
        )
        found = self._forecaster.expect(asked.values, asked.start, panel, self._past[1])
        if found is None:
            return WeatherAnswer()
        return WeatherAnswer(
            told=tuple(tuple(row) for row in found.told), by_weather=found.by_weather
        )


def main() -> None:
    """Answer until the daemon closes the socket."""
    end_with(int(sys.argv[1]), signal.SIGKILL)
    with suppress(OSError):
        os.nice(NICER)
    signals: dict[str, SignalForecasts] = {}
    with socket.socket(fileno=sys.stdin.fileno()) as pipe, pipe.makefile("rwb") as lines:
        for line in lines:
            asked = read_question(line)
            found = signals.setdefault(asked.signal, SignalForecasts()).answer(asked)
            lines.write(answer_line(found))
            lines.flush()


if __name__ == "__main__":
    main()
