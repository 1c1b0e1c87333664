"""The time slots of a plan: the forecast's own for the first days, coarse ones after. Pure.

A plan has no use for slots shorter than the clock's dwell, and far ahead only the time of day
matters.

Invariant: slots follow each other without a gap over the time of those given, and keep its mean
intensity.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime, timedelta

from wattmesh.policies.decision import IntensitySlot
from wattmesh.policies.horizon import JoinedSlots

NEAR = timedelta(hours=72)
FINE, COARSE = timedelta(minutes=15), timedelta(hours=2)
"""Least length of the slots that begin until NEAR from now, and after."""


def mixed(
    slots: Sequence[IntensitySlot],
    now: datetime,
    fine: timedelta = FINE,
    joined: JoinedSlots | None = None,
) -> tuple[IntensitySlot, ...]:
    """Join slots until each is long enough; the last one may be shorter.

    Args:
        slots: without gaps.
        now: aware.
        fine: least length of the early ones.
        joined: what was joined for other runs.
    """
    joined = joined or JoinedSlots()
    near = bisect_left(slots, now + NEAR, key=_start)
    return (*_coarser(slots[:near], fine, joined), *_coarser(slots[near:], COARSE, joined))


def coarser_far(
    slots: Sequence[IntensitySlot],
    now: datetime,
    far: Sequence[tuple[timedelta, timedelta]],
    joined: JoinedSlots | None = None,
) -> tuple[IntensitySlot, ...]:
    """Join slots that begin so far ahead until each has at least the length that goes with it."""
    joined = joined or JoinedSlots()
    for ahead, least in far:
        near = bisect_left(slots, now + ahead, key=_start)
        slots = (*slots[:near], *_coarser(slots[near:], least, joined))
    return tuple(slots)


def _start(slot: IntensitySlot) -> datetime:
    return slot.start


def _coarser(
    slots: Sequence[IntensitySlot], least: timedelta, joined: JoinedSlots
) -> list[IntensitySlot]:
    """Join slots until each is at least `least` long."""
    kept: list[IntensitySlot] = []
    group: list[IntensitySlot] = []
    for slot in slots:
        group.append(slot)
        if slot.end - group[0].start >= least:
            kept.append(joined.one(group))
            group = []
    if group:
        kept.append(joined.one(group))
    return kept
