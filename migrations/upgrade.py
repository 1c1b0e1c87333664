"""Bring a journal's schema up to date. Imports alembic: the daemon runs this as a child process."""

from importlib.resources import as_file, files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, create_engine, make_url, text

LOCK_KEY = 0x77617474
"""PostgreSQL advisory lock that two upgrading processes queue for."""


def upgrade(url: str, revision: str = "head") -> None:
    """Run every migration up to `revision` that the database at `url` lacks; safe when two do."""
    with as_file(files("wattmesh.migrations")) as folder:
        config = Config()
        config.set_main_option("script_location", str(folder))
        engine = _engine(url)
        try:
            with engine.connect() as connection:
                if engine.dialect.name == "sqlite":
                    # In the file's own journal mode: SQLite never waits for a lock to change it.
                    connection.exec_driver_sql("PRAGMA busy_timeout=30000")
                    connection.connection.driver_connection.isolation_level = None  # type: ignore[union-attr]
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    connection.execute(
                        text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY}
                    )
                config.attributes["connection"] = connection
                command.upgrade(config, revision)
                connection.commit()
        finally:
            engine.dispose()


def _engine(url: str) -> Engine:
    # Statements that are prepared would be met again in another session, behind a pooler.
    sqlite = make_url(url).get_backend_name() == "sqlite"
    return create_engine(url, connect_args={} if sqlite else {"prepare_threshold": None})


def current(url: str) -> str | None:
    """Return the revision of the database at `url`; None when it has none."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()
