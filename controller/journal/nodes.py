"""Nodes and what their agents deliver: readings counted once, newest facts, counters to go on from.

Invariant: a batch's changes are added in the transaction that moves the watermark of its
(node, boot_id); one that comes again finds the watermark there and adds nothing.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, case, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from wattmesh.controller.journal.engine import Database
from wattmesh.controller.journal.tables import DELIVERIES, ENERGY, NODE_COUNTERS, NODES
from wattmesh.controller.journal.values import (
    columns,
    from_us,
    insert_new,
    to_text,
    to_us,
    upsert,
)
from wattmesh.telemetry.delivery import Batch, Report
from wattmesh.telemetry.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import Quality

REMOVED = timedelta(days=1)
"""A device that its node has not seen for so long was taken out (as the sampler reckons too)."""

_NODE = select(NODES).where(NODES.c.node == bindparam("which")).with_for_update()
_WATERMARK = select(DELIVERIES.c.seq).where(
    DELIVERIES.c.node == bindparam("which"), DELIVERIES.c.boot_id == bindparam("boot")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node as its agent last reported.

    Attributes:
        devices: newest facts of every device, by name; each has `at`, the time of its reading.
        facts: what else the agent told: version, `applied` (the actuator's answer), ...
    """

    node: str
    boot_id: str
    last_seen_at: datetime
    devices: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]


class NodeStore:
    """The tables of nodes, and the energy that they deliver."""

    def __init__(self, database: Database, added: Callable[[Iterable[int]], None]) -> None:
        """Keep the database; `added` hears of the slots that a delivery added to."""
        self._database = database
        self._added = added

    def deliver(self, node: str, report: Report, rows: Sequence[EnergyRow], now: datetime) -> bool:
        """Take a delivery in, whole.

        Args:
            node: who delivers.
            report: what came.
            rows: the changes of its batch, laid over our own slots.
            now: the wall clock.

        Returns:
            False when the batch was taken in before: then only the newest facts were.
        """
        batch = report.batch
        values = [_values(row) for row in _merged(rows)]
        with self._database.writing() as connection:
            known = _held(connection, node, now)
            new = batch is not None and _moved(connection, batch, now)
            if batch is not None and new:
                _add(connection, values)
                _count(connection, node, batch)
            _remember(connection, node, report, known, now)
        if new:
            self._added(value["slot_start"] for value in values)
        return new

    def baselines(self, node: str) -> tuple[CounterBaseline, ...]:
        """Give the counters up to which everything of a node is delivered."""
        query = select(*(NODE_COUNTERS.c[name] for name in _COUNTER))
        with self._database.reading() as connection:
            found = connection.execute(query.where(NODE_COUNTERS.c.node == node)).all()
        return tuple(CounterBaseline(**{**row._mapping, "at": from_us(row.at)}) for row in found)

    def all(self) -> tuple[NodeRow, ...]:
        """List every node that was not retired."""
        query = select(NODES).where(NODES.c.retired_at.is_(None)).order_by(NODES.c.node)
        with self._database.reading() as connection:
            return tuple(map(_row, connection.execute(query)))

    def find(self, node: str) -> NodeRow | None:
        """Find a node that was not retired."""
        query = select(NODES).where(NODES.c.node == node, NODES.c.retired_at.is_(None))
        with self._database.reading() as connection:
            row = connection.execute(query).one_or_none()
        return _row(row) if row else None

    def retire(self, node: str, now: datetime) -> bool:
        """Expect nothing of a node any more, until it reports again; False if it is not known."""
        known = (NODES.c.node == node) & NODES.c.retired_at.is_(None)
        with self._database.writing() as connection:
            done = connection.execute(update(NODES).where(known).values(retired_at=to_us(now)))
            return bool(done.rowcount)


_COUNTER = tuple(CounterBaseline.__dataclass_fields__)


def _row(row: Row[Any]) -> NodeRow:
    return NodeRow(
        node=row.node,
        boot_id=row.boot_id,
        last_seen_at=from_us(row.last_seen_at),
        devices=json.loads(row.devices),
        facts=json.loads(row.facts),
    )


def _held(connection: Connection, node: str, now: datetime) -> Row[Any]:
    """Hold a node's row for this transaction, so that no two deliveries of it cross."""
    known = connection.execute(_NODE, {"which": node}).one_or_none()
    if known is None:
        empty = {"boot_id": "", "devices": "{}", "facts": "{}", "retired_at": None}
        insert_new(connection, NODES, {"node": node, "last_seen_at": to_us(now), **empty})
        known = connection.execute(_NODE, {"which": node}).one()
    return known


def _moved(connection: Connection, batch: Batch, now: datetime) -> bool:
    """Move the watermark to this batch; False when it stands there or beyond already."""
    keys = {"which": batch.node, "boot": batch.boot_id}
    newest = connection.execute(_WATERMARK, keys).scalar()
    if newest is not None and batch.seq <= newest:
        return False
    upsert(
        connection,
        DELIVERIES,
        [{"node": batch.node, "boot_id": batch.boot_id, "seq": batch.seq, "at": to_us(now)}],
    )
    return True


def _merged(rows: Iterable[EnergyRow]) -> list[EnergyRow]:
    """Join changes of one row: one statement must not touch a row twice (PostgreSQL refuses)."""
    found: dict[tuple[str, str, datetime, str], EnergyRow] = {}
    for row in rows:
        key = (row.gpu_uuid, row.run, row.slot_start, row.line)
        known = found.get(key)
        found[key] = _both(known, row) if known else row
    return list(found.values())


def _both(one: EnergyRow, other: EnergyRow) -> EnergyRow:
    """Join two changes of one row."""
    amounts = [each for each in (one.energy_mj, other.energy_mj) if each is not None]
    return replace(
        other,
        energy_mj=sum(amounts) if amounts else None,
        unobserved_ms=one.unobserved_ms + other.unobserved_ms,
        upper_mj=one.upper_mj + other.upper_mj,
    )


def _values(row: EnergyRow) -> dict[str, Any]:
    values = columns(row)
    return values | {"slot_start": to_us(row.slot_start), "slot_end": to_us(row.slot_end)}


def _add(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add changes to the rows that there are, or begin new ones."""
    if rows:
        connection.execute(_addition(connection.dialect.name), list(rows))


@cache
def _addition(dialect: str) -> Any:
    """Make the statement that adds a change to a row (once: that takes longer than to run it)."""
    statement = (sqlite_insert if dialect == "sqlite" else postgresql_insert)(ENERGY)
    old, new = ENERGY.c, statement.excluded
    either = [
        (or_(old.quality == weak, new.quality == weak), weak)
        for weak in (str(Quality.SIMULATED), str(Quality.ESTIMATED))
    ]
    total_mj = func.coalesce(old.energy_mj, 0) + func.coalesce(new.energy_mj, 0)
    unknown = and_(old.energy_mj.is_(None), new.energy_mj.is_(None))
    changed = {
        "energy_mj": case((unknown, None), else_=total_mj),
        "unobserved_ms": old.unobserved_ms + new.unobserved_ms,
        "upper_mj": old.upper_mj + new.upper_mj,
        "incarnation": new.incarnation,
        "source": new.source,
        "quality": case(*either, else_=new.quality),
    }
    key = [column.name for column in ENERGY.primary_key]
    return statement.on_conflict_do_update(index_elements=key, set_=changed)


def _count(connection: Connection, node: str, batch: Batch) -> None:
    """Keep the counters of a batch; devices whose rows are not all delivered have none to trust."""
    counted = {each.gpu_uuid for each in batch.baselines}
    open_still = {row.gpu_uuid for row in batch.rows} - counted
    if open_still:
        mine = (NODE_COUNTERS.c.node == node) & NODE_COUNTERS.c.gpu_uuid.in_(open_still)
        connection.execute(delete(NODE_COUNTERS).where(mine))
    counters = [{"node": node, **columns(each), "at": to_us(each.at)} for each in batch.baselines]
    upsert(connection, NODE_COUNTERS, counters)


def _remember(
    connection: Connection, node: str, report: Report, known: Row[Any], now: datetime
) -> None:
    """Keep the newest facts of a node; a device that does not answer keeps its old ones."""
    devices: dict[str, Any] = json.loads(known.devices)
    devices = {name: facts for name, facts in devices.items() if not _removed(facts, now)}
    devices |= report.devices
    for name in report.missing:
        devices.setdefault(name, {"at": now.isoformat(), "silent": True})
    boot_id = report.batch.boot_id if report.batch else str(report.facts.get("boot_id", ""))
    row = {
        "node": node,
        "boot_id": boot_id,
        "last_seen_at": to_us(now),
        "devices": to_text(devices),
        "facts": to_text(dict(report.facts)),
        "retired_at": None,
    }
    upsert(connection, NODES, [row])


def _removed(facts: Mapping[str, Any], now: datetime) -> bool:
    """Whether a device was silent so long that it was taken out, while its node reports."""
    return now - datetime.fromisoformat(str(facts["at"])) > REMOVED
