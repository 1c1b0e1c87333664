"""What providers share that tell whole hours of UTC some time after them, and forecast nothing."""

from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, Series, Signal

HOUR = timedelta(hours=1)
TRAILING = timedelta(hours=72)
"""How far back each poll asks: values come late, and are revised."""


class Asks(Protocol):
    """Who asks the service."""

    @property
    def breaker_state(self) -> str:
        """Closed, open or half-open."""
        ...


class ToldHours(ABC):
    """One zone as a series of hours (`Provider`)."""

    def __init__(
        self, *, signal: Signal, model: str, origin: datetime, lag: timedelta, asks: Asks
    ) -> None:
        """Take what the series is.

        Args:
            signal: its identity.
            model: name of what made the values.
            origin: the first hour there may be.
            lag: after the end of an hour, until it is told.
            asks: the client or platform behind it.
        """
        self._signal, self._model = signal, model
        self._origin, self._lag, self._asks = origin, lag, asks

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return self._signal

    @property
    def series(self) -> Series:
        """Hours of UTC, told late, without a forecast."""
        return Series(
            interval_s=HOUR.total_seconds(),
            origin=self._origin,
            cadence_s=HOUR.total_seconds(),
            lag_s=self._lag.total_seconds(),
            trailing=TRAILING,
        )

    @property
    def breaker_state(self) -> str:
        """What happens to a poll now: closed, open or half-open."""
        return self._asks.breaker_state

    def capabilities(self, now: datetime) -> Capabilities:
        """Say what is served; asking shows whether the key and the zone are known.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the key or the zone is wrong.
        """
        batch = self.latest(now)
        newest = max((point.end for point in batch.points), default=None)
        told = f"The newest hour ends at {newest:%Y-%m-%d %H:%M} UTC." if newest else ""
        return Capabilities(
            latest=True, history=True, forecast=False, models=(self._model,), detail=told
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Fetch the hours of the last three days.

        Raises:
            SourceUnavailable: nothing usable came. SourceRefused: the key or the zone is wrong.
        """
        return self.history(now - TRAILING, now, now=now)

    @abstractmethod
    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Fetch the hours that begin in [start, end).

        Raises:
            NoData: none is told. SourceUnavailable: nothing usable came. SourceRefused: the key or
                the zone is wrong.
        """

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Return nothing: these services forecast no intensity and no mix."""
        return CarbonBatch(points=())
