"""One number for every hour, as its user declares it: a yearly average, a supplier's statement.

Nothing is asked of anybody. Invariant: every point says `static`, so that no report calls it
measured and no decision follows it; it has no forecast, because a number foresees nothing.
"""

from datetime import UTC, datetime, timedelta

from wattmesh.errors import InputInvalid
from wattmesh.integrations.carbon.reading.believed import fault
from wattmesh.telemetry.carbon import Capabilities, CarbonBatch, CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.slots import border, index_at

HOUR_S = 3600.0
CADENCE_S = HOUR_S / 2
"""Two polls in each hour, and each gives the coming hour too: none begins unknown."""

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)


class Static:
    """A number as a series of hours (`Provider`)."""

    def __init__(self, *, signal: Signal, g_per_kwh: float) -> None:
        """Take the number and what it is a number of.

        Raises:
            InputInvalid: no grid has such an intensity.
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
        """Hours of UTC, each known before it begins."""
        return Series(interval_s=HOUR_S, origin=ORIGIN, cadence_s=CADENCE_S)

    def capabilities(self, now: datetime) -> Capabilities:
        """Say that any time has the number, and none a forecast."""
        return Capabilities(
            latest=True,
            history=True,
            forecast=False,
            detail=f"{self._g_per_kwh:g} g/kWh at all times, as the settings say.",
        )

    def latest(self, now: datetime) -> CarbonBatch:
        """Give the running hour."""
        return CarbonBatch(points=(self._point(index_at(ORIGIN, HOUR_S, now), now),))

    def history(self, start: datetime, end: datetime, *, now: datetime) -> CarbonBatch:
        """Give the hours that begin in [start, end), the coming one among them."""
        first = index_at(ORIGIN, HOUR_S, start)
        last = index_at(ORIGIN, HOUR_S, min(end, now + timedelta(seconds=HOUR_S)))
        points = [self._point(index, now) for index in range(first, last + 1)]
        return CarbonBatch(points=tuple(each for each in points if start <= each.start < end))

    def forecast(self, hours: float, *, now: datetime) -> CarbonBatch:
        """Give nothing."""
        return CarbonBatch(points=())

    def _point(self, index: int, now: datetime) -> CarbonPoint:
        """Make one hour."""
        start = border(ORIGIN, HOUR_S, index)
        return CarbonPoint(
            signal=self._signal,
            start=start,
            end=border(ORIGIN, HOUR_S, index + 1),
            g_per_kwh=self._g_per_kwh,
            quality=Quality.STATIC,
            # Known all along; the same at each asking, so that a journal stores it once.
            issued_at=start,
            fetched_at=now,
            model="settings",
        )
