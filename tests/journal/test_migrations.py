"""The migrations make exactly the tables that the code uses, on both databases."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.builders import runs
from tests.builders.journals import BEFORE_0018
from wattmesh import migrations
from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import METADATA, VIEWS
from wattmesh.controller.journal.journal import Journal, revision
from wattmesh.migrations.upgrade import current, upgrade
from wattmesh.policies.powercap.triggers import CapOrigin


def test_migrated_tables_are_those_of_the_code(journal_url: str) -> None:
    """Nothing missing, nothing left over, no other type."""
    upgrade(journal_url)
    database = Database(journal_url)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    database.close()


def test_a_missing_column_would_be_seen(journal_url: str) -> None:
    """The sabotaged twin of the test above."""
    upgrade(journal_url)
    database = Database(journal_url)
    with database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE events DROP COLUMN detail")
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA)
    database.close()


def test_the_head_is_known_without_alembic(journal_url: str) -> None:
    """The daemon compares it with the database's own revision at every start."""
    script = ScriptDirectory(next(iter(migrations.__path__)))
    assert script.get_current_head() == migrations.HEAD
    database = Database(journal_url)
    if not journal_url.startswith("sqlite"):
        assert revision(database) is None
    upgrade(journal_url)
    assert revision(database) == current(journal_url) == migrations.HEAD
    database.close()


def test_runs_from_before_heartbeats_are_of_hooks_without_them(journal_url: str) -> None:
    """They were registered before: their reports count as life, for longer; owners stay owners."""
    upgrade(journal_url)
    journal = Journal.open(journal_url)
    runs.register(journal)
    with journal.database.writing() as connection:
        connection.exec_driver_sql("DROP VIEW emissions")
        VIEWS.create_all(connection)  # the table it was
        for name in (
            *("protocol", "progress_at", "pause_share", "asleep_at", "wakes_at", "held_as"),
            "allocated",
        ):
            connection.exec_driver_sql(f"ALTER TABLE runs DROP COLUMN {name}")
        for name in ("asleep_release", "waited_us", "allocated"):
            connection.exec_driver_sql(f"ALTER TABLE incarnations DROP COLUMN {name}")
        for name in (
            *("clock_marks", "reopened_periods", "identity", "ledger_changes", "schema_floor"),
            *("node_devices", "node_tokens", "run_nodes", "exogenous_points"),
            *("emission_rows", "emission_prices", "ledger_names", "expert_learning"),
        ):
            connection.exec_driver_sql(f"DROP TABLE {name}")
        for statement in BEFORE_0018:
            connection.exec_driver_sql(statement)
        for name in ("switches", "transitions"):
            connection.exec_driver_sql(f"ALTER TABLE {name} RENAME COLUMN switch_id TO plan")
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
        connection.exec_driver_sql("UPDATE runs SET owner_uid = -2")
    journal.close()
    upgrade(journal_url)
    journal = Journal.open(journal_url)
    (row,) = journal.runs.all(runs.after(600))
    assert (row.protocol, row.progress_at, row.pause_share, row.state) == (1, None, 0.0, "live")
    assert row.owner_uid == 2**32 - 2  # as it was read by mistake
    journal.close()


def test_caps_from_before_are_operators_and_older_daemons_still_write_them(
    journal_url: str,
) -> None:
    """Upgraded with its rows; then a row without the new columns, as a daemon of 0017 writes it."""
    upgrade(journal_url, "0017")
    old = "INSERT INTO power_caps (cap_w, from_at, until_at, by, reason, epoch, ended_by) VALUES "
    database = Database(journal_url)
    with database.writing() as connection:
        connection.exec_driver_sql(f"{old}(1200, 1, 2, 'ana', 'hot', 1, '')")
    upgrade(journal_url)
    with database.writing() as connection:
        connection.exec_driver_sql(f"{old}(900, 1, 2, 'bo', 'hot', 1, '')")
    database.close()
    journal = Journal.open(journal_url)
    rows = journal.caps.list()
    assert [(each.cap_w, each.origin, each.trigger) for each in rows] == [
        (900.0, CapOrigin.OPERATOR, None),
        (1200.0, CapOrigin.OPERATOR, None),
    ]
    journal.close()


def test_two_processes_may_upgrade_at_once(journal_url: str) -> None:
    """One waits for the other; both end well."""
    command = [sys.executable, "-m", "wattmesh.migrations", journal_url]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [each.communicate(timeout=60)[0].strip() for each in both]
    assert [each.returncode for each in both] == [0, 0]
    assert answers == [migrations.HEAD] * 2


def test_a_failure_is_one_sentence() -> None:
    """And exit status 1."""
    command = [sys.executable, "-m", "wattmesh.migrations", "sqlite:////nonexistent/journal.db"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("wattmesh: the journal could not be upgraded: ")
    assert ended.stderr.count("\n") == 1


def test_an_upgrade_waits_for_whoever_writes(tmp_path: Path) -> None:
    """A lock held for a moment, in a file that was never opened before, fails nobody."""
    with held(tmp_path / "journal.db"):
        upgrade(f"sqlite:///{tmp_path / 'journal.db'}")
    assert current(f"sqlite:///{tmp_path / 'journal.db'}") == migrations.HEAD


def test_opening_waits_for_whoever_writes(tmp_path: Path) -> None:
    """SQLite itself does not wait when the journal mode is to change; `Database` does."""
    database = Database(f"sqlite:///{tmp_path / 'journal.db'}")
    with held(tmp_path / "journal.db"):
        impatient = sqlite3.connect(tmp_path / "journal.db", timeout=5.0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            impatient.execute("PRAGMA journal_mode=WAL")
        impatient.close()
        with database.reading() as connection:
            mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
    assert mode == "wal"
    database.close()


@contextmanager
def held(path: Path, for_s: float = 0.5) -> Iterator[None]:
    """Write-lock the SQLite file at `path`, in rollback-journal mode, for a moment."""
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("CREATE TABLE other (id)")
    holder.execute("BEGIN IMMEDIATE")
    release = threading.Timer(for_s, holder.rollback)
    release.start()
    yield
    release.join()
    holder.close()
