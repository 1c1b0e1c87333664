"""One declared number for every hour: a yearly average, a supplier's statement.

It makes no requests. Invariant: every point has quality `static`, so no report calls it measured
and no decision depends on it; it has no forecast.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.believed import fault
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

HOUR_S = 3600.0
CADENCE_S = HOUR_S / 2
"""Two polls per hour, each of which includes the next hour, so every hour is known in advance."""

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)


class Static:
    """A number as a series of hours (`Provider`)."""

    def __init__(self, *, signal: Signal, g_per_kwh: float) -> None:
        """Set the number and the identity of the series.

        Raises:
            InputInvalid: the number is not a plausible intensity.
        """
        why = fault(g_per_kwh)
        if why:
            raise InputInvalid(f"carbon: g_per_kwh {why}")
        self._signal = signal
        self._g_per_kwh = g_per_kwh

    @property
    def signal(self) -> Signal:
        """The identity of the series."""
        return self._signal

    @property
    def series(self) -> Series:
        """Hours of UTC, each known in advance."""
        return Series(interval_s=HOUR_S, origin=ORIGIN, cadence_s=CADENCE_S)

    def capabilities(self, now: datetime) -> Capabilities:
        """Return that all times are covered, without a forecast."""
        return Capabilities(
            latest=True,
            history=True,
            forecast=False,
            detail=f"{self._g_per_kwh:g} g/kWh at all times, as the settings say.",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Return the current hour."""
        return CarbonBatch(points=(self._point(index_at(ORIGIN, HOUR_S, now), now),))

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Return the hours that begin in [start, end), up to the next hour."""
        first = index_at(ORIGIN, HOUR_S, start)
        last = index_at(ORIGIN, HOUR_S, min(end, now + timedelta(seconds=HOUR_S)))
        points = [self._point(index, now) for index in range(first, last + 1)]
        return CarbonBatch(points=tuple(each for each in points if start <= each.start < end))

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Return nothing."""
        return CarbonBatch(points=())

    def _point(self, index: int, now: datetime) -> CarbonPoint:
        start = border(ORIGIN, HOUR_S, index)
        return CarbonPoint(
            signal=self._signal,
            start=start,
            end=border(ORIGIN, HOUR_S, index + 1),
            g_per_kwh=self._g_per_kwh,
            quality=Quality.STATIC,
            # The same in every poll, so that the journal stores it once.
            issued_at=start,
            fetched_at=now,
            model="settings",
        )
