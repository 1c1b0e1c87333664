"""What `wattmesh doctor` sees of the journal: there, whole, the daemon's own, at our revision, led.

Invariant: reading only; nothing is created, and no lock is held.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from wattmesh.controller.cli.doctor.findings import Finding, ok, problem
from wattmesh.controller.settings.journal_address import journal_url
from wattmesh.controller.settings.model import Settings
from wattmesh.errors import WattmeshError
from wattmesh.quantities import figures

CHECK = "journal"


def journal(settings: Settings) -> Iterator[Finding]:
    """Check the database, wherever it is."""
    url = settings.journal.url
    if url.startswith("sqlite"):
        path = Path(url.partition("///")[2])
        yield file(path)
        if path.exists():
            yield from foreign_files(path)
    else:
        yield server(settings)


def file(path: Path) -> Finding:
    """Check that a SQLite file can be read and is whole."""
    if not path.exists():
        return problem(
            CHECK, f"{path} does not exist yet", "start the daemon once; it makes the journal"
        )
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2)) as connection:
            said = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        return problem(CHECK, f"{path}: {error}", f"look who holds it: `fuser {path}`")
    if said != "ok":
        return problem(
            CHECK, f"{path} is damaged: {said}", "stop the daemon, restore it from a backup"
        )
    size_mib = path.stat().st_size / (1 << 20)
    return ok(CHECK, f"{path} is whole ({figures(size_mib)} MiB)")


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

    where = settings.journal.url.rsplit("@", maxsplit=1)[-1]
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
