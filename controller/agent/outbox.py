"""What an agent has measured and not yet delivered, in one SQLite file.

A ledger for the sampler (`telemetry.sampler.Book`) on one side, batches for the controller on the
other. Invariant: a change of a row is frozen into exactly one batch, in the transaction that marks
it as sent; a batch keeps its (boot_id, seq) until it is acknowledged. So whatever is killed or
lost in between, what the controller adds up is what was booked here, to the millijoule.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from wattmesh.controller.agent.coarsen import Kept, Key, coarser
from wattmesh.controller.agent.outbox_file import OutboxFile
from wattmesh.errors import JournalUnavailable
from wattmesh.telemetry.delivery import MOST_ROWS, Batch
from wattmesh.telemetry.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import utc_now

log = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

_COLUMNS = (
    "gpu_uuid, run, slot_start, slot_end, incarnation, energy_mj, unobserved_ms, upper_mj, "
    "source, quality, line"
)
_BOOK = f"""
INSERT INTO rows ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET slot_end = excluded.slot_end, incarnation = excluded.incarnation,
    energy_mj = excluded.energy_mj, unobserved_ms = excluded.unobserved_ms,
    upper_mj = excluded.upper_mj, source = excluded.source, quality = excluded.quality
"""
_UNSENT = (
    "(energy_mj IS NOT sent_energy_mj OR unobserved_ms <> sent_unobserved_ms "
    "OR upper_mj <> sent_upper_mj)"
)
_KEY = "gpu_uuid = ? AND run = ? AND slot_start = ? AND line = ?"


def boot_us() -> int:
    """Give the microseconds since boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Outbox:
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
            path: where it is; its folder must exist.
            node: whose batches these are.
            boot_id: of this boot.
            limit_mib: most that it may take.
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
        """Whether the file is new, and the controller was not asked yet what it has."""
        return self.fact("fresh") == "1"

    def adopt(self, baselines: Iterable[CounterBaseline]) -> None:
        """Go on from the counters that the controller has, once, in a file that is new."""
        with self._file.writing() as connection:
            if _fact(connection, "fresh") == "1":
                _put_counters(connection, baselines)
                _put_fact(connection, "fresh", "0")

    def fact(self, name: str) -> str:
        """Read something that was kept beside the rows; "" when it was not."""
        with self._file.reading() as connection:
            return _fact(connection, name)

    def keep(self, name: str, value: str) -> None:
        """Keep something beside the rows."""
        with self._file.writing() as connection:
            _put_fact(connection, name, value)

    # For the sampler (`telemetry.sampler.Book`).

    def book(self, rows: Iterable[EnergyRow], baselines: Iterable[CounterBaseline]) -> None:
        """Replace rows and the counters they came from, in one transaction.

        Raises:
            JournalUnavailable: the disk does not take it; nothing was written.
        """
        values = [_values(row) for row in rows]
        with self._file.writing() as connection:
            connection.executemany(_BOOK, values)
            _put_counters(connection, baselines)
        newest = max((each[2] for each in values), default=0)
        booked = {(each[0], each[1], each[2], each[-1]) for each in values}
        # The sampler remembers these as they are here: until it forgets them too, they must stay.
        self._remembered = booked | {each for each in self._remembered if each[2] >= newest}
        self._keep_small()

    def baselines(self) -> dict[str, CounterBaseline]:
        """Give the counters that were booked up to.

        Raises:
            JournalUnavailable: they are not known yet; the controller has to be asked first.
        """
        with self._file.reading() as connection:
            if _fact(connection, "fresh") == "1":
                raise JournalUnavailable(
                    "this outbox is new, and the controller has not yet said what it has of this "
                    "node; energy is booked from the counters once it has"
                )
            found = connection.execute("SELECT * FROM counters").fetchall()
        return {row["gpu_uuid"]: _counter(row) for row in found}

    def energy(
        self, start: datetime | None = None, end: datetime | None = None, run: str | None = None
    ) -> tuple[EnergyRow, ...]:
        """Give the rows of slots that begin in [start, end)."""
        first = 0 if start is None else _to_us(start)
        last = 1 << 62 if end is None else _to_us(end)
        query = f"SELECT {_COLUMNS} FROM rows WHERE slot_start >= ? AND slot_start < ?"
        with self._file.reading() as connection:
            found = connection.execute(query, (first, last)).fetchall()
            self._remembered.update(map(_key, found))
        rows = tuple(map(_row, found))
        return rows if run is None else tuple(row for row in rows if row.run == run)

    # For the delivery.

    def batch(self) -> Batch | None:
        """Give the batch to deliver next; the same one until it is acknowledged.

        Returns:
            None when there is nothing new.
        """
        with self._file.writing() as connection:
            flying = connection.execute("SELECT body FROM flight ORDER BY seq").fetchone()
            if flying is not None:
                return Batch.from_json(json.loads(flying["body"]))
            query = f"SELECT * FROM rows WHERE {_UNSENT} ORDER BY slot_start LIMIT {MOST_ROWS + 1}"
            found = connection.execute(query).fetchall()
            if not found:
                return None
            return self._freeze(connection, found)

    def acknowledged(self, batch: Batch) -> None:
        """Forget a batch that the controller has."""
        with self._file.writing() as connection:
            connection.execute("DELETE FROM flight WHERE seq = ?", (batch.seq,))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _freeze(self, connection: sqlite3.Connection, found: list[sqlite3.Row]) -> Batch:
        """Make the next batch of these rows, and mark them as sent."""
        whole = len(found) <= MOST_ROWS
        counters = connection.execute("SELECT * FROM counters").fetchall() if whole else []
        batch = Batch(
            node=self._node,
            boot_id=self._boot_id,
            seq=self._next_seq(connection),
            at=self._now(),
            rows=tuple(map(_change, found[:MOST_ROWS])),
            baselines=tuple(map(_counter, counters)),
        )
        sent = (
            "sent_energy_mj = energy_mj, sent_unobserved_ms = unobserved_ms, "
            "sent_upper_mj = upper_mj"
        )
        keys = [_key(row) for row in found[:MOST_ROWS]]
        connection.executemany(f"UPDATE rows SET {sent} WHERE {_KEY}", keys)
        body = json.dumps(batch.to_json(), separators=(",", ":"))
        connection.execute("INSERT INTO flight VALUES (?, ?)", (batch.seq, body))
        return batch

    def _next_seq(self, connection: sqlite3.Connection) -> int:
        """Give a number that rises within this boot, even if this file was lost meanwhile.

        No two batches are made in one microsecond, so the clock alone is past every older number.
        """
        boot_id, _, newest = _fact(connection, "seq").rpartition(" ")
        seq = self._clock_us()
        if newest and boot_id == self._boot_id:
            seq = max(seq, int(newest) + 1)
        _put_fact(connection, "seq", f"{self._boot_id} {seq}")
        return seq

    def _keep_small(self) -> None:
        """Let go of what was sent, then join slots, while the file is over its limit."""
        while self._file.used() > self._file.pages:
            with self._file.writing() as connection:
                if not (self._let_go(connection) or self._coarsen(connection)):
                    return

    def _let_go(self, connection: sqlite3.Connection) -> bool:
        """Delete the oldest rows that were sent whole; say whether there were any."""
        query = f"SELECT gpu_uuid, run, slot_start, line FROM rows WHERE NOT {_UNSENT}"
        keys = [_key(row) for row in connection.execute(f"{query} ORDER BY slot_start")]
        free = [key for key in keys if key not in self._remembered]
        connection.executemany(f"DELETE FROM rows WHERE {_KEY}", free[: len(free) // 2 + 1])
        return bool(free)

    def _coarsen(self, connection: sqlite3.Connection) -> bool:
        """Join neighbouring slots of one device and line; say whether there were any."""
        query = f"SELECT * FROM rows WHERE {_UNSENT} ORDER BY slot_start"
        found = [Kept(key=_key(row), unsent=_change(row)) for row in connection.execute(query)]
        joined = coarser([each for each in found if each.key not in self._remembered])
        if not joined:
            return False
        gone = [key for each in joined for key in each.replaces]
        connection.executemany(f"DELETE FROM rows WHERE {_KEY}", gone)
        connection.executemany(_BOOK, [_values(each.row) for each in joined])
        log.warning(
            "%d undelivered slots were joined into %d longer ones: the outbox is at its limit",
            len(gone),
            len(joined),
        )
        return True


def _fact(connection: sqlite3.Connection, name: str) -> str:
    row = connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row["value"] if row else ""


def _put_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


_COUNTER = tuple(each.name for each in fields(CounterBaseline))
_COUNTER_MARKS = ", ".join("?" * len(_COUNTER))


def _key(row: sqlite3.Row) -> Key:
    return row["gpu_uuid"], row["run"], row["slot_start"], row["line"]


def _put_counters(connection: sqlite3.Connection, baselines: Iterable[CounterBaseline]) -> None:
    connection.executemany(
        f"INSERT OR REPLACE INTO counters ({', '.join(_COUNTER)}) VALUES ({_COUNTER_MARKS})",
        [
            tuple(({**asdict(each), "at": _to_us(each.at)})[name] for name in _COUNTER)
            for each in baselines
        ],
    )


def _counter(row: sqlite3.Row) -> CounterBaseline:
    return CounterBaseline(**{**dict(row), "at": _EPOCH + row["at"] * _US})


def _values(row: EnergyRow) -> tuple[Any, ...]:
    """Give a row in the order of `_COLUMNS`."""
    start, end = _to_us(row.slot_start), _to_us(row.slot_end)
    amounts = (row.energy_mj, row.unobserved_ms, row.upper_mj)
    words = (row.source, row.quality, row.line)
    return (row.gpu_uuid, row.run, start, end, row.incarnation, *amounts, *words)


def _row(row: sqlite3.Row) -> EnergyRow:
    """Read a row, whole."""
    values = {name: row[name] for name in _COLUMNS.split(", ")}
    start, end = _EPOCH + row["slot_start"] * _US, _EPOCH + row["slot_end"] * _US
    return EnergyRow(**{**values, "slot_start": start, "slot_end": end})


def _change(row: sqlite3.Row) -> EnergyRow:
    """Read what of a row was not sent yet."""
    values = {name: row[name] for name in _COLUMNS.split(", ")}
    energy_mj, sent_mj = row["energy_mj"], row["sent_energy_mj"]
    return EnergyRow(
        **{
            **values,
            "slot_start": _EPOCH + row["slot_start"] * _US,
            "slot_end": _EPOCH + row["slot_end"] * _US,
            "energy_mj": None if energy_mj == sent_mj else energy_mj - (sent_mj or 0),
            "unobserved_ms": row["unobserved_ms"] - row["sent_unobserved_ms"],
            "upper_mj": row["upper_mj"] - row["sent_upper_mj"],
        }
    )


def _to_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _US
