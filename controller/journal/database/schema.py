"""Bring a SQLite journal to this version's schema before it is opened.

The migration runs in a child process, because it needs alembic, which the daemon never loads. It
runs only when the revision differs, which one query with `sqlite3` tells. Invariant: PostgreSQL is
never migrated unasked (`wattmesh db upgrade`), and a journal newer than this version is left alone.
"""

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

from wattmesh import durable, migrations
from wattmesh.controller.journal.database.engine import BUSY_TIMEOUT_S, closed_to_us
from wattmesh.controller.journal.database.failures import locked
from wattmesh.controller.journal.database.sqlite_url import sqlite_path
from wattmesh.errors import FixInput, JournalUnavailable

log = logging.getLogger(__name__)

MIGRATION_LIMIT_S = 600.0


def bring_up_to_date(url: str) -> None:
    """Create or upgrade the journal at a SQLite `url`; leave any other alone.

    Raises:
        FixInput: the folder cannot be made or written to, or the address is not valid.
        Locked: another process has the journal. JournalUnavailable: the migration failed, or the
            folder is closed to us.
    """
    path = sqlite_path(url)
    if path is None:
        return
    found = revision(path)
    if found == migrations.HEAD or (found and found not in migrations.REVISIONS):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FixInput(
            f"the journal's folder {path.parent} cannot be made ({error.strerror}); make it, or "
            "name another place in journal.url"
        ) from error
    if why := durable.cannot_write(path.parent):
        raise FixInput(f"the journal's folder {why}, or name another place in journal.url")
    if found:
        log.info("the journal %s: from revision %s to %s", path, found, migrations.HEAD)
    else:
        log.info("the journal %s is new: made at revision %s", path, migrations.HEAD)
    _migrate(url)


def revision(path: Path) -> str:
    """Read a SQLite journal's revision; "" when it has none or cannot be read.

    Raises:
        Locked: another process keeps everybody from reading.
        JournalUnavailable: its folder is closed to us.
    """
    try:
        if not path.exists():
            return ""
    except PermissionError as error:
        raise JournalUnavailable(closed_to_us(path)) from error
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT_S
        )
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise locked(f"the journal {path}", BUSY_TIMEOUT_S) from error
        return ""
    return str(row[0]) if row else ""


def _migrate(url: str) -> None:
    command = [sys.executable, "-m", "wattmesh.migrations", url]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=MIGRATION_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JournalUnavailable(
            f"the journal's upgrade did not end in {MIGRATION_LIMIT_S:.0f} s; see who holds the "
            "database (`fuser`), then start again"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise JournalUnavailable(last.removeprefix("wattmesh: "))
