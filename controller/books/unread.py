"""Books the time of GPUs that runs held and nobody read, and takes back what was read after all.

Reads who held what and what was covered; the rule is telemetry/unobserved.py. Invariant: rows are
absolute: a turn that comes again, or after a crash, changes nothing.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from wattmesh.controller.journal.journal import Journal
from wattmesh.telemetry.ledger import SlotGrid
from wattmesh.telemetry.unobserved import Limits, rows

RECENT = timedelta(hours=48)
"""Launches that ended longer ago are looked at once, when a process begins; and while they have
unread time, for a node may deliver it yet."""

NEVER = datetime(1970, 1, 1, tzinfo=UTC)

BoardLimits = Callable[[], Mapping[str, float]]
"""Gives the power limits of boards in watts, as far as they are known."""


class Unread:
    """Keeps the rows of unread time as they should be."""

    def __init__(self, journal: Journal, grid: SlotGrid, limits: BoardLimits) -> None:
        """Keep the journal, its slots, and who knows the boards' limits."""
        self._journal = journal
        self._grid = grid
        self._limits = limits
        self._since = NEVER

    def book(self, now: datetime) -> None:
        """Bring the rows of unread time up to `now`.

        Raises:
            JournalUnavailable: the next turn does it.
        """
        coverage = self._journal.coverage
        heard = {
            row.run: None if row.state == "live" else row.last_seen_at
            for row in self._journal.runs.all(now)
        }
        holdings = coverage.holdings(self._since, now, heard)
        held = coverage.unread(holdings)
        by_gpu = self._limits()
        known = Limits(by_gpu=by_gpu, largest_w=0.0 if by_gpu else coverage.largest_w())
        found = rows(holdings, coverage.covered(), self._grid, known, now)
        wanted = {(row.gpu_uuid, row.run, row.slot_start): row for row in found}
        # A bound that was given is only ever raised: a cap that comes bounds nothing of before.
        longer = [
            row
            for key, row in wanted.items()
            if key not in held
            or held[key].unobserved_ms != row.unobserved_ms
            or held[key].upper_mj < row.upper_mj
        ]
        gone = [key for key in held if key not in wanted]
        if longer or gone:
            coverage.book(longer, gone)
        self._since = now - RECENT
