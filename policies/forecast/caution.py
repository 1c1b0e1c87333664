"""Caution about hours that nobody can foresee: a plan relies on them less. Pure.

A plan that takes every forecast at its word waits for clean days that may not come, and then has to
run at full speed through dirty ones: being wrong that way costs more than being wrong the other
way. So hours further ahead than a day count somewhat dirtier than they are expected to be, the
wider their band the more. docs/decisions/0021-caution.md has what that is worth.

Where GPUs that are not used draw power all the same there is little to win by waiting, and as much
to lose by hurrying. There a plan must do better than the best single point whether the hours ahead
turn out clean or dirty.

Invariant: what is known, the day ahead and slots without a band count as forecast; without caution
every slot does; scaling all intensities scales the answer.
"""

from collections.abc import Callable, Sequence
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
    return tuple(_moved(slot, now, caution, max, slot.high_g_per_kwh) for slot in slots)


def doubted_g_per_kwh(
    slots: Sequence[IntensitySlot], now: datetime
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Give the grid with every hour that nobody can foresee clean, and with every one dirty.

    Args:
        slots: the forecast, with 10 % and 90 % quantiles where they are known.
        now: aware.
    """
    clean = tuple(_moved(slot, now, 1.0, min, slot.low_g_per_kwh) for slot in slots)
    return clean, cautious_g_per_kwh(slots, now, 1.0)


def _moved(
    slot: IntensitySlot,
    now: datetime,
    share: float,
    no_nearer: Callable[[float, float], float],
    to: float | None,
) -> float:
    """Give one slot's intensity, moved by a share of the way to a quantile on its right side."""
    if to is None or slot.start < now + BELIEVED:
        return slot.g_per_kwh
    return slot.g_per_kwh + share * (no_nearer(slot.g_per_kwh, to) - slot.g_per_kwh)
