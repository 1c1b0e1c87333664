"""Empty journals at the newest revision, as files and opened, copied from one that was migrated.

A migration takes a third of a second, and a thousand tests want its result. Those of the
migrations themselves, and of how a daemon makes them, do not come here.
"""

import sqlite3
import tempfile
from functools import cache
from pathlib import Path

import psycopg
from sqlalchemy import make_url
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from tests.postgresql import COPIED
from wattmesh.controller.journal.database.tables import EMISSIONS
from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations.upgrade import upgrade

TEMPLATE = "migrated"
BEFORE_0018 = (
    "DROP INDEX power_caps_by_end",
    *(
        f"ALTER TABLE power_caps DROP COLUMN {name}"
        for name in ("origin", "signal", "unit", "value", "threshold", "issued_at")
    ),
)
"""What takes back revision 0018, on both databases."""


def fresh(url: str) -> Journal:
    """Open an empty journal in the empty database at `url`."""
    migrate(url)
    return Journal.open(url)


def fresh_file(path: Path) -> Journal:
    """Open an empty journal in a new SQLite file at `path`."""
    return fresh(f"sqlite:///{path}")


def put_back_to_0012(connection: sqlite3.Connection) -> None:
    """Give an open SQLite journal the shape of revision 0012, with no row of grams."""
    for table in ("switches", "transitions"):
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN switch_id TO plan")
    for table, name in (
        ("incarnations", "waited_us"),
        ("incarnations", "allocated"),
        ("runs", "allocated"),
    ):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    for statement in BEFORE_0018:
        connection.execute(statement)
    connection.execute("DROP VIEW emissions")
    for name in ("emission_rows", "emission_prices", "ledger_names", "expert_learning"):
        connection.execute(f"DROP TABLE {name}")
    connection.execute(str(CreateTable(EMISSIONS).compile(dialect=sqlite.dialect())))
    connection.execute("UPDATE alembic_version SET version_num = '0012'")


def put_back_to_0006(connection: sqlite3.Connection) -> None:
    """Give an open SQLite journal the shape of revision 0006."""
    put_back_to_0012(connection)
    connection.execute("ALTER TABLE clock_marks DROP COLUMN stepped_us")
    connection.execute("DROP TABLE ledger_changes")
    connection.execute("DROP TABLE schema_floor")
    connection.execute("DROP TABLE exogenous_points")
    for name in ("asleep_at", "wakes_at", "held_as"):
        connection.execute(f"ALTER TABLE runs DROP COLUMN {name}")
    connection.execute("ALTER TABLE incarnations DROP COLUMN asleep_release")
    connection.execute("UPDATE alembic_version SET version_num = '0006'")


def migrate(url: str) -> None:
    """Make the empty database at `url` a journal at the newest revision."""
    address = make_url(url)
    if address.get_backend_name() == "sqlite":
        Path(str(address.database)).write_bytes(empty_journal())
        return
    folder = str(address.query["host"])
    _database(folder)
    _execute(folder, f"DROP DATABASE {address.database}")
    _execute(folder, f"CREATE DATABASE {address.database} TEMPLATE {TEMPLATE} {COPIED}")


@cache
def empty_journal() -> bytes:
    """Give the SQLite file that others are copies of."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()


@cache
def _database(folder: str) -> None:
    """Make the database that others of the server with its socket in `folder` are copies of."""
    _execute(folder, f"CREATE DATABASE {TEMPLATE}")
    upgrade(f"postgresql+psycopg://wattmesh@/{TEMPLATE}?host={folder}")


def _execute(folder: str, statement: str) -> None:
    with psycopg.connect(
        host=folder, user="wattmesh", dbname="postgres", autocommit=True
    ) as connection:
        connection.execute(statement.encode())
