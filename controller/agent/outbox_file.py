"""The SQLite file of an agent's outbox: opened by one process, durable, never half written.

Invariant: a transaction that ended without an error is on disk (WAL, synchronous FULL). A file
that SQLite cannot read is put aside, never written over. Every failure surfaces as
`JournalUnavailable`, in one sentence with the next step.
"""

import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import FixInput, JournalUnavailable
from wattmesh.telemetry.readings import utc_now

log = logging.getLogger(__name__)

MIB = 1 << 20
PAGE_BYTES = 4096
ROOM = 1.25
"""The file may grow to this multiple of its limit while rows are joined; then it is full."""

BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE rows (
    gpu_uuid TEXT NOT NULL, run TEXT NOT NULL, slot_start INTEGER NOT NULL,
    slot_end INTEGER NOT NULL, incarnation TEXT NOT NULL, energy_mj INTEGER,
    unobserved_ms INTEGER NOT NULL, upper_mj INTEGER NOT NULL, source TEXT NOT NULL,
    quality TEXT NOT NULL, line TEXT NOT NULL, sent_energy_mj INTEGER,
    sent_unobserved_ms INTEGER NOT NULL DEFAULT 0, sent_upper_mj INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (gpu_uuid, run, slot_start, line)) WITHOUT ROWID;
CREATE TABLE counters (
    gpu_uuid TEXT PRIMARY KEY, energy_mj INTEGER NOT NULL, at INTEGER NOT NULL,
    monotonic_s REAL NOT NULL, boot_id TEXT NOT NULL, source TEXT NOT NULL,
    booked_mj INTEGER NOT NULL, unobserved_ms INTEGER NOT NULL,
    recovered_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE flight (seq INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_ADDED = """
CREATE TABLE IF NOT EXISTS refusals (
    gpu_uuid TEXT NOT NULL, run TEXT NOT NULL, slot_start INTEGER NOT NULL, line TEXT NOT NULL,
    times INTEGER NOT NULL, retry_at INTEGER NOT NULL, why TEXT NOT NULL,
    PRIMARY KEY (gpu_uuid, run, slot_start, line)) WITHOUT ROWID
"""
"""Table that files of older versions lack."""


class OutboxFile:
    """One file, one process, one thread at a time."""

    def __init__(self, path: Path, limit_mib: int) -> None:
        """Open the file, or begin a new one; one that is damaged is put aside.

        Raises:
            FixInput: another agent has it open, or its folder cannot be used.
            JournalUnavailable: the disk does not take it.
        """
        self.pages = max(64, limit_mib * MIB // PAGE_BYTES)
        self._lock = threading.Lock()
        self._held = _hold(path)
        try:
            self._database = self._open(path)
        except BaseException:
            self._held.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for single statements.

        Raises:
            JournalUnavailable: SQLite failed.
        """
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                raise JournalUnavailable(
                    f"the outbox does not take what was measured ({error}); it waits in memory, "
                    "and the hardware counters cover it: free some space"
                ) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction: committed at the end, undone by an error.

        Raises:
            JournalUnavailable: SQLite failed; nothing was written.
        """
        with self.reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def used(self) -> int:
        """Count the pages that hold something."""
        with self.reading() as connection:
            pages, free = (
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count")
            )
        return int(pages) - int(free)

    def close(self) -> None:
        """Close the file, and release its lock."""
        with self._lock:
            self._database.close()
            self._held.close()

    def _open(self, path: Path) -> sqlite3.Connection:
        """Open the file; one that SQLite cannot read is put aside, and a new one begun."""
        try:
            return self._connected(path)
        except sqlite3.OperationalError as error:
            raise JournalUnavailable(
                f"the outbox {path} cannot be opened ({error}); free some space, or look at its "
                "folder"
            ) from error
        except sqlite3.DatabaseError as error:
            aside = path.with_name(f"{path.name}.damaged-{utc_now():%Y%m%dT%H%M%S}")
            log.error("the outbox %s is damaged (%s); it is kept as %s", path, error, aside)
            path.rename(aside)
            for ending in ("-wal", "-shm"):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + ending).unlink()
            return self._connected(path)

    def _connected(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 200")
            connection.execute(f"PRAGMA max_page_count = {int(ROOM * self.pages) + 16}")
            if connection.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its pages do not fit together")
            _create(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _hold(path: Path) -> durable.Lock:
    """Lock the file for this process; the kernel releases the lock when the process ends.

    Raises:
        FixInput: another agent has it, or its folder cannot be used.
    """
    try:
        return durable.hold(path)
    except durable.Held as error:
        raise FixInput(
            f"another agent uses the outbox {path}; stop it first, or give this one its own "
            "agent.outbox"
        ) from error
    except OSError as error:
        why = durable.cannot_write(path.parent)
        said = f"the outbox's folder {why}" if why else f"{path}.lock: {error.strerror}"
        raise FixInput(f"{said}, or name another file in agent.outbox") from error


def _create(connection: sqlite3.Connection) -> None:
    """Create missing tables, and make all refused rows due again, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    known = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'facts'").fetchone()
    if known is None:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute("INSERT INTO facts VALUES ('fresh', '1')")
    connection.execute(_ADDED)
    columns = {row["name"] for row in connection.execute("PRAGMA table_info(counters)")}
    if "since_us" not in columns:
        connection.execute("ALTER TABLE counters ADD COLUMN since_us INTEGER NOT NULL DEFAULT 0")
    # Another controller, or a repaired one, may take what was kept back.
    connection.execute("UPDATE refusals SET retry_at = 0")
    connection.execute("COMMIT")
