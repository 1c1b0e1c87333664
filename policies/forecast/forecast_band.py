"""Both edges of the forecast band: a plan that idle GPUs make risky must be right at either. Pure.

Where GPUs that are not used draw power all the same, waiting for clean hours saves little, and
hurrying before dirty ones may lose as much. There a plan is followed only if it beats the best
single point with every hour beyond a day at its lower quantile, and with every one at its upper
(`wattmesh.policies.planner.planning`). docs/decisions/0043-one-rule-for-doubt.md has what other
rules were worth.

Invariant: what is known, the day ahead and slots without a band stay as forecast; scaling all
intensities scales both edges.
"""

from collections.abc import Sequence
from datetime import datetime

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.forecast.climatology import BELIEVED

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
    """Give a slot's quantile; its forecast within the day ahead, and where none is known."""
    if quantile is None or slot.start < now + BELIEVED:
        return slot.g_per_kwh
    return quantile
