"""Joining ledger slots when there is no room for all of them. Pure.

Invariant: joining keeps the sums of all amounts, to the millijoule: time gets coarser, and nothing
is lost.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wattmesh.telemetry.energy.ledger import EnergyRow
from wattmesh.telemetry.readings import merged_quality

Key = tuple[str, str, int, str]
"""GPU, run, slot start in microseconds, line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentRow:
    """The key of a row in the outbox, and the part of its amounts that was not sent yet."""

    key: Key
    unsent: EnergyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedSlot:
    """A longer slot that replaces others; all of `row` is unsent."""

    row: EnergyRow
    replaces: tuple[Key, ...]


def coarser(rows: Iterable[UnsentRow]) -> tuple[JoinedSlot, ...]:
    """Join each two neighbouring slots of one device, run and line; the rest stays as it is."""
    lines: dict[tuple[str, str, str], list[UnsentRow]] = {}
    for each in sorted(rows, key=lambda each: each.unsent.slot_start):
        row = each.unsent
        lines.setdefault((row.gpu_uuid, row.run, row.line), []).append(each)
    return tuple(
        _joined_slot(same[at : at + 2])
        for same in lines.values()
        for at in range(0, len(same) - 1, 2)
    )


def _joined_slot(pair: Sequence[UnsentRow]) -> JoinedSlot:
    one, two = (each.unsent for each in pair)
    known = [each for each in (one.energy_mj, two.energy_mj) if each is not None]
    row = replace(
        two,
        slot_start=one.slot_start,
        slot_end=max(one.slot_end, two.slot_end),
        energy_mj=sum(known) if known else None,
        unobserved_ms=one.unobserved_ms + two.unobserved_ms,
        upper_mj=one.upper_mj + two.upper_mj,
        quality=merged_quality((one.quality, two.quality)),
    )
    return JoinedSlot(row=row, replaces=tuple(each.key for each in pair))
