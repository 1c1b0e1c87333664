"""Connections to PostgreSQL through pgbouncer in transaction mode, as to a server.

There each transaction may run on another session, so what a session keeps is lost or another's:
settings of the connection, and prepared statements. Invariant: whichever way we are connected, a
transaction has our time limits and `synchronous_commit`. Imported where the journal is PostgreSQL.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import psycopg
from sqlalchemy import Connection, text

C = TypeVar("C", bound="psycopg.Connection[object]")

REFUSED = "unsupported startup parameter"
"""What pgbouncer says of `options`, unless its `ignore_startup_parameters` names them."""

MARK = "lock_timeout"
"""A setting that no server has as we ask for it, so it shows whether ours have come through."""


def connected(connect: Callable[[str], C], settings: Mapping[str, str]) -> C:
    """Connect with `settings` for the whole session; through a pooler that drops them, without.

    Args:
        connect: connects with the options that it is given, as libpq takes them.
        settings: what each transaction is to have.

    Raises:
        psycopg.OperationalError: nobody answers.
    """
    try:
        made = connect(" ".join(f"-c {name}={value}" for name, value in settings.items()))
    except psycopg.OperationalError as error:
        if REFUSED not in str(error):
            raise
        made = connect("")
    shown = made.execute(f"SHOW {MARK}".encode()).fetchone()
    made.rollback()
    if shown != (settings[MARK],):
        # A statement is prepared in one session, and would be run in another.
        made.prepare_threshold = None
    return made


def settle(connection: Connection, settings: Mapping[str, str]) -> None:
    """Give a transaction that begins the settings that its session may not have."""
    held = connection.connection.driver_connection
    if isinstance(held, psycopg.Connection) and held.prepare_threshold is None:
        local = ", ".join(f"set_config(:n{i}, :v{i}, true)" for i in range(len(settings)))
        values = {f"n{i}": name for i, name in enumerate(settings)}
        values |= {f"v{i}": value for i, value in enumerate(settings.values())}
        connection.execute(text(f"SELECT {local}"), values)
