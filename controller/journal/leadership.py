"""Who leads: one row with a holder, an epoch and an expiry by the database's own clock.

Invariant: the epoch rises whenever the holder changes, and every act is committed only while the
row still shows the actor's epoch; so a daemon that lost its lease can commit no act.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.identity import settle
from wattmesh.controller.journal.database.tables import LEADERSHIP
from wattmesh.controller.journal.database.values import clock_us, from_us, insert_new
from wattmesh.errors import Fenced

_NOBODY = {"id": 1, "holder": "", "epoch": 0, "expires_at": 0}

SILENT_S = 3

_ROW = select(LEADERSHIP).with_for_update()
_ROW_WITH_LIMIT = _ROW.add_columns(
    func.set_config("idle_in_transaction_session_timeout", f"{SILENT_S:g}s", True)
)
_EXPIRE_MINE = (
    update(LEADERSHIP)
    .where(LEADERSHIP.c.holder == bindparam("whose"), LEADERSHIP.c.epoch == bindparam("which"))
    .values(expires_at=bindparam("until"))
)

_LONGEST_LEASE = 3
"""The settings of another daemon may give it a lease this many times as long as ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """The lease as it stands. `expired`: by the database's clock."""

    holder: str
    epoch: int
    expires_at: datetime
    expired: bool


class Leadership:
    """The lease row. `journal`: identity of the journal whose epoch we got last; "" before that."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database
        self.journal = ""

    def acquire(self, holder: str, ttl_s: float) -> int | None:
        """Take the lease when it is free, expired or ours; give its epoch, None when it is held.

        A lease that runs longer than any settings allow was written before the clock was stepped
        back, and is not respected: its holder, if it lives, renews it within a third of that time.
        """
        with self._database.writing() as connection:
            insert_new(connection, LEADERSHIP, _NOBODY)
            row = connection.execute(_locked(connection)).one()
            now_us, ttl_us = clock_us(connection), int(ttl_s * 1e6)  # the row may be waited for
            expires = now_us + ttl_us
            held = now_us < row.expires_at <= now_us + _LONGEST_LEASE * ttl_us
            if row.holder != holder and held:
                return None
            epoch: int = row.epoch + (row.holder != holder)
            connection.execute(
                update(LEADERSHIP).values(holder=holder, epoch=epoch, expires_at=expires)
            )
            self.journal = settle(connection, now_us)
            return epoch

    def clock_ahead_s(self, now: Callable[[], datetime]) -> float:
        """Give by how many seconds a machine's clock is ahead of the database's; 0 for a file.

        Args:
            now: reads that clock.
        """
        if self._database.is_sqlite:
            return 0.0
        with self._database.reading() as connection:
            before = now()
            there = from_us(clock_us(connection))
            after = now()
        # It was read at some moment between the two; a slow answer is no difference.
        ahead_s = (before - there).total_seconds()
        return ahead_s if ahead_s > 0 else min(0.0, (after - there).total_seconds())

    def renew(self, holder: str, epoch: int, ttl_s: float) -> bool:
        """Extend the lease; False when it is no longer ours."""
        with self._database.writing() as connection:
            expires = clock_us(connection) + int(ttl_s * 1e6)
            return _expire_mine(connection, holder, epoch, expires) == 1

    def release(self, holder: str, epoch: int) -> None:
        """Let the lease expire now (a clean stop)."""
        with self._database.writing() as connection:
            _expire_mine(connection, holder, epoch, clock_us(connection))

    @contextmanager
    def acting(self, epoch: int | None) -> Iterator[None]:
        """Let this thread write in the block only while the epoch is still `epoch`.

        For work of many transactions: who was stopped in the middle of it, and goes on when another
        daemon has led for an hour, would write what was true before.

        Args:
            epoch: 0: nobody may have led yet; None: it is not known, and nothing may be written.

        Raises:
            Fenced: another daemon leads by now; what was not committed is not written.
        """
        with self._database.writing_if(lambda connection: _check_same(connection, epoch)):
            yield

    def epoch(self) -> int:
        """Read the epoch, whether or not its lease has run out; 0 before anybody led."""
        with self._database.reading() as connection:
            return connection.execute(select(LEADERSHIP.c.epoch)).scalar_one_or_none() or 0

    def current(self) -> LeaderRow | None:
        """Read the lease; None before anybody led."""
        with self._database.reading() as connection:
            row = connection.execute(select(LEADERSHIP)).one_or_none()
            if row is None or not row.epoch:
                return None
            return LeaderRow(
                holder=row.holder,
                epoch=row.epoch,
                expires_at=from_us(row.expires_at),
                expired=row.expires_at <= clock_us(connection),
            )


def check_epoch(connection: Connection, epoch: int) -> None:
    """Lock the lease row until this transaction ends, if its epoch is still `epoch`.

    Raises:
        Fenced: another daemon leads by now.
    """
    row = connection.execute(_locked(connection)).one_or_none()
    if row is None or row.epoch != epoch:
        newer = row.epoch if row else 0
        raise Fenced(f"epoch {epoch} is over, epoch {newer} leads now; nothing was written")


def _check_same(connection: Connection, epoch: int | None) -> None:
    if epoch is None:
        raise Fenced("who led when it began was not known; nothing was written")
    if epoch or connection.execute(_locked(connection)).one_or_none() is not None:
        check_epoch(connection, epoch)


def _locked(connection: Connection) -> Any:
    """Select the row and lock it until the commit.

    Nobody can take the lead meanwhile, so a holder of the lock that says nothing for `SILENT_S` (it
    hangs, or the network is cut in the middle of its transaction) loses it, with its transaction.
    """
    return _ROW if connection.dialect.name == "sqlite" else _ROW_WITH_LIMIT


def _expire_mine(connection: Connection, holder: str, epoch: int, until_us: int) -> int:
    """Let the lease run until then if it is the holder's; give the number of rows changed."""
    values = {"whose": holder, "which": epoch, "until": until_us}
    return connection.execute(_EXPIRE_MINE, values).rowcount
