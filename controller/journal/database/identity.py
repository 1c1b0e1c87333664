"""Which journal this is. Epochs count within one journal, so actuators fence on journal and epoch.

An identity is made once, by the first leader. A copy is another journal: it may be older than what
actuators have heard, and its original may come back. So `wattmesh db backup`, `restore` and `renew`
set a copy apart: it loses identity and leader, and its epochs go on far above those of the
original, so that runs, which know epochs only, take its orders (docs/decisions/0030).

Invariant: a journal with a leader has an identity, and two journals that can both be led never
share one.
"""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import IDENTITY, LEADERSHIP
from wattmesh.controller.journal.database.values import clock_us, insert_new
from wattmesh.errors import RetryLater

APART = 1000
"""Epochs added to a copy: more changes of leader than its original sees before it is lost."""

_NONE = {"id": 1, "journal": "", "made_at": 0, "came_from": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalIdentity:
    """Who a journal is.

    Attributes:
        journal: a UUID; "": nobody has led it yet.
        came_from: the journal that it was copied from; "": it is no copy.
        epoch: its newest epoch.
    """

    journal: str
    came_from: str
    epoch: int


def read(database: Database) -> JournalIdentity:
    """Read a journal's identity.

    Raises:
        JournalUnavailable: the database does not answer.
    """
    with database.reading() as connection:
        return _read(connection)


def settle(connection: Connection, now_us: int) -> str:
    """Give the journal's identity; make it first, in the leader's transaction, if it has none."""
    found = _read(connection).journal
    if found:
        return found
    made = str(uuid.uuid4())
    insert_new(connection, IDENTITY, _NONE)
    connection.execute(update(IDENTITY).values(journal=made, made_at=now_us))
    return made


def copied_until_us(connection: Connection) -> int:
    """Give when a copy became a journal of its own, in microseconds since 1970; 0: no copy."""
    row = connection.execute(_COPY).one_or_none()
    return row.made_at if row else 0


_COPY = select(IDENTITY).where(IDENTITY.c.came_from != "")


def set_apart(connection: Connection) -> str:
    """Make a copy another journal than its original; return the original's identity.

    The copy has no leader and no identity (its first leader makes one), and `APART` is added to its
    epoch.
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


def make_another(connection: Connection) -> JournalIdentity:
    """Give a copy that nobody leads an identity of its own."""
    set_apart(connection)
    settle(connection, clock_us(connection))
    return _read(connection)


def renew(database: Database) -> JournalIdentity:
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


def _read(connection: Connection) -> JournalIdentity:
    row = connection.execute(select(IDENTITY)).one_or_none()
    epoch = connection.execute(select(LEADERSHIP.c.epoch)).scalar()
    return JournalIdentity(
        journal=row.journal if row else "", came_from=row.came_from if row else "", epoch=epoch or 0
    )
