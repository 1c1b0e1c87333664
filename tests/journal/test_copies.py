"""`wattmesh db backup` and `restore` with SQLite: whole, checked, over nothing, told apart."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.builders.journals import empty_journal, put_back_to_0006
from wattmesh.controller.journal.database import identity
from wattmesh.controller.journal.database.copies import RestoredJournal, backup, restore
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.identity import APART
from wattmesh.controller.journal.database.schema import bring_up_to_date
from wattmesh.controller.journal.database.sqlite_url import sqlite_path, sqlite_url
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import CallHuman, InputInvalid, JournalUnavailable, Refused, WattmeshError
from wattmesh.migrations.upgrade import upgrade

NOW = datetime(2026, 11, 22, 18, 30, tzinfo=UTC)
DAEMON_UID = 54_300

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A journal that was led, with events, some of them in its -wal alone."""
    path = tmp_path / "state" / "journal.db"
    path.parent.mkdir()
    path.write_bytes(empty_journal())
    journal = Journal.open(f"sqlite:///{path}")
    journal.leadership.acquire("one", 60.0)
    note(journal, 3)
    journal.close()
    return f"sqlite:///{path}"


def note(journal: Journal, count: int) -> None:
    """Write events."""
    for number in range(count):
        journal.events.add("test", f"event {number}", NOW)


def events(url: str) -> int:
    """Count them."""
    journal = Journal.open(url)
    try:
        return len(journal.events.list())
    finally:
        journal.close()


ODD = "a b#c?d=1%41&%.db"


def test_any_path_is_copied_and_restored(tmp_path: Path) -> None:
    """Letters that mean something in a URL, in folder, journal and backup; nothing else is made."""
    home = tmp_path / ODD
    home.mkdir()
    path, copy, odd = home / ODD, tmp_path / f"copy of {ODD}", sqlite_url(home / ODD)
    bring_up_to_date(odd)
    backup(odd, copy)
    with closing(sqlite3.connect(copy)) as opened, opened:
        put_back_to_0006(opened)
    assert put_back(odd, copy, replace=True).path == path
    assert sqlite_path(odd) == path
    assert Database(odd).url.database == str(path)
    Journal.open(odd, daemon=True).close()
    aside = f"{ODD}.replaced-{NOW:%Y%m%dT%H%M%SZ}"
    assert {each.name for each in home.iterdir()} == {ODD, aside, f"{ODD}.lock"}
    assert {each.name for each in tmp_path.iterdir()} == {ODD, copy.name}
    with pytest.raises(InputInvalid, match="write %3F for `\\?`"):
        backup(f"sqlite:///{path}", tmp_path / "never.db")


def put_back(url: str, source: Path, *, replace: bool = False) -> RestoredJournal:
    """Restore as the command does."""
    return restore(url, source, replace=replace, now=NOW, upgrade=upgrade)


def files(folder: Path) -> dict[str, bytes]:
    """Give what lies in a folder, but for the lock beside the journal."""
    return {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.is_file() and not each.name.endswith((".lock", "-shm"))
    }


def test_a_backup_of_a_journal_in_use_has_what_lies_in_its_wal(url: str, tmp_path: Path) -> None:
    """A file that is copied by hand has not: that is why there is a command."""
    journal = Journal.open(url, daemon=True)
    note(journal, 4)
    path = tmp_path / "state" / "journal.db"
    assert Path(f"{path}-wal").stat().st_size > 0
    shutil.copy(path, tmp_path / "by-hand.db")
    made = backup(url, tmp_path / "b.db")
    assert made.journal == identity.read(journal.database).journal != ""
    journal.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["b.db", "by-hand.db", "state"]
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    assert made.size == (tmp_path / "b.db").stat().st_size
    counts = []
    for name in ("b.db", "by-hand.db"):
        with sqlite3.connect(tmp_path / name) as copy:
            counts.append(copy.execute("SELECT count(*) FROM events").fetchone()[0])
    assert counts == [7, 3]
    with pytest.raises(InputInvalid, match="nothing is overwritten"):
        backup(url, tmp_path / "b.db")


def test_a_restored_journal_is_another_one_and_the_copy_itself_is_nobodys(
    url: str, tmp_path: Path
) -> None:
    """Twice from one backup, or a backup that is simply started: three journals."""
    state = tmp_path / "state"
    whose = backup(url, tmp_path / "b.db").journal
    shutil.rmtree(state)
    state.mkdir()
    first = put_back(url, tmp_path / "b.db")
    assert (first.aside, first.identity.came_from) == (None, whose)
    assert first.identity.epoch == 1 + 2 * APART
    assert events(url) == 3
    second = put_back(url, tmp_path / "b.db", replace=True)
    assert second.aside == state / "journal.db.replaced-20261122T183000Z"
    assert events(f"sqlite:///{second.aside}") == 3
    started = Journal.open(f"sqlite:///{tmp_path / 'b.db'}")
    assert started.leadership.acquire("one", 60.0) == 2 + APART
    known = {whose, first.identity.journal, second.identity.journal, started.leadership.journal}
    assert len(known) == 4
    started.close()


def test_a_restore_that_cannot_be_changes_nothing(url: str, tmp_path: Path) -> None:
    """A daemon has it, something stands there, or the backup is none: one sentence each."""
    state, good = tmp_path / "state", tmp_path / "good.db"
    backup(url, good)
    whole = good.read_bytes()
    bad: dict[str, bytes] = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:8192] + bytes(each ^ 255 for each in whole[8192:16384]) + whole[16384:],
        "empty": b"",
        "text": b"no database at all" * 1000,
    }
    for name, data in bad.items():
        (tmp_path / name).write_bytes(data)
    with sqlite3.connect(tmp_path / "foreign") as foreign:
        foreign.execute("CREATE TABLE other (id)")
    shutil.copy(good, tmp_path / "newer")
    with sqlite3.connect(tmp_path / "newer") as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    os.mkfifo(tmp_path / "fifo")
    before = files(state)
    cases: tuple[tuple[str, type[WattmeshError], str], ...] = (
        ("cut", CallHuman, "use another backup"),
        ("flipped", CallHuman, "use another backup"),
        ("empty", InputInvalid, "no journal of wattmesh"),
        ("text", CallHuman, "no whole SQLite database"),
        ("foreign", InputInvalid, "no journal of wattmesh"),
        ("newer", InputInvalid, "newer than this wattmesh"),
        ("fifo", InputInvalid, "no plain file"),
        ("none", InputInvalid, "cannot be read"),
        (".", InputInvalid, "no plain file"),
    )
    for name, kind, words in cases:
        with pytest.raises(kind, match=words):
            put_back(url, tmp_path / name, replace=True)
        assert files(state) == before, name
    with pytest.raises(InputInvalid, match="stands there: --replace moves it aside"):
        put_back(url, good)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputInvalid, match="link stands there already"):
        backup(url, tmp_path / "link")
    assert not (tmp_path / "nowhere").exists()
    daemon = Journal.open(url, daemon=True)
    standby = Journal.open(url, daemon=True)
    for one in (daemon, standby):
        with pytest.raises(Refused, match="stop it first"):
            put_back(url, good, replace=True)
        one.close()
    assert files(state) == before
    put_back(url, good, replace=True)


def test_what_is_left_of_a_lost_journal_is_never_read_into_the_restored_one(
    url: str, tmp_path: Path
) -> None:
    """A -wal without its file would be replayed into the new one: it is moved aside with it."""
    state = tmp_path / "state"
    backup(url, tmp_path / "b.db")
    journal = Journal.open(url)
    note(journal, 4)
    left = (state / "journal.db-wal").read_bytes()
    journal.close()
    (state / "journal.db").unlink()
    (state / "journal.db-wal").write_bytes(left)
    with pytest.raises(InputInvalid, match=r"journal\.db-wal stands there"):
        put_back(url, tmp_path / "b.db")
    put_back(url, tmp_path / "b.db", replace=True)
    assert (state / "journal.db.replaced-20261122T183000Z-wal").read_bytes() == left
    assert events(url) == 3


@pytest.mark.parametrize(("revision", "whose"), [("0003", ""), ("0004", "an older one")])
def test_a_backup_from_before_an_upgrade_is_brought_up_to_date(
    tmp_path: Path, revision: str, whose: str
) -> None:
    """With an identity or without; what is put back has its own, and no daemon starts meanwhile."""
    old = f"sqlite:///{tmp_path / 'journal.db'}"
    upgrade(old, revision)
    if whose:
        with sqlite3.connect(tmp_path / "journal.db") as known:
            known.execute("INSERT INTO identity VALUES (1, ?, 0, '')", (whose,))
    made = backup(old, tmp_path / "b.db")
    assert (made.revision, made.journal) == (revision, whose)
    if whose:
        with sqlite3.connect(tmp_path / "b.db") as copy:
            assert copy.execute("SELECT journal, came_from FROM identity").fetchone() == ("", whose)
    asked = []

    def meanwhile(stage: str) -> None:
        with pytest.raises(JournalUnavailable, match="is being restored by process"):
            Journal.open(old, daemon=True)
        asked.append(stage)
        upgrade(stage)

    done = restore(old, tmp_path / "b.db", replace=True, now=NOW, upgrade=meanwhile)
    assert (len(asked), done.identity.came_from) == (1, whose)
    assert done.identity.journal not in ("", whose)
    assert events(old) == 0


@needs_root
def test_root_restores_for_the_daemons_user(url: str, tmp_path: Path) -> None:
    """Who owns the folder can take the lock, lead, and write; files of root would keep it out.

    Another user is told that it may not read it, and not that the copy could not be written.
    """
    state = tmp_path / "state"
    backup(url, tmp_path / "b.db")
    shutil.rmtree(state)
    state.mkdir()
    os.chown(state, DAEMON_UID, DAEMON_UID)
    put_back(url, tmp_path / "b.db")
    # Pytest's own folders are closed to others; a worker has one more of them.
    for each in (tmp_path, *tmp_path.parents):
        if each == Path(tempfile.gettempdir()):
            break
        each.chmod(0o755)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, sys\n"
            "from wattmesh.controller.journal.journal import Journal\n"
            "import sqlalchemy.dialects.sqlite\n"
            f"os.setgroups([]); os.setgid({DAEMON_UID}); os.setuid({DAEMON_UID})\n"
            "print(Journal.open(sys.argv[1], daemon=True).leadership.acquire('d', 9.0))",
            url,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == str(2 + 2 * APART), done.stderr
    os.seteuid(DAEMON_UID + 1)
    try:
        with pytest.raises(InputInvalid, match=r"journal.db may not be read by uid \d+: run this"):
            backup(url, tmp_path / "c.db")
    finally:
        os.seteuid(0)


def test_the_command_says_what_stands_in_its_way(url: str, tmp_path: Path) -> None:
    """A disk that takes no more, and PostgreSQL: one sentence, and no half a file."""
    full = (
        "import resource; sys.dont_write_bytecode = True\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
    )
    cases = (
        (full, url, "nothing was changed"),
        ("", "postgresql+psycopg://w@db-1/w", "back it up with pg_dump"),
    )
    for before, which, words in cases:
        code = (
            f"import sys\n{before}from wattmesh.controller.cli.main import main\nsys.exit(main())"
        )
        command = [sys.executable, "-c", code, "db", "backup", str(tmp_path / "b.db"), "--url"]
        done = subprocess.run(
            [*command, which], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done
        assert words in done.stderr
        assert [each.name for each in tmp_path.iterdir()] == ["state"]
