"""Caution about hours that nobody can foresee: a plan relies on them less. Pure.

A plan that takes every forecast at its word waits for clean days that may not come, and then has to
run at full speed through dirty ones: being wrong that way costs more than being wrong the other
way. So hours further ahead than a day count somewhat dirtier than they are expected to be, the
wider their band the more. docs/replay.md has what that is worth.

Invariant: what is known, the day ahead and slots without a band count as forecast; without caution
every slot does; scaling all intensities scales the answer.
"""

from collections.abc import Sequence
from datetime import datetime

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.forecast.far import BELIEVED


def cautious_g_per_kwh(
    slots: Sequence[IntensitySlot], now: datetime, caution: float
) -> tuple[float, ...]:
    """Give the intensities to plan with.

    Args:
        slots: the forecast, with 90 % quantiles where they are known.
        now: aware.
        caution: share of the way from the forecast to that quantile, in [0, 1].
    """
    return tuple(_moved(slot, caution if slot.start >= now + BELIEVED else 0.0) for slot in slots)


def _moved(slot: IntensitySlot, caution: float) -> float:
    """Give one slot's intensity, moved towards its upper quantile."""
    if slot.high_g_per_kwh is None:
        return slot.g_per_kwh
    return slot.g_per_kwh + caution * max(0.0, slot.high_g_per_kwh - slot.g_per_kwh)
