"""What `wattmesh doctor` sees of the journal: there, whole, the daemon's own, at our revision, led.

Invariant: reading only; nothing is created, and no lock is held.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from wattmesh import migrations
from wattmesh.controller.cli.doctor.findings import CheckStatus, Finding, ok, problem, unknown
from wattmesh.controller.journal.database.shown_url import without_secrets
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import WattmeshError
from wattmesh.quantities import figures

CHECK = "journal"
AS_ROOT = "run doctor as root, or as the daemon's user"
RESTORE = "stop the daemon, restore it from a backup (`wattmesh db restore`)"


def journal(settings: Settings) -> Iterator[Finding]:
    """Check the database, wherever it is."""
    url = settings.journal.url
    if url.startswith("sqlite"):
        path = Path(url.partition("///")[2])
        found = file(path)
        yield found
        if found.verdict is not CheckStatus.UNKNOWN and path.exists():
            yield from foreign_files(path)
    else:
        yield server(settings)


def file(path: Path) -> Finding:
    """Check that a SQLite file can be read, is whole, and is a journal that this version reads."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return problem(
            CHECK, f"{path} does not exist yet", "start the daemon once; it makes the journal"
        )
    except OSError as error:
        return unknown(CHECK, f"{path} is not seen from here ({error.strerror})", AS_ROOT)
    if not size:
        return problem(
            CHECK,
            f"{path} is empty: whatever was in it is lost",
            "restore it from a backup (`wattmesh db restore`); without one the daemon begins anew",
        )
    return _content(path, size)


def _content(path: Path, size: int) -> Finding:
    """Read a SQLite file that is there."""
    try:
        # Without a -wal nobody has it open, and a reader who may not write here could not make one.
        settled = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
        address = f"{path.absolute().as_uri()}?mode=ro{settled}"
        with closing(sqlite3.connect(address, uri=True, timeout=2)) as connection:
            said = connection.execute("PRAGMA quick_check").fetchone()[0]
            shape = _shape(connection) if said == "ok" else ""
    except sqlite3.Error as error:
        return _unreadable(path, error)
    if said != "ok":
        return problem(CHECK, f"{path} is damaged: {said}", RESTORE)
    if shape:
        what, _, advice = shape.partition(": ")
        return problem(CHECK, f"{path} {what}", advice)
    return ok(CHECK, f"{path} is whole ({figures(size / (1 << 20))} MiB)")


def _unreadable(path: Path, error: sqlite3.Error) -> Finding:
    """Say why SQLite does not read a file."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return problem(CHECK, f"{path} is damaged: {error}", RESTORE)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return problem(CHECK, f"{path}: {error}", f"look who holds it: `fuser {path}`")
    if not os.access(path, os.R_OK):
        return unknown(CHECK, f"{path} may not be read by uid {os.geteuid()}", AS_ROOT)
    return problem(CHECK, f"{path} cannot be opened: {error}", "look at the file, and at its disk")


def _shape(connection: sqlite3.Connection) -> str:
    """Say why this version cannot work with a journal, and what to do; "" where it can."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    told = "SELECT version_num FROM alembic_version"
    row = connection.execute(told).fetchone() if "alembic_version" in tables else None
    if row is None:
        return "holds no journal: name the right file in journal.url, or restore a backup"
    found = row[0]
    if found in migrations.REVISIONS:
        return ""  # of an older one the daemon makes a newer one at its start
    floor = "SELECT oldest FROM schema_floor"
    row = connection.execute(floor).fetchone() if "schema_floor" in tables else None
    if row and row[0] in migrations.REVISIONS:
        return ""
    return (
        f"is at revision {found}, which is newer than this wattmesh ({migrations.HEAD}): install "
        "the newer wattmesh and restart the daemon"
    )


def foreign_files(path: Path) -> Iterator[Finding]:
    """Find files of the journal that belong to another user than its folder, as the daemon does."""
    owner = path.parent.stat()
    beside = (path, *(path.with_name(path.name + tail) for tail in ("-wal", "-shm", ".lock")))
    others = [each for each in beside if each.exists() and each.stat().st_uid != owner.st_uid]
    if others:
        names = " ".join(map(str, others))
        yield problem(
            CHECK,
            f"{names} belongs to uid {others[0].stat().st_uid}, its folder to uid {owner.st_uid}: "
            "a daemon, or a command that writes, was run by hand as another user",
            f"chown {owner.st_uid}:{owner.st_gid} {names}",
        )


def server(settings: Settings) -> Finding:
    """Check that a PostgreSQL server answers, has our tables, and that somebody leads on it."""
    # The other checks need no database library.
    from wattmesh.controller.journal.journal import Journal  # noqa: PLC0415

    where = without_secrets(settings.journal.url).rsplit("@", maxsplit=1)[-1]
    try:
        with closing(Journal.open(journal_url(settings))) as opened:
            row = opened.leadership.current()
    except WattmeshError as error:
        what, _, advice = str(error).rpartition(": " if ": run " in str(error) else "; ")
        return problem(CHECK, what or str(error), advice or "see the daemon's log")
    if row is None or row.expired:
        since = f" since {row.expires_at:%Y-%m-%d %H:%M:%S} UTC" if row else ""
        return problem(
            CHECK,
            f"{where} answers, and no daemon leads on it{since}",
            "systemctl start wattmesh; where one runs, `wattmesh status` says why it stands by",
        )
    return ok(CHECK, f"{where} answers; {row.holder} leads in epoch {row.epoch}")
