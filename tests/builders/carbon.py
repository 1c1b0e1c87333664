"""Intensities of a signal as the journal keeps them, and forecast slots as a policy sees them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.telemetry.carbon import CarbonPoint, Signal
from wattmesh.telemetry.readings import Quality

HOUR = timedelta(hours=1)


def intensities(
    signal: Signal,
    g_per_kwh: Sequence[float],
    first: datetime,
    length: timedelta = HOUR,
    *,
    quality: Quality = Quality.MEASURED,
    at: datetime | None = None,
) -> list[CarbonPoint]:
    """Intervals of equal length from `first` on, issued and heard `at` (when the first begins)."""
    return [
        CarbonPoint(
            signal=signal,
            start=first + number * length,
            end=first + (number + 1) * length,
            g_per_kwh=value,
            quality=quality,
            issued_at=at or first,
            fetched_at=at or first,
        )
        for number, value in enumerate(g_per_kwh)
    ]


def slots(
    g_per_kwh: Sequence[float],
    first: datetime,
    length: timedelta = HOUR,
    *,
    below: float | None = None,
    above: float | None = None,
) -> tuple[IntensitySlot, ...]:
    """Slots of equal length from `first` on; the band reaches so far `below` and `above`."""
    return tuple(
        IntensitySlot(
            start=first + number * length,
            end=first + (number + 1) * length,
            g_per_kwh=value,
            low_g_per_kwh=None if below is None else value - below,
            high_g_per_kwh=None if above is None else value + above,
        )
        for number, value in enumerate(g_per_kwh)
    )
