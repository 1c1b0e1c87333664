"""Which journal this is. Epochs count within one journal alone; actuators fence on both.

An identity is made once, by whoever leads first. A copy is another journal: it may be older than
what actuators have heard, and the one it was made of may come back. So `wattmesh db backup`,
`restore` and `renew` set a copy apart: it loses identity and leader, and its epochs go on far above
those of the original, so that runs, which know epochs alone, take its orders (docs/decisions/0030).

Invariant: whoever leads has an identity, and two journals that both may be led never share one.
"""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import IDENTITY, LEADERSHIP
from wattmesh.controller.journal.database.values import clock_us, insert_new
from wattmesh.errors import RetryLater

APART = 1000
"""Epochs between a copy and what it was made of: more leaders than one takes until it is lost."""

_NONE = {"id": 1, "journal": "", "made_at": 0, "came_from": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a journal is.

    Attributes:
        journal: a UUID; "": nobody has led it yet.
        came_from: the journal that it was copied from; "".
        epoch: the newest one of it.
    """

    journal: str
    came_from: str
    epoch: int


def read(database: Database) -> Identity:
    """Read who a journal is.

    Raises:
        JournalUnavailable: the database does not answer.
    """
    with database.reading() as connection:
        return _read(connection)


def settle(connection: Connection, now_us: int) -> str:
    """Give the journal its identity if it has none, within a leader's transaction; give it."""
    found = _read(connection).journal
    if found:
        return found
    made = str(uuid.uuid4())
    insert_new(connection, IDENTITY, _NONE)
    connection.execute(update(IDENTITY).values(journal=made, made_at=now_us))
    return made


def copied_until_us(connection: Connection) -> int:
    """Give when a copy became a journal of its own, in microseconds since 1970; 0 of no copy."""
    row = connection.execute(select(IDENTITY).where(IDENTITY.c.came_from != "")).one_or_none()
    return row.made_at if row else 0


def set_apart(connection: Connection) -> str:
    """Make a copy another journal than its original; give the original's identity.

    It has no leader and no identity (whoever leads it makes one), and its epochs go on far above.
    """
    known = _read(connection)
    insert_new(connection, IDENTITY, _NONE)
    connection.execute(
        update(IDENTITY).values(journal="", came_from=known.journal or known.came_from)
    )
    connection.execute(
        update(LEADERSHIP).values(holder="", expires_at=0, epoch=LEADERSHIP.c.epoch + APART)
    )
    return known.journal


def make_another(connection: Connection) -> Identity:
    """Give a copy that nobody leads an identity of its own."""
    set_apart(connection)
    settle(connection, clock_us(connection))
    return _read(connection)


def renew(database: Database) -> Identity:
    """Give a journal that was put back by other means an identity of its own.

    Raises:
        RetryLater: a daemon leads it, or its lease has not run out. JournalUnavailable: the
            database does not answer.
    """
    with database.writing() as connection:
        now_us = clock_us(connection)
        lease = connection.execute(select(LEADERSHIP).with_for_update()).one_or_none()
        if lease is not None and lease.expires_at > now_us:
            raise RetryLater(
                f"{lease.holder} leads this journal: stop every daemon on it, and run this again "
                f"once the lease is over (at most {(lease.expires_at - now_us) / 1e6:.0f} s)"
            )
        return make_another(connection)


def _read(connection: Connection) -> Identity:
    row = connection.execute(select(IDENTITY)).one_or_none()
    epoch = connection.execute(select(LEADERSHIP.c.epoch)).scalar()
    return Identity(
        journal=row.journal if row else "", came_from=row.came_from if row else "", epoch=epoch or 0
    )
