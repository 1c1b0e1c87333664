"""What time it was when a daemon last looked, for each machine.

Invariant: one row for each machine, replaced whole; what is held after a step of its clock stands
in the same row, so neither a restart nor kill -9 forgets it.
"""

import socket
from datetime import datetime

from sqlalchemy import func, select

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import CLOCK_MARKS, ENERGY, EVENTS, RUNS
from wattmesh.controller.journal.database.values import from_us, to_us, upsert
from wattmesh.controller.process.wall_clock import Mark

HOST_LENGTH = 255


class ClockMarks:
    """The table of marks, as one machine sees it."""

    def __init__(self, database: Database, host: str = "") -> None:
        """Keep the database; `host`: another machine's name than this one's."""
        self._database = database
        self._host = (host or socket.gethostname())[:HOST_LENGTH]

    def newest(self) -> Mark | None:
        """Give this machine's mark; None before its first.

        Raises:
            JournalUnavailable: nobody knows.
        """
        query = select(CLOCK_MARKS).where(CLOCK_MARKS.c.host == self._host)
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            return None
        return Mark(
            at=from_us(row.at),
            monotonic_s=row.monotonic_us / 1e6,
            boot_id=row.boot_id,
            held_s=row.held_us / 1e6,
            why=row.why,
            stepped_s=row.stepped_us / 1e6,
        )

    def newest_date(self) -> datetime | None:
        """Give the newest date that anything here has: a mark, an event, a slot, a sign of life.

        Raises:
            JournalUnavailable: nobody knows.
        """
        columns = (CLOCK_MARKS.c.at, EVENTS.c.at, ENERGY.c.slot_start, RUNS.c.last_seen_at)
        with self._database.reading() as connection:
            found = [connection.execute(select(func.max(each))).scalar() for each in columns]
        return from_us(max((each for each in found if each is not None), default=None))

    def keep(self, mark: Mark) -> None:
        """Write this machine's mark.

        Raises:
            JournalUnavailable: the one before stands.
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
