"""The time slots of a plan: the forecast's own for the first days, coarse ones after. Pure.

A plan has no use for slots shorter than the clock's dwell, and far ahead only the time of day
matters.

Invariant: slots follow each other without a gap over the time of those given, and keep its mean
intensity.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import mean_by_time, mean_g_per_kwh

NEAR = timedelta(hours=72)
FINE, COARSE = timedelta(minutes=15), timedelta(hours=2)
"""Least length of the slots that begin until NEAR from now, and after."""


def mixed(
    slots: Sequence[IntensitySlot], now: datetime, fine: timedelta = FINE
) -> tuple[IntensitySlot, ...]:
    """Join slots until each is long enough; the last one may be shorter.

    Args:
        slots: without gaps.
        now: aware.
        fine: least length of the early ones.
    """
    early = [slot for slot in slots if slot.start < now + NEAR]
    return (*_coarser(early, fine), *_coarser(slots[len(early) :], COARSE))


def coarser_far(
    slots: Sequence[IntensitySlot], now: datetime, far: Sequence[tuple[timedelta, timedelta]]
) -> tuple[IntensitySlot, ...]:
    """Join slots that begin so far ahead until each has at least the length that goes with it."""
    for ahead, least in far:
        early = [slot for slot in slots if slot.start < now + ahead]
        slots = (*early, *_coarser(slots[len(early) :], least))
    return tuple(slots)


def _coarser(slots: Sequence[IntensitySlot], least: timedelta) -> list[IntensitySlot]:
    """Join slots until each is at least `least` long."""
    kept: list[IntensitySlot] = []
    group: list[IntensitySlot] = []
    for slot in slots:
        group.append(slot)
        if slot.end - group[0].start >= least:
            kept.append(_one(group))
            group = []
    if group:
        kept.append(_one(group))
    return kept


def _one(slots: Sequence[IntensitySlot]) -> IntensitySlot:
    """Join slots into one; it has quantiles where all of them have."""
    if len(slots) == 1:
        return slots[0]
    return IntensitySlot(
        start=slots[0].start,
        end=slots[-1].end,
        g_per_kwh=mean_g_per_kwh(slots),
        low_g_per_kwh=_mean(slots, [slot.low_g_per_kwh for slot in slots]),
        high_g_per_kwh=_mean(slots, [slot.high_g_per_kwh for slot in slots]),
    )


def _mean(slots: Sequence[IntensitySlot], values: Sequence[float | None]) -> float | None:
    """Mean by time; None where a value is not known."""
    known = [each for each in values if each is not None]
    return mean_by_time(slots, known) if len(known) == len(values) else None
