"""Power caps that operators ordered: append-only rows, the newest of which holds until its end.

Invariant: a row changes once at most, when it is ended; at any time at most one cap is in force. A
step of the wall clock neither ends nor extends a cap while that step may be a mistake: every query
takes both times, `now` and what the clock would read `unstepped`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import POWER_CAPS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.controller.journal.leadership import check_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """One cap.

    Attributes:
        start, until: when it holds, half-open.
        by: who ordered it. `ended_at`, `ended_by`: when and by whom it was ended before `until`.
    """

    id: int
    cap_w: float
    start: datetime
    until: datetime
    by: str
    reason: str
    ended_at: datetime | None = None
    ended_by: str = ""

    def holds(self, now: datetime, unstepped: datetime) -> bool:
        """Whether it holds, if nobody ended it: by the unstepped clock, or by its own dates."""
        return self.until > unstepped or self.start <= now < self.until


class CapStore:
    """The table of caps."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def order(
        self,
        cap_w: float,
        until: datetime,
        *,
        by: str,
        reason: str,
        now: datetime,
        epoch: int,
        unstepped: datetime | None = None,
    ) -> CapRow | None:
        """Put a cap in force from now on; it replaces the one before.

        Returns:
            the cap that was ended by this one; None when there was none.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        row = {
            "cap_w": cap_w,
            "from_at": to_us(now),
            "until_at": to_us(until),
            "by": by,
            "reason": reason,
            "epoch": epoch,
            "ended_by": "",
        }
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            before = _end(connection, by, now, unstepped or now)
            connection.execute(insert(POWER_CAPS).values(**row))
        return before

    def end(
        self, *, by: str, now: datetime, epoch: int, unstepped: datetime | None = None
    ) -> CapRow | None:
        """End the cap in force; None when there is none.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            return _end(connection, by, now, unstepped or now)

    def in_force(self, now: datetime, unstepped: datetime | None = None) -> CapRow | None:
        """Give the cap that holds at `now`; None when none does.

        Args:
            now: the wall clock.
            unstepped: what it would read without a step that may be a mistake; default: the same.
        """
        with self._database.reading() as connection:
            return _in_force(connection, now, unstepped or now)

    def list(self, limit: int = 100) -> tuple[CapRow, ...]:
        """List caps, newest first."""
        query = select(POWER_CAPS).order_by(POWER_CAPS.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return tuple(map(_row, connection.execute(query)))


def _in_force(connection: Connection, now: datetime, unstepped: datetime) -> CapRow | None:
    table = POWER_CAPS.c
    query = (
        select(POWER_CAPS)
        .where(table.ended_at.is_(None))
        .where(table.until_at > to_us(min(now, unstepped)))
        .order_by(table.id.desc())
    )
    rows = map(_row, connection.execute(query))
    return next((row for row in rows if row.holds(now, unstepped)), None)


def _end(connection: Connection, by: str, now: datetime, unstepped: datetime) -> CapRow | None:
    found = _in_force(connection, now, unstepped)
    if found is not None:
        mine = POWER_CAPS.c.id == found.id
        values = {"ended_at": to_us(now), "ended_by": by}
        connection.execute(update(POWER_CAPS).where(mine).values(**values))
    return found


def _row(row: Row[Any]) -> CapRow:
    return CapRow(
        id=row.id,
        cap_w=row.cap_w,
        start=from_us(row.from_at),
        until=from_us(row.until_at),
        by=row.by,
        reason=row.reason,
        ended_at=from_us(row.ended_at) if row.ended_at is not None else None,
        ended_by=row.ended_by,
    )
