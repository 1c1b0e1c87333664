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
from wattmesh.policies.horizon import mean_by_time, mean_g_per_kwh

NEAR = timedelta(hours=72)
FINE, COARSE = timedelta(minutes=15), timedelta(hours=2)
"""Least length of the slots that begin until NEAR from now, and after."""


class JoinedSlots:
    """Joins slots into one, and gives the same one when the same slots are joined again."""

    def __init__(self) -> None:
        """Nothing is joined yet."""
        self._known: dict[tuple[int, int], tuple[IntensitySlot, IntensitySlot, IntensitySlot]] = {}

    def one(self, slots: Sequence[IntensitySlot]) -> IntensitySlot:
        """Join slots that follow each other; between the same two there are always the same."""
        first, last = slots[0], slots[-1]
        # Objects that are kept: no other one has their id.
        key = (id(first), id(last))
        if key not in self._known:
            self._known[key] = (first, last, _one(slots))
        return self._known[key][2]


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
