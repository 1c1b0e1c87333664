"""The slots a plan is made in: fine for as long as anybody can know, coarse until the deadline.

The first slot ends at the run's next boundary, for no layout changes before it. Invariant: slots
follow each other without a gap from now to the end, and keep the mean intensity of their time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import between, mean_g_per_kwh

FINE_S = 300.0
FINE_FOR_S = 48 * 3600.0
COARSE_S = 3600.0

LEAST_S = 1.0
"""A boundary nearer than this is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How long slots are.

    Attributes:
        first_s: until the next boundary; 0: now is one.
        fine_s: of the slots until `fine_for_s` from now, `coarse_s`: of those after.
    """

    first_s: float = 0.0
    fine_s: float = FINE_S
    fine_for_s: float = FINE_FOR_S
    coarse_s: float = COARSE_S


def mixed(
    slots: Sequence[IntensitySlot], now: datetime, end: datetime, grid: Grid
) -> tuple[IntensitySlot, ...]:
    """Cut [now, end) into the grid's slots, each with the mean intensity of its time.

    Args:
        slots: without a gap over [now, end) (`wattmesh.policies.horizon.to_end`).
        now: begin of the first slot.
        end: of the last one, the deadline.
        grid: lengths.
    """
    found, at, first = [], now, 0
    first_s = grid.first_s if grid.first_s >= LEAST_S else grid.fine_s
    until = min(end, now + timedelta(seconds=first_s))
    while at < end:
        while slots[first].end <= at:
            first += 1
        last = first
        while slots[last].end < until:
            last += 1
        found.append(_merged(slots[first : last + 1], at, until))
        at = until
        fine = at < now + timedelta(seconds=grid.fine_for_s)
        until = min(end, at + timedelta(seconds=grid.fine_s if fine else grid.coarse_s))
    return tuple(found)


def _merged(slots: Sequence[IntensitySlot], start: datetime, end: datetime) -> IntensitySlot:
    """Give one slot in place of several, or of a part of one; quantiles where all have them."""
    cut = between(slots, start, end)
    return IntensitySlot(
        start=start,
        end=end,
        g_per_kwh=mean_g_per_kwh(cut),
        low_g_per_kwh=_mean([(each, each.low_g_per_kwh) for each in slots], start, end),
        high_g_per_kwh=_mean([(each, each.high_g_per_kwh) for each in slots], start, end),
    )


def _mean(
    values: Sequence[tuple[IntensitySlot, float | None]], start: datetime, end: datetime
) -> float | None:
    """Mean by time of what may not be known; None where it is not, for some of the time."""
    total = 0.0
    for slot, value in values:
        if value is None:
            return None
        total += value * (min(slot.end, end) - max(slot.start, start)).total_seconds()
    return total / (end - start).total_seconds()
