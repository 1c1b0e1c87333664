"""The database behind the journal: SQLite with its safest settings, or PostgreSQL by URL.

Invariant: a transaction that `writing` left without an error is on disk, in the file that stands
at the journal's path (SQLite: WAL with synchronous FULL; PostgreSQL: synchronous_commit on,
whatever the server's default). Every failure of the database is raised as `JournalUnavailable`, in
one sentence with the next step, and every wait for a server is bounded. A value that the database
cannot hold (a text too long, a number out of range, a duplicate of a unique row) is the caller's
fault and no outage: `InputInvalid`.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DataError, DisconnectionError, IntegrityError, SQLAlchemyError

from wattmesh.controller.journal.database.failures import unavailable
from wattmesh.controller.journal.database.shown_url import without_secrets
from wattmesh.controller.journal.database.sqlite_url import sqlite_path
from wattmesh.errors import FixInput, InputInvalid, JournalUnavailable
from wattmesh.reconfig.ranges import clean

BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for a lock that somebody else holds."""

WAL_RETRY_S = 0.02
CONNECT_TIMEOUT_S = 5
STATEMENT_TIMEOUT_S = 30
"""Our statements take less than a second; one that runs this long has met a server that hangs."""
ANSWER_LIMIT_S = STATEMENT_TIMEOUT_S + 5.0
"""By then the server has ended every slow statement itself; one that sends no answer hangs."""


class Database:
    """One journal database: short transactions, clear errors."""

    def __init__(self, url: str) -> None:
        """Prepare the engine; nothing is opened before the first transaction.

        Raises:
            InputInvalid: the URL is neither SQLite nor PostgreSQL, or the file is on a network.
        """
        sqlite_path(url)
        self.url = make_url(url)
        self.name = without_secrets(self.url.render_as_string(hide_password=True))
        self._check: Callable[[Connection], None] | None = None
        self._away = ""
        self._trying = threading.Lock()
        self._trying_since_s: float | None = None
        self._unanswered_s: Callable[[], float] = lambda: 0.0
        self.engine = _engine(url)
        if not self.is_sqlite:
            self._unanswered_s = _end_waits(self.engine)
        event.listen(self.engine, "handle_error", _callers_fault)
        options: dict[str, Any] = {"reading": True}
        if not self.is_sqlite:
            # Sums over several tables must not see a roll-up between two of them.
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        self._reader = self.engine.execution_options(**options)
        self._of_thread = threading.local()

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a file of ours."""
        return self.engine.dialect.name == "sqlite"

    def admit_by(self, check: Callable[[Connection], None], away: str) -> None:
        """Run `check` once, when the database first answers; no transaction begins before it.

        Args:
            check: raises FixInput where the database is not as it must be.
            away: why the database is not open yet: the error of callers while another one tries.
        """
        self._check, self._away = check, away

    def unanswered_s(self) -> float:
        """Give how long the oldest query, or the caller that runs the check, has waited.

        0 for a SQLite file that is open.
        """
        since_s = self._trying_since_s
        trying_s = 0.0 if since_s is None else time.monotonic() - since_s
        return max(trying_s, self._unanswered_s())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection for reading one consistent state.

        Raises:
            JournalUnavailable: the database does not answer.
        """
        held: Connection | None = getattr(self._of_thread, "connection", None)
        with self._guarded():
            if held is not None:
                yield held
                return
            with self._reader.connect() as connection:
                yield connection

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Make everything that this thread reads in the block see one state, in one transaction.

        These reads do not see what the thread writes in the block.

        Raises:
            JournalUnavailable: the database does not answer.
        """
        before: Connection | None = getattr(self._of_thread, "connection", None)
        with self.reading() as connection:
            self._of_thread.connection = connection
            try:
                yield
            finally:
                self._of_thread.connection = before

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Give a connection whose work is committed at the end, or undone by an error.

        Raises:
            JournalUnavailable: the database does not answer or is full; nothing was written.
        """
        check: Callable[[Connection], None] | None = getattr(self._of_thread, "check", None)
        with self._guarded(), self.engine.begin() as connection:
            yield connection
            if check is not None:
                check(connection)

    @contextmanager
    def writing_if(self, check: Callable[[Connection], None]) -> Iterator[None]:
        """Have everything that this thread writes in the block end with a check.

        Args:
            check: called in each transaction that writes, just before it is committed, so that what
                the check locks is locked for no longer; what it raises undoes that transaction.
        """
        before = getattr(self._of_thread, "check", None)
        self._of_thread.check = check
        try:
            yield
        finally:
            self._of_thread.check = before

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Turn SQLAlchemy's errors into `JournalUnavailable`."""
        try:
            self._still_there()
            self._admit()
            yield
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    def _admit(self) -> None:
        """Run the check of `admit_by` if it is still to run; one caller tries at a time.

        Raises:
            JournalUnavailable: the database does not answer or fails the check, or another caller
                is trying.
        """
        check = self._check
        if check is None:
            return
        if not self._trying.acquire(blocking=False):
            raise JournalUnavailable(self._away)
        try:
            self._trying_since_s = time.monotonic()
            with self._reader.connect() as connection:
                check(connection)
            self._check = None
        except SQLAlchemyError as error:
            self._away = str(made := self._unavailable(error))
            raise made from error
        except (FixInput, JournalUnavailable) as error:
            self._away = str(error)
            raise JournalUnavailable(self._away) from error
        finally:
            self._trying_since_s = None
            self._trying.release()

    def _unavailable(self, error: SQLAlchemyError) -> JournalUnavailable:
        return unavailable(error, f"the journal {self.name}", BUSY_TIMEOUT_S)

    def _still_there(self) -> None:
        """Refuse to create an empty database in the place of a file that was removed."""
        path = self.url.database
        if not self.is_sqlite or not path or path == ":memory:":
            return
        try:
            os.stat(path)
        except PermissionError as error:
            raise JournalUnavailable(closed_to_us(path)) from error
        except OSError as error:
            self.engine.dispose()
            raise JournalUnavailable(
                f"the journal {path} is gone; put the file (and its -wal) back, or restart "
                "wattmesh to begin a new one"
            ) from error


def closed_to_us(path: str | Path) -> str:
    """Say that the folders on the way to a journal are closed to who runs this."""
    return (
        f"the journal {path} lies in a folder that is closed to uid {os.geteuid()}; run this as "
        "root, or as the daemon's user"
    )


_POOL: dict[str, Any] = {"pool_size": 4, "max_overflow": 8, "pool_timeout": BUSY_TIMEOUT_S}


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        _refuse_network(Path(parsed.database or "."))
        engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S}, **_POOL)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "checkout", _check_file)
        event.listen(engine, "begin", _begin_immediate)
        return engine
    if parsed.get_backend_name() == "postgresql":
        return create_engine(
            parsed, pool_pre_ping=True, connect_args=_postgresql_arguments(), **_POOL
        )
    raise InputInvalid(
        f"journal.url: {parsed.get_backend_name()!r} is not supported; use sqlite:////path or "
        "postgresql+psycopg://user@host/name"
    )


def _end_waits(engine: Engine) -> Callable[[], float]:
    """Bound every wait for the server; give the function that tells how long the oldest lasts."""
    # Imported here: where the journal is a file, PostgreSQL's driver is not loaded.
    from wattmesh.controller.journal.database.patience import PatientConnection, Unanswered  # noqa: PLC0415
    from wattmesh.controller.journal.database.pooled import connected, settle  # noqa: PLC0415

    unanswered, settings = Unanswered(), _session_settings()

    def connect(_dialect: object, _record: object, words: Any, named: Any) -> PatientConnection:
        def once(options: str) -> PatientConnection:
            more = {**named, "options": options}
            return PatientConnection.opened(unanswered, ANSWER_LIMIT_S, *words, **more)

        return connected(once, settings)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "begin", lambda connection: settle(connection, settings))
    return unanswered.longest_s


def _postgresql_arguments() -> dict[str, Any]:
    """Give the connection arguments: every wait is bounded."""
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "tcp_user_timeout": STATEMENT_TIMEOUT_S * 1000,
        "application_name": "wattmesh",
    }


def _session_settings() -> dict[str, str]:
    """Give what each transaction has at the server: its waits are bounded, and commits on disk."""
    return {
        "lock_timeout": f"{BUSY_TIMEOUT_S:.0f}s",
        "statement_timeout": f"{STATEMENT_TIMEOUT_S}s",
        "idle_in_transaction_session_timeout": f"{STATEMENT_TIMEOUT_S}s",
        "synchronous_commit": "on",
    }


def _callers_fault(context: ExceptionContext) -> None:
    """Raise errors about the values that were sent as `InputInvalid`; leave all others alone.

    Raises:
        InputInvalid: the database answers but refuses the value; nothing was written.
    """
    cause = context.original_exception
    if isinstance(context.sqlalchemy_exception, DataError | IntegrityError) or isinstance(
        cause, OverflowError | UnicodeError
    ):
        said = clean(str(cause).strip().partition("\n")[0])
        raise InputInvalid(
            f"the journal cannot hold what was sent ({said}); send values within the ranges that "
            "/v1/openapi.json lists"
        ) from cause


def _prepare_sqlite(connection: Any, record: Any) -> None:
    """Set the pragmas, turn off the driver's own transactions, and remember which file this is."""
    connection.isolation_level = None
    cursor = connection.cursor()
    record.info["path"] = cursor.execute("PRAGMA database_list").fetchone()[2]
    record.info["file"] = _identity(record.info["path"])
    _write_ahead(cursor)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _write_ahead(cursor: sqlite3.Cursor) -> None:
    """Turn WAL on; retry while the file is locked, as this one statement does not wait.

    SQLite reads the mode before it locks the file to change it, and calls no busy handler for a
    lock wanted within a transaction (sqlite.org/c3ref/busy_handler.html).
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(WAL_RETRY_S)
        else:
            return


def _check_file(_connection: object, record: Any, _proxy: object) -> None:
    """Drop a pooled connection whose file was replaced: its commits would go to the old file.

    Raises:
        DisconnectionError: the pool opens a new connection instead.
    """
    if record.info["file"] != _identity(record.info["path"]):
        raise DisconnectionError("another file stands at the journal's path")


def _identity(path: str) -> tuple[int, int] | None:
    """Give (device, inode) of the file at `path`; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _begin_immediate(connection: Connection) -> None:
    """Begin; a writer takes the write lock at once, as it might not get it after a read."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "ceph", "glusterfs", "fuse.", "9p")
"""Where SQLite's locks and WAL cannot be relied on (sqlite.org/wal.html, "network filesystem")."""


def _refuse_network(path: Path) -> None:
    """Refuse a journal file on a file system that other machines share.

    Raises:
        InputInvalid: it is on one; the message names the two ways out.
    """
    kind = file_system(path.absolute().parent)
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        raise InputInvalid(
            f"journal.url: {path} lies on a {kind} file system, where SQLite is not safe; use a "
            "local disk, or PostgreSQL"
        )


def file_system(folder: Path) -> str:
    """Name the file system that holds `folder` (Linux); "" when it cannot be told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].replace("\\040", " ")
        inside = folder == Path(mount) or Path(mount) in folder.parents
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind
