"""Which days of the ledger were written: what sums that are kept of old slots depend on.

Invariant: every transaction that writes or deletes slots notes the first of their days. So whoever
reads `changes_before` first, and the slots after it, knows later whether they are still the same,
whichever process wrote them.
"""

from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from wattmesh.controller.journal.database.tables import LEDGER_CHANGES
from wattmesh.controller.journal.database.values import insert_into

DAY_US = timedelta(days=1) // timedelta(microseconds=1)

_BEFORE = select(func.coalesce(func.sum(LEDGER_CHANGES.c.changes), 0)).where(
    LEDGER_CHANGES.c.day < bindparam("end")
)


def note(connection: Connection, slot_starts_us: Iterable[int]) -> None:
    """Note that this transaction writes or deletes rows of these slots; the last thing it does."""
    first_us = min(slot_starts_us, default=None)
    if first_us is not None:
        # One row, and last: two transactions cannot wait for each other in a circle.
        row = {"day": first_us // DAY_US * DAY_US, "changes": 1}
        connection.execute(_counting(connection.dialect.name), row)


def changes_before(connection: Connection, end_us: int) -> int:
    """Count the changes of slots that begin before a moment, a multiple of `DAY_US` or earlier."""
    return int(connection.execute(_BEFORE, {"end": end_us}).scalar_one())


@cache
def _counting(dialect: str) -> Any:
    statement = insert_into(LEDGER_CHANGES, dialect)
    counted = {"changes": LEDGER_CHANGES.c.changes + 1}
    return statement.on_conflict_do_update(index_elements=["day"], set_=counted)
