"""Where slots of the ledger begin and end, over every change of the settings.

A new accounting signal, or a new time zone, cuts time differently. Invariant: slots that have
joules stay as they are, and later slots are cut around them. So time has one partition: no two
slots overlap, and both sides of a saving use the same slots.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from threading import Lock

from sqlalchemy import func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import ENERGY
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.ledger import SlotGrid, Span


class LedgerSlots:
    """The slots of one ledger."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._slots: SlotGrid | None = None
        self._lock = Lock()

    def on(self, grid: SlotGrid, now: datetime, *, afresh: bool = False) -> SlotGrid:
        """Give the slots of the ledger, where new ones are cut as `grid` says.

        The ledger is read again when the grid changes. The slot under way keeps its start and end:
        somebody may be about to book joules in it.

        Args:
            grid: how the settings cut slots.
            now: the wall clock.
            afresh: read the ledger in any case: another process may have booked slots of its own.

        Raises:
            JournalUnavailable: the journal does not answer.
        """
        plain = replace(grid, earlier=())
        with self._lock:
            known = self._slots
            if afresh or known is None or replace(known, earlier=()) != plain:
                booked = self._booked()
                under_way = [] if known is None else [known.slot(now)]
                known = self._slots = plain.with_booked([*booked, *under_way])
            return known

    def known(self, grid: Callable[[], SlotGrid], now: datetime) -> SlotGrid:
        """Do the same as `on`; while the journal is away, give slots as the settings cut them."""
        try:
            return self.on(grid(), now)
        except JournalUnavailable:
            return grid()

    def whole(self, start: datetime, end: datetime | None) -> Span | None:
        """Shrink [start, end) until it cuts no booked slot; None when nothing is left of it.

        Args:
            start: a slot that began before and ends after it is left out.
            end: a slot that ends after it is left out; None: the start of the newest booked slot.
        """
        with self._database.reading() as connection:

            def newest(before: datetime | None) -> Span | None:
                query = select(ENERGY.c.slot_start, ENERGY.c.slot_end).limit(1)
                if before is not None:
                    query = query.where(ENERGY.c.slot_start < to_us(before))
                found = connection.execute(query.order_by(ENERGY.c.slot_start.desc())).first()
                return None if found is None else (from_us(found[0]), from_us(found[1]))

            first, last = newest(start), newest(end)
        if last is None:
            return None
        begin = max(start, first[1]) if first else start
        until = last[0] if end is None or last[1] > end else end
        return (begin, until) if begin < until else None

    def _booked(self) -> list[Span]:
        """List the booked slots, each once; it reads one row of each."""
        table = ENERGY.c
        starts = select(func.min(table.slot_start).label("start")).cte(recursive=True)
        following = select(func.min(table.slot_start)).where(table.slot_start > starts.c.start)
        starts = starts.union_all(
            select(following.correlate(starts).scalar_subquery()).where(starts.c.start.is_not(None))
        )
        end = select(table.slot_end).where(table.slot_start == starts.c.start).limit(1)
        query = select(starts.c.start, end.correlate(starts).scalar_subquery().label("end")).where(
            starts.c.start.is_not(None)
        )
        with self._database.reading() as connection:
            return [(from_us(row.start), from_us(row.end)) for row in connection.execute(query)]
