"""A SQLite journal's backup and restore: whole copies, checked, and never over anything else.

SQLite's own backup copies what is committed, whether it lies in the file or still in its -wal,
while a daemon writes on (sqlite.org/backup.html). Invariant: a file has its final name only once it
is whole, checked and durable; a copy is a journal of its own (`identity`); what stands in the way
is moved aside, never deleted, and only when that was asked for.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.exc import SQLAlchemyError

from wattmesh import durable, migrations
from wattmesh.controller.journal.database import identity
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.failures import Locked
from wattmesh.controller.journal.database.identity import JournalIdentity
from wattmesh.controller.journal.database.sqlite_url import sqlite_url
from wattmesh.errors import CallHuman, InputInvalid, JournalUnavailable, Refused, RetryLater

T = TypeVar("T")

BESIDE = ("", "-wal", "-shm")
"""The files of one SQLite database, by the end of their names (sqlite.org/walformat.html)."""

BEFORE_IDENTITIES = migrations.REVISIONS[: migrations.REVISIONS.index("0004")]

LOCK_WAIT_S = 30.0
MODE = 0o640
"""The mode that the daemon's systemd unit gives its files (UMask=0027)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMade:
    """A backup that was made.

    Attributes:
        journal: identity of the journal that was copied; "": it has none yet.
    """

    path: Path
    size: int
    revision: str
    journal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredJournal:
    """A journal that was put back.

    Attributes:
        aside: the new name of the journal that stood there before; None: there was none.
        identity: the identity that the restored journal has from now on.
    """

    path: Path
    identity: JournalIdentity
    aside: Path | None


def in_use(database: Database) -> durable.Lock | None:
    """Take a SQLite journal's lock, which daemons share; None for PostgreSQL.

    Raises:
        Locked: the journal is being restored. JournalUnavailable: the lock file cannot be opened.
    """
    path = _file(database)
    if path is None:
        return None
    try:
        return durable.hold(path, shared=True)
    except durable.Held as error:
        raise Locked(f"the journal {path} is being restored by process {error.holder}") from error
    except OSError as error:
        why = durable.cannot_write(path.parent) or "it must belong to the daemon's user"
        raise JournalUnavailable(
            f"{path}.lock cannot be opened ({error.strerror}): {why}"
        ) from error


def backup(url: str, target: Path) -> BackupMade:
    """Copy a SQLite journal, in use or not, into a new file.

    Raises:
        InputInvalid: it is PostgreSQL, there is no journal, or `target` exists already.
        CallHuman: the journal is damaged. RetryLater: the disk or the database does not answer.
    """
    source = sqlite_file(url, "back it up with pg_dump (docs/operations.md, Backup and restore)")
    _whole_file(source)
    _refuse_existing(target)
    with _staged(target) as stage:
        revision = _copy(source, stage, live=True)
        whose = ""
        if revision not in BEFORE_IDENTITIES:
            whose = _in(stage, identity.set_apart)
        durable.fsync_file(stage)
        _name(stage, target)
    return BackupMade(path=target, size=target.stat().st_size, revision=revision, journal=whose)


def restore(
    url: str, source: Path, *, replace: bool, now: datetime, upgrade: Callable[[str], None]
) -> RestoredJournal:
    """Put a backup in the place of a SQLite journal.

    Args:
        url: of the journal.
        source: the backup, or any whole copy of a journal.
        replace: move the files that are there aside.
        now: part of the new name of files that are moved aside.
        upgrade: brings the journal at a URL to this version's revision.

    Raises:
        InputInvalid: it is PostgreSQL, or no backup, or files are there and `replace` is not set.
        Refused: a daemon has the journal. CallHuman: the backup is damaged.
        RetryLater: the disk does not answer.
    """
    target = sqlite_file(url, "restore it with pg_restore, then run `wattmesh db renew`")
    _whole_file(source)
    owner = _owner(target)
    with _alone(target, owner), _staged(target) as stage:
        standing = [path for each in BESIDE if (path := _sibling(target, each)).exists()]
        if standing and not replace:
            raise InputInvalid(
                f"{standing[0]} stands there: --replace moves it aside (it is not deleted)"
            )
        if _copy(source, stage, live=False) != migrations.HEAD:
            upgrade(sqlite_url(stage))
        made = _in(stage, identity.make_another)
        os.chown(stage, *owner)
        stage.chmod(MODE)
        durable.fsync_file(stage)
        aside = _sibling(target, f".replaced-{now:%Y%m%dT%H%M%SZ}") if standing else None
        if aside is not None:
            _rename(target, aside)
        try:
            _name(stage, target)
        except BaseException:
            if aside is not None:
                _rename(aside, target)
            raise
    return RestoredJournal(path=target, identity=made, aside=aside)


def sqlite_file(url: str, otherwise: str) -> Path:
    """Give the file of a journal.

    Raises:
        InputInvalid: it is PostgreSQL; `otherwise` says what to do then.
    """
    database = Database(url)
    path = _file(database)
    if path is None:
        raise InputInvalid(f"the journal {database.name} is PostgreSQL: {otherwise}")
    return path


def _file(database: Database) -> Path | None:
    """Give the file of a SQLite database; None for another database."""
    path = database.url.database
    return Path(path).absolute() if database.is_sqlite and path else None


def _sibling(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _whole_file(path: Path) -> None:
    """Refuse a path that is not a readable plain file.

    Raises:
        InputInvalid: it is missing, of another kind, or not readable.
    """
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(kind):
        raise InputInvalid(f"{path} is no plain file")
    if not os.access(path, os.R_OK, effective_ids=True):
        raise InputInvalid(
            f"{path} may not be read by uid {os.geteuid()}: run this as root, or as the daemon's "
            "user"
        )


def _refuse_existing(path: Path) -> None:
    """Refuse a path that exists.

    Raises:
        InputInvalid: it exists; nothing is overwritten.
    """
    if path.exists() or path.is_symlink():
        raise InputInvalid(
            f"{path} stands there already: give another name, nothing is overwritten"
        )


def _owner(target: Path) -> tuple[int, int]:
    """Return the journal's (uid, gid): those of the file that stands there, else of its folder."""
    known = target if target.exists() else target.parent
    try:
        found = known.stat()
    except OSError as error:
        raise InputInvalid(f"{known} cannot be used ({error.strerror}): make the folder") from error
    return found.st_uid, found.st_gid


@contextmanager
def _alone(target: Path, owner: tuple[int, int]) -> Iterator[None]:
    """Hold the journal's exclusive lock, so that no daemon can open it.

    Raises:
        Refused: a daemon has the journal open.
    """
    try:
        lock = durable.hold(target)
    except durable.Held as error:
        raise Refused(
            f"a daemon (process {error.holder}) has the journal {target}: stop it first "
            "(`systemctl stop wattmesh`)"
        ) from error
    except OSError as error:
        raise InputInvalid(
            f"{target}.lock cannot be opened ({error.strerror}): run this as root, or as the "
            "daemon's user"
        ) from error
    with lock:
        os.fchown(lock.fileno(), *owner)
        yield


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Give an empty private file beside the target; delete it afterwards.

    Raises:
        RetryLater: the file cannot be written.
    """
    stage = target.absolute().with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(stage, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        yield stage
    except (OSError, sqlite3.Error) as error:
        raise RetryLater(f"{target} was not written ({error}); nothing was changed") from error
    finally:
        for each in BESIDE:
            _sibling(stage, each).unlink(missing_ok=True)


def _copy(source: Path, stage: Path, *, live: bool) -> str:
    """Copy a database, check the copy, and return its revision. `live`: others may have it open.

    Raises:
        InputInvalid: it is no journal that this version knows. CallHuman: it is damaged.
    """
    # With no writer and no -wal the file is complete. Immutable also works in a read-only folder.
    settled = "" if live or _sibling(source, "-wal").exists() else "&immutable=1"
    # A read-only connection to a live database would leave its -wal file behind.
    mode = "rw" if live else "ro"
    address = f"{source.absolute().as_uri()}?mode={mode}{settled}"
    try:
        with (
            closing(sqlite3.connect(address, uri=True, timeout=LOCK_WAIT_S)) as old,
            closing(sqlite3.connect(stage)) as new,
        ):
            old.backup(new)  # in one step: one snapshot, and with WAL no writer waits for it
            new.execute("PRAGMA journal_mode=DELETE")
            found = [row[0] for row in new.execute("PRAGMA integrity_check(3)")]
            if found != ["ok"]:
                raise CallHuman(
                    f"{source} is damaged ({found[0]}): use another backup, and keep this one"
                )
            return _revision(new, source)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        raise CallHuman(
            f"{source} is no whole SQLite database ({error}): use another backup, and keep this one"
        ) from error


def _revision(database: sqlite3.Connection, source: Path) -> str:
    """Read a copy's schema revision.

    Raises:
        InputInvalid: it is no journal, or one of a newer version.
    """
    has = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    row = None
    if database.execute(has).fetchone():
        row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    if row is None:
        raise InputInvalid(f"{source} is no journal of wattmesh")
    if row[0] not in migrations.REVISIONS:
        raise InputInvalid(
            f"{source} is at revision {row[0]}, newer than this wattmesh ({migrations.HEAD}): "
            "install the newer one"
        )
    return str(row[0])


def _in(stage: Path, work: Callable[[Connection], T]) -> T:
    """Run `work` in one transaction on a staged copy, also where `Database` would refuse the disk.

    Raises:
        RetryLater: the copy cannot be written.
    """
    engine = create_engine(sqlite_url(stage), poolclass=NullPool)
    try:
        with engine.begin() as connection:
            return work(connection)
    except SQLAlchemyError as error:
        raise RetryLater(f"{stage} was not written ({error}); nothing was changed") from error


def _name(stage: Path, target: Path) -> None:
    """Give a finished file its final name, durably.

    Raises:
        InputInvalid: the name is taken.
    """
    try:
        os.link(stage, target)
    except FileExistsError:
        _refuse_existing(target)
    except OSError:  # a file system without hard links
        _refuse_existing(target)
        stage.rename(target)
    durable.fsync_folder(target.absolute().parent)


def _rename(one: Path, other: Path) -> None:
    """Rename a database with its -wal and -shm files; the new names must be free."""
    for each in BESIDE:
        _refuse_existing(_sibling(other, each))
    for each in BESIDE:
        if _sibling(one, each).exists():
            _sibling(one, each).rename(_sibling(other, each))
