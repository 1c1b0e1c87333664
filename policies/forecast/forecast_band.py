"""Both edges of the forecast band: with idle GPUs a plan must be right between them. Pure.

Where GPUs that are not used draw power all the same, waiting for clean hours saves little, and
hurrying before dirty ones may lose as much. There a plan is followed only if it beats the most
efficient single point on every grid between the lower and the upper quantile of each hour
(`wattmesh.policies.planner.planning`). docs/decisions/0057-weather-in-the-daemon.md has what other
rules were worth.

Invariant: what is observed and slots without a band stay as forecast; scaling all intensities
scales both edges.
"""

from collections.abc import Sequence
from datetime import datetime

from wattmesh.policies.decision import IntensitySlot

Edges = tuple[tuple[float, ...], tuple[float, ...]]


def band_edges_g_per_kwh(slots: Sequence[IntensitySlot], now: datetime) -> Edges:
    """Give the intensity of each slot at the lower and at the upper edge of the band.

    Args:
        slots: the forecast, with 10 % and 90 % quantiles where they are known.
        now: aware.
    """
    return (
        tuple(min(slot.g_per_kwh, _edge(slot, now, slot.low_g_per_kwh)) for slot in slots),
        tuple(max(slot.g_per_kwh, _edge(slot, now, slot.high_g_per_kwh)) for slot in slots),
    )


def _edge(slot: IntensitySlot, now: datetime, quantile: float | None) -> float:
    """Give a slot's quantile; its value while it runs, and where no quantile is known."""
    if quantile is None or slot.start <= now:
        return slot.g_per_kwh
    return quantile
