"""A database that is locked, full or gone, and writers that are killed."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders.journals import migrate
from tests.builders.runs import T0, order, put_order, register
from wattmesh import durable
from wattmesh.controller.journal.database import engine, schema
from wattmesh.controller.journal.database.failures import Locked
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import FixInput, InputInvalid, JournalUnavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A migrated SQLite file."""
    path = tmp_path / "journal.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite(path: Path) -> Iterator[Journal]:
    """The journal in that file."""
    opened = Journal.open(f"sqlite:///{path}")
    yield opened
    opened.close()


def test_a_locked_database_is_said_and_passes(
    sqlite: Journal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the write lock longer than we wait."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.2)
    impatient = Journal.open(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="locked by another process"):
        register(impatient)
    assert impatient.runs.all(T0) == ()  # reading goes on
    other.execute("ROLLBACK")
    other.close()
    register(impatient)
    assert len(impatient.runs.all(T0)) == 1
    impatient.close()


def fill(journal: Journal) -> None:
    """Write until it fails."""
    for number in range(1000):
        journal.events.add("fill", "x" * 2000, T0)
        assert number < 999, "the limit did not hold"


def test_a_full_database_is_said_and_nothing_is_half_written(sqlite: Journal) -> None:
    """SQLite's own page limit stands for the full disk."""
    register(sqlite)
    with sqlite.database.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(JournalUnavailable, match="disk is full; free some space"):
        fill(sqlite)
    with sqlite.database.reading() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1000000")
    sqlite.events.add("after", "works again", T0)
    assert sqlite.events.list(1)[0].kind == "after"


def test_a_database_taken_away_is_said_and_comes_back(sqlite: Journal, path: Path) -> None:
    """No empty one is made in its place; put back, everything is there."""
    register(sqlite)
    for each in path.parent.iterdir():
        each.rename(each.with_name("taken-" + each.name))
    with pytest.raises(JournalUnavailable, match="is gone; put the file"):
        sqlite.runs.all(T0)
    assert not path.exists()
    for each in path.parent.iterdir():
        each.rename(each.with_name(each.name.removeprefix("taken-")))
    assert len(sqlite.runs.all(T0)) == 1


def test_a_server_that_is_not_there_is_said() -> None:
    """PostgreSQL on a socket where nobody listens."""
    with pytest.raises(JournalUnavailable, match="does not answer"):
        Journal.open("postgresql+psycopg://nobody@/none?host=/nonexistent")


def stamp(path: Path, statement: str) -> None:
    """Change the stored revision behind the journal's back."""
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def test_an_older_and_a_newer_schema_are_told_apart(path: Path) -> None:
    """One asks for an upgrade of the database, the other of wattmesh."""
    stamp(path, "DELETE FROM alembic_version")
    with pytest.raises(FixInput, match="wattmesh db upgrade"):
        Journal.open(f"sqlite:///{path}")
    stamp(path, "INSERT INTO alembic_version VALUES ('9999')")
    stamp(path, "UPDATE schema_floor SET oldest = '9999'")
    with pytest.raises(FixInput, match="newer than this wattmesh"):
        Journal.open(f"sqlite:///{path}")


def test_other_databases_are_refused() -> None:
    """With what is supported."""
    with pytest.raises(InputInvalid, match="postgresql"):
        Journal.open("mysql://localhost/x")


def test_a_file_on_a_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks cannot be relied on there; the twin on a local disk is let through."""
    monkeypatch.setattr(engine, "file_system", lambda _: "nfs4")
    with pytest.raises(InputInvalid, match="nfs4 file system"):
        engine.Database("sqlite:////srv/journal.db")
    monkeypatch.setattr(engine, "file_system", lambda _: "ext4")
    engine.Database("sqlite:////srv/journal.db").close()


def test_the_file_system_of_a_folder_is_known() -> None:
    """Read from the kernel's own table."""
    assert engine.file_system(Path("/proc/self")) == "proc"


WRITER = """
import sys
from tests.builders.runs import order, put_order, register, after
from wattmesh.controller.journal.journal import Journal
journal = Journal.open(sys.argv[1])
register(journal)
epoch = journal.leadership.acquire("w", 600.0)
n = 0
while True:
    n += 1
    put_order(journal, order(epoch, f"p{n}", run=f"r{n}"), after(n))
    print(n, flush=True)
"""


def test_kill_9_loses_nothing_that_was_acknowledged(journal_url: str) -> None:
    """Every order that was acknowledged before the kill is there, whole, afterwards."""
    migrate(journal_url)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, journal_url], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    deadline = time.monotonic() + 30
    acknowledged = 0
    while acknowledged < 20 and time.monotonic() < deadline:
        acknowledged = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.strip())])
    writer.stdout.close()
    writer.wait()
    journal = Journal.open(journal_url)
    plans = {row.switch_id for row in journal.switches.history(limit=10_000)}
    assert {f"p{n}" for n in range(1, acknowledged + 1)} <= plans
    for number in range(1, acknowledged + 1):
        row = journal.switches.open(f"r{number}")
        assert row is not None
        assert row.order == order(row.epoch, f"p{number}", run=f"r{number}")
    assert not put_order(journal, order(1, "p1", run="r1"))
    journal.close()


@pytest.mark.parametrize("kind", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_file_that_another_process_has_is_told_from_one_that_is_new(
    kind: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rollback mode a writer keeps us from turning WAL on, and at times even from reading."""
    for module in (engine, schema):
        monkeypatch.setattr(module, "BUSY_TIMEOUT_S", 0.05)
    url = f"sqlite:///{path}"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute(f"BEGIN {kind}")
        first = schema.bring_up_to_date if kind == "EXCLUSIVE" else Journal.open
        with pytest.raises(Locked, match="is locked by another process"):
            first(url)
        later = Journal.later(url, lambda: schema.bring_up_to_date(url), "it is away")
        with pytest.raises(JournalUnavailable, match="is locked by another process"):
            later.check_revision()
        other.execute("ROLLBACK")
    later.check_revision()
    with pytest.raises(durable.Held):
        durable.hold(path)
    later.close()


def test_one_caller_waits_for_a_journal_that_is_away(path: Path) -> None:
    """The others are told why at once, and how long the one has waited is known."""
    url = f"sqlite:///{path}"
    tries, over = threading.Event(), threading.Event()

    def prepare() -> None:
        tries.set()
        assert over.wait(30.0)

    later = Journal.later(url, prepare, "it is away")
    one = threading.Thread(target=later.check_revision)
    one.start()
    assert tries.wait(30.0)
    with pytest.raises(JournalUnavailable, match="it is away"):
        later.check_revision()
    assert later.database.unanswered_s() > 0
    over.set()
    one.join()
    later.check_revision()
    assert later.database.unanswered_s() == 0
    later.close()
