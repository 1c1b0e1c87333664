"""Roll-up and retention: single slots become daily sums, and old detail is deleted.

Invariant: `LedgerStore.totals` gives the same before and after: a slot leaves its table in the very
transaction that adds it to the sums. Runs that are not closed keep every slot. A batch that was
counted is never counted again, though its watermark is deleted.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Table,
    and_,
    case,
    delete,
    func,
    literal,
    or_,
    select,
    true,
    update,
)

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.tables import (
    CARBON_POINTS,
    CLOSED_RUNS,
    DECISIONS,
    DELIVERIES,
    EMISSION_ROWS,
    EMISSIONS,
    ENERGY,
    EVENTS,
    INCARNATIONS,
    LEDGER_NAMES,
    NODES,
    ROLLUPS,
    RUNS,
    TOKEN_MARKS,
    TRANSITIONS,
)
from wattmesh.controller.journal.database.values import from_us, insert_into, to_us
from wattmesh.controller.journal.energy.changes import note
from wattmesh.controller.journal.energy.sums import AMOUNTS, KEY, emission_sums, energy_sums
from wattmesh.telemetry.slots import local_day


class Retention:
    """Keeps the journal small without losing a joule or a gram of the sums."""

    def __init__(self, database: Database) -> None:
        """Keep the database."""
        self._database = database

    def roll_up(self, before: datetime, timezone: str = "UTC") -> int:
        """Sum up slots that ended before `before`, of closed runs and of no run; count them.

        Args:
            before: newer slots are left alone.
            timezone: of the site. Sums are made per day of this zone, so that none spans two of its
                months.
        """
        with self._database.writing() as connection:
            old = {
                table: (table.c.slot_end < to_us(before)) & _over(table.c.run)
                for table in (ENERGY, EMISSIONS)
            }
            for start_us, end_us in _days(connection, old, to_us(before), timezone):
                which = {
                    table: condition & table.c.slot_start.between(start_us, end_us - 1)
                    for table, condition in old.items()
                }
                _add_sums(connection, energy_sums(which[ENERGY]), start_us)
                _add_sums(connection, emission_sums(which[EMISSIONS]), start_us)
            over = select(LEDGER_NAMES.c.id).where(_over(LEDGER_NAMES.c.name))
            rows = EMISSION_ROWS.c
            of_rows = (rows.slot_end < to_us(before)) & rows.run_id.in_(over)
            gone = sum(
                connection.execute(delete(table).where(which)).rowcount
                for table, which in ((ENERGY, old[ENERGY]), (EMISSION_ROWS, of_rows))
            )
            # Days that are rolled up are part of every sum, however far it reaches.
            note(connection, [0] if gone else [])
            return gone

    def prune(self, before: datetime) -> int:
        """Delete detail older than `before` that no sum needs; count the rows."""
        limit = to_us(before)
        closed = select(CLOSED_RUNS.c.run)
        conditions = (
            (CARBON_POINTS, _unneeded_points(limit)),
            (DECISIONS, DECISIONS.c.last_at < limit),
            (TRANSITIONS, TRANSITIONS.c.at < limit),
            (EVENTS, EVENTS.c.at < limit),
            (
                INCARNATIONS,
                # Until a run is closed, its launches tell which GPUs it had.
                (INCARNATIONS.c.ended_at < limit)
                & INCARNATIONS.c.run.in_(closed)
                & INCARNATIONS.c.incarnation.not_in(select(RUNS.c.incarnation)),
            ),
            (
                TOKEN_MARKS,
                # A run's first mark says what it had trained before us, which its saving needs. The
                # others are needed until it is closed: its baseline may be computed again.
                (TOKEN_MARKS.c.at < limit)
                & (TOKEN_MARKS.c.slot_start > 0)
                & TOKEN_MARKS.c.run.in_(closed),
            ),
        )
        with self._database.writing() as connection:
            pruned = sum(
                connection.execute(delete(table).where(condition)).rowcount
                for table, condition in conditions
            )
            return pruned + _forget_boots(connection, limit)


def _over(run: ColumnElement[str]) -> ColumnElement[bool]:
    """Match runs that are closed, and no run."""
    return or_(run == "", run.in_(select(CLOSED_RUNS.c.run)))


def _forget_boots(connection: Connection, limit: int) -> int:
    """Delete the watermarks of boots that ended long ago; count them.

    The newest boot of a node keeps its watermark, whatever its age: it recognises batches that are
    still in the node's outbox. For the others the node's floor is raised first (node_store.py).
    """
    table = DELIVERIES.c
    newest = select(table.node, func.max(table.at).label("at")).group_by(table.node).subquery()
    over = and_(table.node == newest.c.node, table.at < newest.c.at, table.at < limit)
    floors = connection.execute(
        select(table.node, func.max(table.at).label("at"))
        .join(newest, over)
        .group_by(table.node)
        .order_by(table.node)
    ).all()
    forgotten = 0
    for floor in floors:
        held = NODES.c.forgotten_at
        raised = case((func.coalesce(held, 0) > floor.at, held), else_=floor.at)
        which = NODES.c.node == floor.node
        connection.execute(update(NODES).where(which).values(forgotten_at=raised))
        old = (table.node == floor.node) & (table.at <= floor.at)
        forgotten += connection.execute(delete(DELIVERIES).where(old)).rowcount
    return forgotten


def _unneeded_points(limit: int) -> ColumnElement[bool]:
    """Match old observations from before every run that has not finished.

    At the end of a run, the bound that no schedule could have beaten is computed from its first
    hour.
    """
    oldest = select(func.min(RUNS.c.registered_at)).where(RUNS.c.finished_at.is_(None))
    points = CARBON_POINTS.c
    before_all = points.end_at < func.coalesce(oldest.scalar_subquery(), limit)
    return and_(points.end_at < limit, before_all)


def _days(
    connection: Connection,
    old: Mapping[Table, ColumnElement[bool]],
    before_us: int,
    timezone: str,
) -> Iterator[tuple[int, int]]:
    """Give the days of a zone, as (start, end), from that of the oldest slot to be summed up."""
    firsts = (
        connection.execute(select(func.min(table.c.slot_start)).where(which)).scalar()
        for table, which in old.items()
    )
    at_us = min((first for first in firsts if first is not None), default=before_us)
    while at_us < before_us:
        start, end = local_day(from_us(at_us), timezone)
        yield to_us(start), to_us(end)
        at_us = to_us(end)


def _add_sums(connection: Connection, sums: Any, day_us: int) -> None:
    statement = insert_into(ROLLUPS, connection.dialect.name)
    key = (*KEY, "day")
    added = {name: ROLLUPS.c[name] + statement.excluded[name] for name in AMOUNTS}
    # SQLite parses ON CONFLICT after a SELECT only when that has a WHERE.
    dated = select(sums.subquery(), literal(day_us, BigInteger)).where(true())
    connection.execute(
        statement.from_select([*KEY, *AMOUNTS, "day"], dated).on_conflict_do_update(
            index_elements=key, set_=added
        )
    )
