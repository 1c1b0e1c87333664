"""What an agent has measured and not yet delivered, in one SQLite file.

To the sampler it is a ledger (`telemetry.sampler.Book`); to the controller it gives batches.
Invariant: a change of a row is frozen into exactly one batch, in the transaction that marks it as
sent; a batch keeps its (boot_id, seq) until it is acknowledged. So whatever is killed or lost in
between, the controller's sums equal what was booked here, to the millijoule; except for rows that
it refuses, which are kept back whole (refusals.py).
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from wattmesh.controller.agent import refusals
from wattmesh.controller.agent.coarsen import Key, UnsentRow, coarser
from wattmesh.controller.agent.outbox_file import PAGE_BYTES, OutboxFile
from wattmesh.controller.agent.outbox_rows import (
    BOOK,
    COLUMNS,
    KEY,
    SENT,
    UNSENT,
    begin_anew,
    change_of,
    counter_of,
    fact,
    key_of,
    put_counters,
    put_fact,
    row_of,
    to_us,
    values_of,
)
from wattmesh.controller.agent.refusals import KeptBack
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import utc_now

log = logging.getLogger(__name__)

MOST_FLYING = 16
"""Batches that may be frozen at a time; rows in a frozen batch are not joined to save room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFill:
    """How full an outbox is; above the limit its rows are joined, a quarter above it is full."""

    used_bytes: int
    limit_bytes: int


def boot_us() -> int:
    """Give the microseconds since boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class AgentOutbox:
    """The file of one agent; `sampler` and delivery may use it from two threads."""

    def __init__(
        self,
        path: Path,
        *,
        node: str,
        boot_id: str,
        limit_mib: int = 64,
        clock_us: Callable[[], int] = boot_us,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open the file, or begin a new one; one that is damaged is put aside.

        Args:
            path: of the file; its folder must exist.
            node: the node that these batches are of.
            boot_id: of this boot.
            limit_mib: largest size of the file.
            clock_us: microseconds since boot.
            now: the wall clock.

        Raises:
            FixInput: another agent has it open, or its folder cannot be used.
            JournalUnavailable: the disk does not take it.
        """
        self._node = node
        self._boot_id = boot_id
        self._clock_us = clock_us
        self._now = now
        self._remembered: set[Key] = set()
        self._file = OutboxFile(path, limit_mib)

    @property
    def fresh(self) -> bool:
        """Whether the file is new and does not know yet which counters the controller has."""
        return self.fact("fresh") == "1"

    def adopt(self, baselines: Iterable[CounterBaseline]) -> None:
        """In a new file, and only once, go on from the counters that the controller has."""
        with self._file.writing() as connection:
            if fact(connection, "fresh") == "1":
                put_counters(connection, baselines)
                put_fact(connection, "fresh", "0")

    def fact(self, name: str) -> str:
        """Read a named fact that was kept beside the rows; "" when there is none."""
        with self._file.reading() as connection:
            return fact(connection, name)

    def keep(self, name: str, value: str) -> None:
        """Keep a named fact beside the rows."""
        with self._file.writing() as connection:
            put_fact(connection, name, value)

    # For the sampler (`telemetry.sampler.Book`).

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and the counters they came from, in one transaction.

        Raises:
            JournalUnavailable: the disk does not take it; nothing was written.
        """
        values, advanced = [values_of(row) for row in rows], tuple(baselines)
        with self._file.writing() as connection:
            if begin_anew(connection, advanced):
                self._freeze_stretches(connection)
            connection.executemany(BOOK, values)
            put_counters(connection, advanced)
        newest = max((each[2] for each in values), default=0)
        booked = {(each[0], each[1], each[2], each[-1]) for each in values}
        # The sampler holds these rows in memory as they are here; they stay until it drops them.
        self._remembered = booked | {each for each in self._remembered if each[2] >= newest}
        self._keep_small()

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give each device's counter at the last booking.

        Raises:
            JournalUnavailable: they are not known yet; the controller must say first what it has.
        """
        with self._file.reading() as connection:
            if fact(connection, "fresh") == "1":
                raise JournalUnavailable(
                    "this outbox is new, and the controller has not yet said what it has of this "
                    "node; energy is booked from the counters once it has"
                )
            found = connection.execute("SELECT * FROM counters").fetchall()
        return {row["gpu_uuid"]: counter_of(row) for row in found}

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """Give the rows of slots that begin in [start, end)."""
        first = 0 if start is None else to_us(start)
        last = 1 << 62 if end is None else to_us(end)
        query = f"SELECT {COLUMNS} FROM rows WHERE slot_start >= ? AND slot_start < ?"
        with self._file.reading() as connection:
            found = connection.execute(query, (first, last)).fetchall()
            self._remembered.update(map(key_of, found))
        rows = tuple(map(row_of, found))
        return rows if run is None else tuple(row for row in rows if row.run == run)

    # For the delivery.

    def batch(self) -> EnergyBatch | None:
        """Give the batch to deliver next; the same one until it is acknowledged.

        Returns:
            None when there is nothing new.
        """
        with self._file.writing() as connection:
            flying = connection.execute("SELECT body FROM flight ORDER BY seq").fetchone()
            if flying is not None:
                return EnergyBatch.from_json(json.loads(flying["body"]))
            found, whole = refusals.offered(connection, to_us(self._now()))
            return self._freeze(connection, found, whole=whole) if found else None

    def acknowledged(self, batch: EnergyBatch) -> None:
        """Delete a batch that the controller has taken."""
        with self._file.writing() as connection:
            connection.execute("DELETE FROM flight WHERE seq = ?", (batch.seq,))
            refusals.taken(connection, batch)

    def refused(self, batch: EnergyBatch, why: str) -> None:
        """Take back a batch that the controller refused and did not count.

        Its rows are delivered in smaller batches; one that is refused alone is kept back.
        """
        with self._file.writing() as connection:
            connection.execute("DELETE FROM flight WHERE seq = ?", (batch.seq,))
            alone = refusals.put_back(connection, batch, why, to_us(self._now()))
        if alone:
            log.warning(
                "the controller refuses a row, which is kept back (%s): %s", why, batch.rows
            )

    def kept_back(self) -> KeptBack:
        """Say what the controller refuses."""
        with self._file.reading() as connection:
            return refusals.kept_back(connection)

    def fill(self) -> OutboxFill:
        """Say how full the file is.

        Raises:
            JournalUnavailable: the file cannot be read.
        """
        return OutboxFill(
            used_bytes=self._file.used() * PAGE_BYTES, limit_bytes=self._file.pages * PAGE_BYTES
        )

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _freeze(
        self, connection: sqlite3.Connection, found: list[sqlite3.Row], *, whole: bool
    ) -> EnergyBatch:
        """Make the next batch of these rows, and mark them as sent.

        Counters go with it where that is all there is to deliver. What is kept back is not: it
        would be booked twice if its device's counter stood still, and the file were lost.
        """
        counters = connection.execute("SELECT * FROM counters").fetchall() if whole else []
        batch = EnergyBatch(
            node=self._node,
            boot_id=self._boot_id,
            seq=self._next_seq(connection),
            at=self._now(),
            rows=tuple(map(change_of, found)),
            baselines=tuple(map(counter_of, counters)),
        )
        keys = [key_of(row) for row in found]
        connection.executemany(f"UPDATE rows SET {SENT} WHERE {KEY}", keys)
        body = json.dumps(batch.to_json(), separators=(",", ":"))
        connection.execute("INSERT INTO flight VALUES (?, ?)", (batch.seq, body))
        return batch

    def _freeze_stretches(self, connection: sqlite3.Connection) -> None:
        """Freeze the rows that wait with the present counters, before new counters replace these.

        Otherwise the controller would never hear up to when the present ones were read. It does
        not where more rows wait than one batch holds: that time then counts as unread, although
        the energy read in it is delivered.
        """
        flying = connection.execute("SELECT count(*) FROM flight").fetchone()[0]
        found, whole = refusals.offered(connection, to_us(self._now()))
        if found and whole and flying < MOST_FLYING:
            self._freeze(connection, found, whole=True)

    def _next_seq(self, connection: sqlite3.Connection) -> int:
        """Give a sequence number that rises within this boot, even if this file was lost.

        No two batches are made in one microsecond, so the clock alone exceeds every older number.
        """
        boot_id, _, newest = fact(connection, "seq").rpartition(" ")
        seq = self._clock_us()
        if newest and boot_id == self._boot_id:
            seq = max(seq, int(newest) + 1)
        put_fact(connection, "seq", f"{self._boot_id} {seq}")
        return seq

    def _keep_small(self) -> None:
        """While the file is over its limit, delete rows that were sent, then join slots."""
        while self._file.used() > self._file.pages:
            with self._file.writing() as connection:
                if not (self._let_go(connection) or self._coarsen(connection)):
                    return

    def _let_go(self, connection: sqlite3.Connection) -> bool:
        """Delete the older half of the rows that were sent whole; say whether there were any."""
        query = f"SELECT gpu_uuid, run, slot_start, line FROM rows WHERE NOT {UNSENT}"
        keys = [key_of(row) for row in connection.execute(f"{query} ORDER BY slot_start")]
        free = [key for key in keys if key not in self._remembered]
        connection.executemany(f"DELETE FROM rows WHERE {KEY}", free[: len(free) // 2 + 1])
        return bool(free)

    def _coarsen(self, connection: sqlite3.Connection) -> bool:
        """Join neighbouring slots of one device and line; say whether there were any."""
        query = f"SELECT * FROM rows WHERE {UNSENT} ORDER BY slot_start"
        found = [
            UnsentRow(key=key_of(row), unsent=change_of(row)) for row in connection.execute(query)
        ]
        joined = coarser([each for each in found if each.key not in self._remembered])
        if not joined:
            return False
        gone = [key for each in joined for key in each.replaces]
        connection.executemany(f"DELETE FROM rows WHERE {KEY}", gone)
        connection.executemany(BOOK, [values_of(each.row) for each in joined])
        refusals.tidy(connection)
        log.warning(
            "%d undelivered slots were joined into %d longer ones: the outbox is at its limit",
            len(gone),
            len(joined),
        )
        return True
