"""Joules of a run's GPUs that were read and booked to nobody: it may have drawn them all.

A GPU is booked by its processes. Where those cannot be told apart (two runs on one board, another
user's process, none to be seen), its joules are nobody's, although a run holds it; and between two
launches, when we asked a run to start again, nobody computes on what it still holds. The run's own
figures are too low by as much at most, so that is the most it emitted beyond them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.stays import LaunchRow
from wattmesh.telemetry.unobserved import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclaimed:
    """What nobody was charged for of a run's GPUs in a slot. `carbon_ug`: None without a price."""

    slot_start: datetime
    carbon_ug: int | None


def unclaimed_ug(
    journal: Journal, run: str, launches: Sequence[LaunchRow]
) -> Mapping[datetime, int | None]:
    """Give micrograms of nobody's joules on GPUs that a run held, by slot; None without a price.

    Of a slot that it held a GPU only a part of, nothing is taken where it has joules of its own
    there: the rest is of the time before or after.

    Args:
        journal: the ledger.
        run: whose.
        launches: in time order.

    Raises:
        JournalUnavailable: the journal does not answer.
    """
    found: dict[datetime, int | None] = {}
    for gpus, (start, end) in _held(launches):
        for row in journal.by_slot.nobodys(run, gpus, start, end):
            if row.own and not (start <= row.slot_start and row.slot_end <= end):
                continue
            before = found.get(row.slot_start, 0)
            known = before is not None and row.carbon_ug is not None
            found[row.slot_start] = (before or 0) + (row.carbon_ug or 0) if known else None
    return found


def _held(launches: Sequence[LaunchRow]) -> Iterator[tuple[tuple[str, ...], Span]]:
    """Give the time of each launch with its GPUs, and that until the next where we caused it."""
    for each, following in pairwise((*launches, None)):
        assert each is not None
        end = following.start if following is not None and each.ours else each.end
        yield tuple(sorted({*each.gpus} - {""})), (each.start, end)
