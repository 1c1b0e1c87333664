"""A rolling upgrade: migrations only add, or they say which code they are still good for."""

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sqlalchemy import Inspector, create_engine, inspect

from tests.builders import runs
from tests.builders.journals import fresh_file
from wattmesh import migrations
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import FixInput
from wattmesh.migrations.upgrade import upgrade

FIRST = "0011"
"""From here on code asks the floor; older code refuses every schema but its own."""

Shape = Mapping[str, Mapping[str, tuple[str, bool]]]
"""By table and column: its type, and whether a row may leave it out."""


def shape(inspector: Inspector) -> Shape:
    """Read the shape of a database."""
    return {
        table: {
            column["name"]: (
                str(column["type"]),
                bool(
                    column["nullable"] or column["default"] or column.get("autoincrement") is True
                ),
            )
            for column in inspector.get_columns(table)
        }
        for table in inspector.get_table_names()
    }


def contracted(before: Shape, after: Shape) -> Iterator[str]:
    """Name what code that knows the shape before cannot live with."""
    for table, columns in before.items():
        if table not in after:
            yield f"{table} is gone"
            continue
        for name, (kind, _) in columns.items():
            if after[table].get(name, ("", True))[0] != kind:
                yield f"{table}.{name} is gone, or of another type"
        for name, (_, may_be_left_out) in after[table].items():
            if name not in columns and not may_be_left_out:
                yield f"{table}.{name} must be written"


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Shape, str]]:
    """The shape and the floor after each revision."""
    path = tmp_path_factory.mktemp("shapes") / "journal.db"
    found = {}
    for each in migrations.REVISIONS:
        if each < "0009":
            continue
        upgrade(f"sqlite:///{path}", each)
        engine = create_engine(f"sqlite:///{path}")
        shape_now = shape(inspect(engine))
        floor = ""
        if "schema_floor" in shape_now:
            with engine.connect() as connection:
                floor = connection.exec_driver_sql("SELECT oldest FROM schema_floor").scalar_one()
        engine.dispose()
        found[each] = (shape_now, floor)
    return found


def test_a_migration_that_takes_something_away_raises_the_floor(
    shapes: Mapping[str, tuple[Shape, str]],
) -> None:
    """Else a daemon of the version before would go on, and fail in the middle of something."""
    for before, after in zip(list(shapes), list(shapes)[1:], strict=False):
        why = list(contracted(shapes[before][0], shapes[after][0]))
        assert not why or after <= FIRST or shapes[after][1] == after, f"{after}: {why}"
    assert shapes[migrations.HEAD][1] in migrations.REVISIONS


def test_what_contracts_is_seen(shapes: Mapping[str, tuple[Shape, str]]) -> None:
    """The sabotaged twins: a table or column gone, another type, a column that must be written."""
    newest = shapes[migrations.HEAD][0]
    assert not list(contracted(newest, newest))
    less = {name: columns for name, columns in newest.items() if name != "events"}
    assert list(contracted(newest, less)) == ["events is gone"]
    assert list(contracted(less, newest)) == []
    changed = {**newest, "events": {**newest["events"], "at": ("TEXT", True), "x": ("T", False)}}
    assert len(list(contracted(newest, changed))) == 2


@pytest.mark.parametrize(("floor", "works"), [(migrations.HEAD, True), ("9999", False)])
def test_code_works_with_a_newer_schema_that_was_only_added_to(
    tmp_path: Path, floor: str, works: bool
) -> None:
    """New tables and columns are not seen: runs register, leaders lead. Else one sentence."""
    path = tmp_path / "journal.db"
    fresh_file(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("ALTER TABLE runs ADD COLUMN mood TEXT")
        newer.execute("ALTER TABLE switches ADD COLUMN taste TEXT NOT NULL DEFAULT 'none'")
        newer.execute("CREATE TABLE moods (id INTEGER PRIMARY KEY, mood TEXT NOT NULL)")
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
        newer.execute("UPDATE schema_floor SET oldest = ?", (floor,))
    newer.close()
    if not works:
        with pytest.raises(FixInput, match="newer than this wattmesh"):
            Journal.open(f"sqlite:///{path}")
        return
    journal = Journal.open(f"sqlite:///{path}", daemon=True)
    epoch = journal.leadership.acquire("old", 60.0)
    assert epoch == 1
    runs.register(journal)
    journal.check_revision()
    journal.close()
