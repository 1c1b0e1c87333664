"""Joules of a run's GPUs that were read and booked to nobody: the run may have drawn them all.

A GPU is booked by its processes. Where those cannot be told apart (two runs on one board, another
user's process, none to be seen), its joules are nobody's, although a run holds it. The same is true
between two launches when we asked a run to restart: nobody computes on the GPUs that it still
holds. The run's own figures are too low by these joules at most, so they go into its upper bound.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise

from wattmesh.controller.journal.database.values import MICROSECOND
from wattmesh.controller.journal.energy.by_slot import NobodysSlot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.stays import LaunchRow
from wattmesh.policies.accounting.budget import Spending
from wattmesh.telemetry.energy.ledger import Span
from wattmesh.telemetry.energy.meter import UNKNOWN_LIMIT_W
from wattmesh.telemetry.energy.unobserved import MILLISECOND, without


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclaimed:
    """Grams that the GPUs of a run emitted in a slot and that were booked to nobody.

    Attributes:
        carbon_ug: None without a price. `pue_milli`: as in `EmissionRow`; a slot has one.
    """

    slot_start: datetime
    slot_end: datetime
    carbon_ug: int | None
    pue_milli: int = 1000


def unclaimed_ug(journal: Journal, launches: Sequence[LaunchRow]) -> Mapping[Span, Unclaimed]:
    """Give by slot the most that a run emitted of joules booked to nobody.

    Args:
        journal: the ledger.
        launches: of the run, in time order.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    found: dict[Span, Unclaimed] = {}
    for row in unclaimed(journal, launches):
        slot = (row.slot_start, row.slot_end)
        before_ug = found[slot].carbon_ug if slot in found else 0
        known = before_ug is not None and row.carbon_ug is not None
        found[slot] = Unclaimed(
            slot_start=row.slot_start,
            slot_end=row.slot_end,
            carbon_ug=(before_ug or 0) + (row.carbon_ug or 0) if known else None,
            pue_milli=row.pue_milli,
        )
    return found


def unclaimed(
    journal: Journal,
    launches: Sequence[LaunchRow],
    since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[NobodysSlot, ...]:
    """Give the joules booked to nobody on GPUs that a run held, at most what it can have drawn.

    Args:
        journal: the ledger.
        launches: of the run, in time order.
        since: only slots that begin then or later; default: all.
        until: only slots that begin before; default: all.
    """
    rows: dict[tuple[str, datetime, str], NobodysSlot] = {}
    held: dict[str, list[Span]] = {}
    for gpus, (start, end) in _held(launches):
        for gpu in gpus:
            held.setdefault(gpu, []).append((start, end))
        first, last = max(start, since or start), min(end, until or end)
        for row in journal.by_slot.nobodys(gpus, first, last) if first < last else ():
            if since is not None and row.slot_start < since:
                continue
            rows[row.gpu_uuid, row.slot_start, row.line] = row
    found: list[NobodysSlot] = []
    together = groupby(sorted(rows), key=lambda key: key[:2])
    for (gpu, _), keys in together:
        found += _within([rows[key] for key in keys], held[gpu])
    return tuple(found)


def unclaimed_spent(
    journal: Journal, run: str, start: datetime, end: datetime
) -> dict[str, tuple[Spending, ...]]:
    """Give the same for slots that begin in [start, end), as a budget counts it, by signal.

    It is all in `upper_ug`, none in `carbon_ug`: the run spent at most so much beyond its charge.
    """
    found: dict[str, list[Spending]] = {}
    for row in unclaimed(journal, journal.stays.launches(run), start, end):
        known = row.carbon_ug is not None
        found.setdefault(row.signal, []).append(
            Spending(
                start=row.slot_start,
                end=max(min(row.slot_end, end), row.slot_start + MICROSECOND),
                carbon_ug=0,
                upper_ug=row.carbon_ug or 0,
                unbounded_mj=0 if known else row.energy_mj,
            )
        )
    return {signal: tuple(each) for signal, each in found.items()}


def _within(rows: Sequence[NobodysSlot], held: Sequence[Span]) -> Iterator[NobodysSlot]:
    """Bound rows of one GPU and slot by what the board can draw while the run held it."""
    slot = (rows[0].slot_start, rows[0].slot_end)
    outside = sum((end - start for start, end in without(slot, held)), timedelta())
    held_ms = -((outside - (slot[1] - slot[0])) // MILLISECOND)
    rest_mj = round(UNKNOWN_LIMIT_W) * held_ms if outside else None
    for row in rows:
        most_mj = row.energy_mj if rest_mj is None else min(row.energy_mj, rest_mj)
        if most_mj == row.energy_mj:
            yield row
        elif most_mj:
            grams = row.carbon_ug
            most_ug = None if grams is None else -(-grams * most_mj // row.energy_mj)
            yield replace(row, energy_mj=most_mj, carbon_ug=most_ug)
        rest_mj = None if rest_mj is None else rest_mj - most_mj


def _held(launches: Sequence[LaunchRow]) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Give each launch's GPUs with its time, up to the next launch where we caused the gap.

    GPUs that a run gave back while it sleeps are not its own then: they are a line of their own.
    """
    for each, following in pairwise((*launches, None)):
        assert each is not None
        end = following.start if following is not None and _keeps(each) else each.end
        yield tuple(sorted({*each.gpus} - {""})), (each.start, end)


def _keeps(launch: LaunchRow) -> bool:
    return launch.ours and not launch.gave_back
