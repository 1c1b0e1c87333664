"""Roll-up and retention: single slots become daily sums, and old detail goes.

Invariant: what `LedgerStore.totals` gives is the same before and after: a slot leaves its table in
the very transaction that adds it to the sums. Runs that are not finished keep every slot.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.sums import (
    AMOUNTS,
    DAY_US,
    KEY,
    emission_sums,
    energy_sums,
)
from wattmesh.controller.journal.tables import (
    CARBON_POINTS,
    DECISIONS,
    EMISSIONS,
    ENERGY,
    EVENTS,
    ROLLUPS,
    RUNS,
    TOKEN_MARKS,
    TRANSITIONS,
)
from wattmesh.controller.journal.values import to_us


class Retention:
    """Keeps the journal small without losing a joule or a gram of the sums."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def roll_up(self, before: datetime) -> int:
        """Sum up slots that ended before `before`, of finished runs and of nobody; count them."""
        with self._database.writing() as connection:
            unfinished = select(RUNS.c.run).where(RUNS.c.finished_at.is_(None))
            old = {
                table: (table.c.slot_end < to_us(before)) & table.c.run.not_in(unfinished)
                for table in (ENERGY, EMISSIONS)
            }
            _add(connection, energy_sums(old[ENERGY], _day(ENERGY)))
            _add(connection, emission_sums(old[EMISSIONS], _day(EMISSIONS)))
            return sum(
                connection.execute(delete(table).where(which)).rowcount
                for table, which in old.items()
            )

    def prune(self, before: datetime) -> int:
        """Delete detail older than `before` that no sum needs; count the rows."""
        limit = to_us(before)
        live = select(RUNS.c.run).where(RUNS.c.finished_at.is_(None))
        conditions = (
            (CARBON_POINTS, _unneeded_points(limit)),
            (DECISIONS, DECISIONS.c.last_at < limit),
            (TRANSITIONS, TRANSITIONS.c.at < limit),
            (EVENTS, EVENTS.c.at < limit),
            (
                TOKEN_MARKS,
                # A run's first mark says what it had trained before us; its saving needs that.
                (TOKEN_MARKS.c.at < limit)
                & (TOKEN_MARKS.c.slot_start > 0)
                & TOKEN_MARKS.c.run.not_in(live),
            ),
        )
        with self._database.writing() as connection:
            return sum(
                connection.execute(delete(table).where(condition)).rowcount
                for table, condition in conditions
            )


def _unneeded_points(limit: int) -> ColumnElement[bool]:
    """Name old observations from before every run that goes on.

    What no schedule could have beaten is reckoned at the end of a run, from its first hour on.
    """
    oldest = select(func.min(RUNS.c.registered_at)).where(RUNS.c.finished_at.is_(None))
    points = CARBON_POINTS.c
    before_all = points.end_at < func.coalesce(oldest.scalar_subquery(), limit)
    return and_(points.end_at < limit, before_all)


def _day(table: Table) -> ColumnElement[int]:
    """Give the UTC day of a slot as the moment it began."""
    return (table.c.slot_start // DAY_US * DAY_US).label("day")


def _add(connection: Connection, sums: Any) -> None:
    """Add sums by key and day to those of before."""
    sqlite = connection.dialect.name == "sqlite"
    statement = (sqlite_insert if sqlite else postgresql_insert)(ROLLUPS)
    key = (*KEY, "day")
    added = {name: ROLLUPS.c[name] + statement.excluded[name] for name in AMOUNTS}
    connection.execute(
        statement.from_select([*key, *AMOUNTS], sums).on_conflict_do_update(
            index_elements=key, set_=added
        )
    )
