"""The wall clock as the daemon of each machine last saw it.

Invariant: each machine has one row, which is replaced whole. A hold after a step of the clock is
kept in the same row, so neither a restart nor kill -9 loses it.
"""

import socket
from datetime import datetime

from sqlalchemy import func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import CLOCK_MARKS, ENERGY, EVENTS, RUNS
from wattmesh.controller.journal.database.values import from_us, to_us, upsert
from wattmesh.controller.process.wall_clock import ClockRecord

HOST_LENGTH = 255


class ClockMarks:
    """The table of marks, as this machine sees it."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self._host = socket.gethostname()[:HOST_LENGTH]

    def newest(self) -> ClockRecord | None:
        """Give this machine's mark; None before its first.

        Raises:
            JournalUnavailable: the mark cannot be read.
        """
        query = select(CLOCK_MARKS).where(CLOCK_MARKS.c.host == self._host)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return ClockRecord(
            at=from_us(row.at),
            monotonic_s=row.monotonic_us / 1e6,
            boot_id=row.boot_id,
            held_s=row.held_us / 1e6,
            why=row.why,
            stepped_s=row.stepped_us / 1e6,
        )

    def newest_date(self) -> datetime | None:
        """Give the newest date in the journal: of a mark, an event, a slot or a run's last message.

        Raises:
            JournalUnavailable: the dates cannot be read.
        """
        columns = (CLOCK_MARKS.c.at, EVENTS.c.at, ENERGY.c.slot_start, RUNS.c.last_seen_at)
        with self._database.reading() as connection:
            found = [connection.execute(select(func.max(each))).scalar() for each in columns]
        return from_us(max((each for each in found if each is not None), default=None))

    def keep(self, mark: ClockRecord) -> None:
        """Write this machine's mark.

        Raises:
            JournalUnavailable: nothing was written; the mark before it stays.
        """
        row = {
            "host": self._host,
            "boot_id": mark.boot_id,
            "at": to_us(mark.at),
            "monotonic_us": round(mark.monotonic_s * 1e6),
            "held_us": round(mark.held_s * 1e6),
            "why": mark.why,
            "stepped_us": round(mark.stepped_s * 1e6),
        }
        with self._database.writing() as connection:
            upsert(connection, CLOCK_MARKS, [row])
