"""Compares the points of live runs with their catalogues, from time to time.

Invariant: the averages and alarms follow from the journal; an alarm becomes an event once when it
begins and once when it ends, whichever daemon looks.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from wattmesh.controller.accounting.measured_points import capped_spans, measured_points
from wattmesh.controller.daemon.loop_bodies import remember
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.status.trouble import off_catalogue
from wattmesh.controller.views import PointLine
from wattmesh.telemetry.energy.ledger import SlotGrid

log = logging.getLogger(__name__)

EVERY_S = 600.0
"""Averages are over hours: they need no closer look, and each look reads slots of every run."""

OFF, AGREES = "catalogue_off", "catalogue_agrees"
"""Kinds of the events with which an alarm begins and ends."""

MOST_EVENTS = 1000
"""An alarm whose event is older than so many others is told again."""


class PointWatch:
    """Looks at the points of all live runs, in one turn."""

    def __init__(
        self, journal: Journal, loop_facts: LoopFacts, grid: Callable[[datetime], SlotGrid]
    ) -> None:
        """Keep the journal and the loop facts; `grid` gives the ledger's slots at a moment."""
        self._journal = journal
        self._loop_facts = loop_facts
        self._grid = grid

    def turn(self) -> None:
        """Compare, and write the alarms that began or ended; only the leader writes.

        Raises:
            JournalUnavailable: the next turn does it.
        """
        loop_facts, now = self._loop_facts, self._loop_facts.clock.now()
        if loop_facts.trusted.held_s() > 0:
            return
        limit = loop_facts.settings.policy.catalogue_alarm
        capped, grid = capped_spans(self._journal), self._grid(now)
        found: dict[str, tuple[PointLine, ...]] = {}
        rows = [row for row in self._journal.runs.all(now) if row.state == "live"]
        for row in rows:
            with loop_facts.isolation.alone(row.run, "comparing it with its catalogue"):
                found[row.run] = measured_points(
                    self._journal, row, grid, now, capped=capped, limit=limit
                )
        loop_facts.points = found
        if loop_facts.lead.epoch is not None:
            self._tell([(row, line) for row in rows for line in found.get(row.run, ())])

    def _tell(self, lines: Sequence[tuple[RunRow, PointLine]]) -> None:
        """Write an event for each alarm that the journal does not have as it is now."""
        newest: dict[str, str] = {}
        for event in self._journal.events.list(MOST_EVENTS) if lines else ():
            if event.kind in (OFF, AGREES):
                newest.setdefault(event.detail.partition(": ")[0], event.kind)
        for row, line in lines:
            head, said = f"{row.name} ({row.run[:8]}) at {line.point}", off_catalogue(line)
            if bool(said) == (newest.get(head, AGREES) == OFF):
                continue
            sentence = f"{head}: {said or 'it is as its catalogue states again'}."
            log.log(logging.WARNING if said else logging.INFO, "%s", sentence)
            remember(self._journal, self._loop_facts, OFF if said else AGREES, sentence)
