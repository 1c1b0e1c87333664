"""Power caps of operators and of demand response: append-only rows that hold until their end.

Invariant: a row changes once at most, when it is ended; where several caps hold, the lowest is in
force, whoever set it, and no order of an operator ends what demand response triggered. A step of
the wall clock neither ends nor extends a cap while that step may be a mistake: every query takes
both times, `now` and what the clock would read `unstepped`. An announced cap begins when either of
the two says so, for to begin early costs less than to begin late.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, insert, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import POWER_CAPS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.controller.journal.leadership import check_epoch
from wattmesh.policies.powercap.triggers import CapOrigin, TriggerFacts

DEMAND_RESPONSE = "demand response"
"""Who sets a triggered cap. No operator is called so: a user's name has no space."""

LONGEST_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """One cap.

    Attributes:
        start, until: when it holds, half-open.
        by: who ordered it. `ended_at`, `ended_by`: when and by whom it was ended before `until`.
        trigger: why demand response set it; None: an operator did.
    """

    id: int
    cap_w: float
    start: datetime
    until: datetime
    by: str
    reason: str
    ended_at: datetime | None = None
    ended_by: str = ""
    origin: CapOrigin = CapOrigin.OPERATOR
    trigger: TriggerFacts | None = None

    def holds(self, now: datetime, unstepped: datetime) -> bool:
        """Whether it holds, if nobody ended it: by the unstepped clock, or by its own dates."""
        begun = self.start <= max(now, unstepped)
        return begun and (self.until > unstepped or self.start <= now < self.until)

    def is_ahead(self, now: datetime, unstepped: datetime) -> bool:
        """Whether it is announced and has not begun by either clock."""
        return self.start > max(now, unstepped)

    @property
    def ended_by_operator(self) -> bool:
        """Whether a person ended it, or took it back."""
        return self.ended_at is not None and not self.ended_by.startswith(DEMAND_RESPONSE)


class StandingCaps(NamedTuple):
    """The caps that nobody ended and whose time is not over.

    Attributes:
        cap: the one in force; None: there is none. `ahead`: those announced, the next first.
        beside: others that hold as well and are no lower, the lowest first.
    """

    cap: CapRow | None
    ahead: tuple[CapRow, ...]
    beside: tuple[CapRow, ...]


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
        """Put an operator's cap in force from now on, in place of operators' caps in force.

        Returns:
            the operator's cap that was in force until this one; None when there was none.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            before = _end(connection, by, now, unstepped or now, (CapOrigin.OPERATOR,))
            row = CapRow(id=0, cap_w=cap_w, start=now, until=until, by=by, reason=reason)
            _add(connection, row, epoch)
        return next(iter(before), None)

    def announce(
        self, cap_w: float, start: datetime, until: datetime, *, by: str, reason: str, epoch: int
    ) -> None:
        """Write down a cap that begins later. It ends no other: while two hold, the lower counts.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            row = CapRow(id=0, cap_w=cap_w, start=start, until=until, by=by, reason=reason)
            _add(connection, row, epoch)

    def respond(
        self,
        announce: Sequence[CapRow],
        withdraw: Mapping[int, str],
        *,
        now: datetime,
        epoch: int,
    ) -> tuple[CapRow, ...]:
        """Write down what demand response announces and takes back, all of it or nothing.

        Args:
            announce: its caps; they end no others.
            withdraw: why, as a clause, by the id of a cap; one that has begun or ended is left.
            now: the wall clock.
            epoch: of the caller.

        Returns:
            those that were taken back.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            gone = [
                each
                for each in _standing(connection, now, now)
                if each.id in withdraw and each.start > now
            ]
            for each in gone:
                by = f"{DEMAND_RESPONSE}: {withdraw[each.id]}"[:LONGEST_NAME]
                _mark_ended(connection, [each.id], by, now)
            for row in announce:
                _add(connection, row, epoch)
            return tuple(gone)

    def end(
        self,
        *,
        by: str,
        now: datetime,
        epoch: int,
        unstepped: datetime | None = None,
        origins: Collection[CapOrigin] = tuple(CapOrigin),
    ) -> tuple[CapRow, ...]:
        """End every cap that holds, of some origins; give them, the lowest first.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            return _end(connection, by, now, unstepped or now, origins)

    def withdraw(
        self,
        *,
        by: str,
        now: datetime,
        epoch: int,
        unstepped: datetime | None = None,
        origins: Collection[CapOrigin] = tuple(CapOrigin),
    ) -> tuple[CapRow, ...]:
        """Take back every announced cap that has not begun; give them, the next first.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        with self._database.writing() as connection:
            check_epoch(connection, epoch)
            rows = _standing(connection, now, unstepped or now)
            ahead = [each for each in _ahead(rows, now, unstepped or now) if each.origin in origins]
            _mark_ended(connection, [each.id for each in ahead], by, now)
            return tuple(ahead)

    def standing(self, now: datetime, unstepped: datetime | None = None) -> StandingCaps:
        """Give the cap in force at `now`, those announced, and those that hold beside the one.

        Args:
            now: the wall clock.
            unstepped: what it would read without a step that may be a mistake; default: the same.
        """
        with self._database.reading() as connection:
            rows = _standing(connection, now, unstepped or now)
        holding = _holding(rows, now, unstepped or now)
        return StandingCaps(
            cap=holding[0] if holding else None,
            ahead=_ahead(rows, now, unstepped or now),
            beside=holding[1:],
        )

    def triggered(self, since: datetime) -> tuple[CapRow, ...]:
        """List what demand response set and what ends after `since`, the first first."""
        table = POWER_CAPS.c
        query = (
            select(POWER_CAPS)
            .where(table.until_at > to_us(since), table.origin != CapOrigin.OPERATOR.value)
            .order_by(table.from_at, table.id)
        )
        with self._database.reading() as connection:
            return tuple(map(_row, connection.execute(query)))

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


def _holding(rows: Iterable[CapRow], now: datetime, unstepped: datetime) -> tuple[CapRow, ...]:
    """Give those that hold, the lowest first, of equal ones that which ends last."""
    holding = [each for each in rows if each.holds(now, unstepped)]
    return tuple(sorted(holding, key=lambda each: (each.cap_w, -to_us(each.until))))


def _ahead(rows: Iterable[CapRow], now: datetime, unstepped: datetime) -> tuple[CapRow, ...]:
    return tuple(each for each in rows if each.is_ahead(now, unstepped))


def _add(connection: Connection, row: CapRow, epoch: int) -> None:
    trigger = row.trigger
    values = {
        "cap_w": row.cap_w,
        "from_at": to_us(row.start),
        "until_at": to_us(row.until),
        "by": row.by,
        "reason": row.reason,
        "epoch": epoch,
        "ended_by": "",
        "origin": row.origin.value,
        "signal": trigger.signal if trigger else "",
        "unit": trigger.unit if trigger else "",
        "value": trigger.value if trigger else None,
        "threshold": trigger.threshold if trigger else None,
        "issued_at": to_us(trigger.issued_at) if trigger and trigger.issued_at else None,
    }
    connection.execute(insert(POWER_CAPS).values(**values))


def _end(
    connection: Connection,
    by: str,
    now: datetime,
    unstepped: datetime,
    origins: Collection[CapOrigin],
) -> tuple[CapRow, ...]:
    holding = _holding(_standing(connection, now, unstepped), now, unstepped)
    ended = tuple(each for each in holding if each.origin in origins)
    _mark_ended(connection, [each.id for each in ended], by, now)
    return ended


def _mark_ended(
    connection: Connection,
    ids: Sequence[int],
    by: str,
    now: datetime,
) -> None:
    """End these caps. A cap that has ended before keeps the name of who ended it."""
    if ids:
        these = (POWER_CAPS.c.id.in_(ids), POWER_CAPS.c.ended_at.is_(None))
        values = {"ended_at": to_us(now), "ended_by": by}
        connection.execute(update(POWER_CAPS).where(*these).values(**values))


def _row(row: Row[Any]) -> CapRow:
    origin = _origin(row.origin)
    known = origin is not CapOrigin.OPERATOR and row.value is not None
    return CapRow(
        id=row.id,
        cap_w=row.cap_w,
        start=from_us(row.from_at),
        until=from_us(row.until_at),
        by=row.by,
        reason=row.reason,
        ended_at=from_us(row.ended_at) if row.ended_at is not None else None,
        ended_by=row.ended_by,
        origin=origin,
        trigger=TriggerFacts(
            signal=row.signal,
            unit=row.unit,
            value=row.value,
            threshold=row.value if row.threshold is None else row.threshold,
            issued_at=from_us(row.issued_at) if row.issued_at is not None else None,
        )
        if known
        else None,
    )


def _origin(text: str) -> CapOrigin:
    """Read who set a cap; an origin that only a newer daemon knows counts as an operator's."""
    return CapOrigin(text) if text in set(CapOrigin) else CapOrigin.OPERATOR
