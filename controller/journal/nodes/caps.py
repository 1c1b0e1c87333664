"""Power caps that operators ordered: append-only rows that hold until their end, some announced.

Invariant: a row changes once at most, when it is ended; where several caps hold, the lowest is in
force. A step of the wall clock neither ends nor extends a cap while that step may be a mistake:
every query takes both times, `now` and what the clock would read `unstepped`. An announced cap
begins when either of the two says so, for to begin early costs less than to begin late.
"""

from collections.abc import Iterable, Sequence
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
        begun = self.start <= max(now, unstepped)
        return begun and (self.until > unstepped or self.start <= now < self.until)

    def is_ahead(self, now: datetime, unstepped: datetime) -> bool:
        """Whether it is announced and has not begun by either clock."""
        return self.start > max(now, unstepped)


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
        """Put a cap in force from now on, in place of those in force.

        Returns:
            the cap that was in force until this one; None when there was none.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            before = _end(connection, by, now, unstepped or now)
            _add(connection, cap_w, (now, until), by=by, reason=reason, epoch=epoch)
        return before

    def announce(
        self, cap_w: float, start: datetime, until: datetime, *, by: str, reason: str, epoch: int
    ) -> None:
        """Write down a cap that begins later. It ends no other: while two hold, the lower counts.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            _add(connection, cap_w, (start, until), by=by, reason=reason, epoch=epoch)

    def end(
        self, *, by: str, now: datetime, epoch: int, unstepped: datetime | None = None
    ) -> CapRow | None:
        """End every cap that holds; give the one in force, None when there is none.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            return _end(connection, by, now, unstepped or now)

    def withdraw(
        self, *, by: str, now: datetime, epoch: int, unstepped: datetime | None = None
    ) -> tuple[CapRow, ...]:
        """Take back every announced cap that has not begun; give them, the next first.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            ahead = _ahead(_standing(connection, now, unstepped or now), now, unstepped or now)
            _mark_ended(connection, ahead, by, now)
            return ahead

    def standing(
        self, now: datetime, unstepped: datetime | None = None
    ) -> tuple[CapRow | None, tuple[CapRow, ...]]:
        """Give the cap in force at `now`, if any, and those announced, the next first.

        Args:
            now: the wall clock.
            unstepped: what it would read without a step that may be a mistake; default: the same.
        """
        with self._database.reading() as connection:
            rows = _standing(connection, now, unstepped or now)
        return _lowest(rows, now, unstepped or now), _ahead(rows, now, unstepped or now)

    def list(self, limit: int = 100) -> tuple[CapRow, ...]:
        """List caps, newest first."""
        query = select(POWER_CAPS).order_by(POWER_CAPS.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            return tuple(map(_row, connection.execute(query)))


def _standing(connection: Connection, now: datetime, unstepped: datetime) -> tuple[CapRow, ...]:
    """List the caps that nobody ended and whose time is not over."""
    table = POWER_CAPS.c
    query = (
        select(POWER_CAPS)
        .where(table.ended_at.is_(None))
        .where(table.until_at > to_us(min(now, unstepped)))
        .order_by(table.from_at, table.id)
    )
    return tuple(map(_row, connection.execute(query)))


def _lowest(rows: Iterable[CapRow], now: datetime, unstepped: datetime) -> CapRow | None:
    """Give the lowest of those that hold, of equal ones that which ends last."""
    holding = [each for each in rows if each.holds(now, unstepped)]
    return min(holding, key=lambda each: (each.cap_w, -to_us(each.until)), default=None)


def _ahead(rows: Iterable[CapRow], now: datetime, unstepped: datetime) -> tuple[CapRow, ...]:
    return tuple(each for each in rows if each.is_ahead(now, unstepped))


def _add(
    connection: Connection,
    cap_w: float,
    span: tuple[datetime, datetime],
    *,
    by: str,
    reason: str,
    epoch: int,
) -> None:
    row = {
        "cap_w": cap_w,
        "from_at": to_us(span[0]),
        "until_at": to_us(span[1]),
        "by": by,
        "reason": reason,
        "epoch": epoch,
        "ended_by": "",
    }
    connection.execute(insert(POWER_CAPS).values(**row))


def _end(connection: Connection, by: str, now: datetime, unstepped: datetime) -> CapRow | None:
    rows = _standing(connection, now, unstepped)
    _mark_ended(connection, [each for each in rows if each.holds(now, unstepped)], by, now)
    return _lowest(rows, now, unstepped)


def _mark_ended(connection: Connection, rows: Sequence[CapRow], by: str, now: datetime) -> None:
    if rows:
        these = POWER_CAPS.c.id.in_([each.id for each in rows])
        values = {"ended_at": to_us(now), "ended_by": by}
        connection.execute(update(POWER_CAPS).where(these).values(**values))


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
