"""Writes rows of grams: names and prices that many rows share are stored once, under a number.

Everybody reads the view `EMISSIONS`, in which they are spelt out again. Invariant: a row reads as
it was written; numbers are never told to anybody, nor used again for something else.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, bindparam, select, tuple_

from wattmesh.controller.journal.database.tables import (
    EMISSION_PRICES,
    EMISSION_ROWS,
    LEDGER_NAMES,
)
from wattmesh.controller.journal.database.values import insert_into, upsert

PRICE = ("signal", "stand_in", "quality", "energy_quality", "pue_milli", "model")
AT_ONCE = 100
"""Names or prices that one statement looks for: databases limit the parameters of a statement."""

Key = tuple[Any, ...]


def replace_emissions(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of the columns of `EMISSIONS`; one with the same key is replaced whole."""
    if not rows:
        return
    named = {(row[name],) for row in rows for name in ("run", "gpu_uuid")}
    names = _numbers(connection, LEDGER_NAMES, ("name",), named)
    priced = {tuple(row[name] for name in PRICE) for row in rows}
    prices = _numbers(connection, EMISSION_PRICES, PRICE, priced)
    numbers = [
        {
            "run_id": names[row["run"],],
            "gpu_id": names[row["gpu_uuid"],],
            "price_id": prices[tuple(row[name] for name in PRICE)],
        }
        for row in rows
    ]
    kept = [column.name for column in EMISSION_ROWS.columns if column.name not in numbers[0]]
    upsert(
        connection,
        EMISSION_ROWS,
        [
            {**number, **{name: row[name] for name in kept}}
            for row, number in zip(rows, numbers, strict=True)
        ],
    )


def numbered(column: ColumnElement[int], name: Any) -> ColumnElement[bool]:
    """Match rows of `EMISSION_ROWS` by the name of their run or device, or a parameter for it."""
    number = select(LEDGER_NAMES.c.id).where(LEDGER_NAMES.c.name == name)
    return column == number.scalar_subquery()


def _numbers(
    connection: Connection, table: Table, words: Sequence[str], wanted: Collection[Key]
) -> dict[Key, int]:
    """Give the number of each key; those that are new are stored first."""
    found = dict(_known(connection, table, words, wanted))
    new = sorted(wanted - found.keys())
    if new:
        statement = insert_into(table, connection.dialect.name).on_conflict_do_nothing()
        connection.execute(statement, [dict(zip(words, each, strict=True)) for each in new])
        found |= dict(_known(connection, table, words, new))
    return found


def _known(
    connection: Connection, table: Table, words: Sequence[str], wanted: Iterable[Key]
) -> Iterable[tuple[Key, int]]:
    ordered, query = sorted(wanted), _those_among(table, tuple(words))
    for first in range(0, len(ordered), AT_ONCE):
        some = ordered[first : first + AT_ONCE]
        values = [each[0] for each in some] if len(words) == 1 else some
        for row in connection.execute(query, {"keys": values}):
            yield tuple(row[1:]), int(row[0])


@cache
def _those_among(table: Table, words: tuple[str, ...]) -> Any:
    columns = [table.c[word] for word in words]
    key: Any = columns[0] if len(columns) == 1 else tuple_(*columns)
    return select(table.c.id, *columns).where(key.in_(bindparam("keys", expanding=True)))
