"""Nodes and what their agents deliver: readings counted once, newest facts, newest counters.

Invariant: a batch's changes are added in the transaction that moves the watermark of its
(node, boot_id); a batch that comes again is not above the watermark and adds nothing. Where
watermarks of boots long over were deleted (retention.py), the node's floor (`forgotten_at`)
replaces them: of an unknown boot, no batch that was frozen up to the floor is added.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Row,
    Table,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    update,
)

from wattmesh.controller.journal.database.engine import Database
from wattmesh.controller.journal.database.identity import copied_until_us
from wattmesh.controller.journal.database.prepared import prepared
from wattmesh.controller.journal.database.read_once import once
from wattmesh.controller.journal.database.tables import (
    DELIVERIES,
    ENERGY,
    NODE_COUNTERS,
    NODE_DEVICES,
    NODES,
)
from wattmesh.controller.journal.database.values import (
    columns,
    from_us,
    insert_into,
    insert_new,
    to_text,
    to_us,
    upsert,
)
from wattmesh.controller.journal.energy.changes import note
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.controller.journal.nodes import node_devices
from wattmesh.controller.journal.nodes.node_devices import DeviceOwners
from wattmesh.controller.journal.nodes.node_facts import CHECKED, STRANGE, stored
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import HIGHEST_W, MOST_METERS
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import SPREAD, Quality, merged_quality

log = logging.getLogger(__name__)

REMOVED = node_devices.FREE_AFTER

TIMES_DARK = 1000
"""The most that unobserved time may exceed its slot: a clock stepped back repeats the slot."""

_NODE = select(NODES).where(NODES.c.node == bindparam("which")).with_for_update()
_WATERMARK = select(DELIVERIES.c.seq, DELIVERIES.c.at).where(
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
        """Keep the database; `added` is called with the slots that a delivery added to."""
        self._database = database
        self._added = added

    def deliver(self, node: str, report: Report, rows: Sequence[EnergyRow], now: datetime) -> bool:
        """Store a delivery, all or nothing.

        Args:
            node: who delivers.
            report: the delivery.
            rows: the changes of its batch, laid over our own slots.
            now: the wall clock.

        Returns:
            False when the batch was stored before: then only the newest facts were.

        Raises:
            InputInvalid: in the batch, a text is too long for its column, a device belongs to
                another node, a run was never here, or a sum exceeds what can be drawn. In the rest,
                it names more devices than a node can have. Nothing was stored.
        """
        batch, rows = report.batch, _merged(rows)
        values = [_values(row) for row in rows]
        if batch is not None:
            _fits(batch, values)
        with self._database.writing() as connection:
            known = _held(connection, node, now)
            told, booked = {*report.devices, *report.missing}, _booked(batch)
            owners = DeviceOwners(connection, told | booked)
            strange = owners.elsewhere(node, told, now)
            owners.bind(node, {*report.devices} - {*strange}, {*report.devices}, now)
            new = batch is not None and _moved(connection, batch, known.forgotten_at, now)
            if batch is not None and new:
                _check_own(owners, node, booked, now)
                node_devices.check_charged(connection, node, batch.rows)
                kept = once(connection, node, batch, rows)
                if kept is not rows:
                    values = [_values(row) for row in kept]
                _add_or_insert(connection, values)
                _check_sums(connection, values)
                _count(connection, node, batch, now)
            _remember(connection, node, _without_devices_of_others(report, strange), known, now)
            starts_us = [value["slot_start"] for value in values] if new else []
            note(connection, starts_us)
        self._added(starts_us)
        return new

    def taken(self, node: str, boot_id: str, seq: int) -> bool:
        """Return whether a batch of this number, or a later one of its boot, was stored."""
        with self._database.reading() as connection:
            newest = connection.execute(_WATERMARK, {"which": node, "boot": boot_id}).scalar()
        return newest is not None and seq <= newest

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

    def retire(self, node: str, now: datetime) -> bool:
        """Retire a node until it reports again; False if it is not known.

        Its devices may belong to another node from now on.
        """
        known = (NODES.c.node == node) & NODES.c.retired_at.is_(None)
        with self._database.writing() as connection:
            done = connection.execute(update(NODES).where(known).values(retired_at=to_us(now)))
            connection.execute(delete(NODE_DEVICES).where(NODE_DEVICES.c.node == node))
            return bool(done.rowcount)


_COUNTER = tuple(CounterBaseline.__dataclass_fields__)


def _row(row: Row[Any]) -> NodeRow:
    devices, facts = stored(row.devices, row.facts)
    return NodeRow(
        node=row.node,
        boot_id=row.boot_id,
        last_seen_at=from_us(row.last_seen_at),
        devices=devices,
        facts=facts,
    )


def _without_devices_of_others(report: Report, strange: Mapping[str, str]) -> Report:
    """Leave out devices of other nodes, and say so among the facts."""
    if not strange:
        return report
    return replace(
        report,
        devices={name: each for name, each in report.devices.items() if name not in strange},
        missing=tuple(name for name in report.missing if name not in strange),
        facts={**report.facts, STRANGE: node_devices.left_out_sentence(strange)},
    )


def _booked(batch: EnergyBatch | None) -> set[str]:
    """Name the devices that a batch has rows or counters of."""
    if batch is None:
        return set()
    return {row.gpu_uuid for row in batch.rows} | {each.gpu_uuid for each in batch.baselines}


def _check_own(owners: DeviceOwners, node: str, booked: set[str], now: datetime) -> None:
    """Let a node book only the energy of its own devices.

    Raises:
        InputInvalid: a device is another node's.
    """
    strange = owners.elsewhere(node, booked, now)
    if strange:
        raise InputInvalid(node_devices.left_out_sentence(strange))
    owners.bind(node, booked, (), now)


def _check_sums(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Check that no row holds more than its slot can: changes add up that are each believable.

    Raises:
        InputInvalid: one does; nothing is to be written.
    """
    if not rows:
        return
    starts = [row["slot_start"] for row in rows]
    devices = sorted({row["gpu_uuid"] for row in rows})
    booked = {"devices": devices, "first": min(starts), "last": max(starts)}
    found = connection.execute(*_too_much(**booked)).first()
    if found is not None:
        raise InputInvalid(
            f"{found.gpu_uuid}: a slot would hold {found.energy_mj} mJ and {found.unobserved_ms} "
            f"ms unobserved, more than {HIGHEST_W} W or than its time; see what its agent reads"
        )


@prepared
def _too_much(devices: Any, first: Any, last: Any) -> Any:
    """Select a row that holds more than its slot can, in slots that begin in [first, last]."""
    slot_us = ENERGY.c.slot_end - ENERGY.c.slot_start + 1_000_000
    return (
        select(ENERGY.c.gpu_uuid, ENERGY.c.energy_mj, ENERGY.c.unobserved_ms)
        .where(ENERGY.c.gpu_uuid.in_(devices))
        .where(ENERGY.c.slot_start.between(first, last))
        .where(
            or_(
                ENERGY.c.energy_mj * 1000 > HIGHEST_W * slot_us,
                func.abs(ENERGY.c.unobserved_ms) * 1000 > TIMES_DARK * slot_us,
                func.abs(ENERGY.c.upper_mj) * 1000 > TIMES_DARK * HIGHEST_W * slot_us,
            )
        )
        .limit(1)
    )


def _held(connection: Connection, node: str, now: datetime) -> Row[Any]:
    """Lock a node's row for this transaction, so that two deliveries of it cannot interleave."""
    known = connection.execute(_NODE, {"which": node}).one_or_none()
    if known is None:
        empty = {"boot_id": "", "devices": "{}", "facts": "{}", "retired_at": None}
        insert_new(connection, NODES, {"node": node, "last_seen_at": to_us(now), **empty})
        known = connection.execute(_NODE, {"which": node}).one()
    return known


def _moved(
    connection: Connection, batch: EnergyBatch, forgotten_us: int | None, now: datetime
) -> bool:
    """Move the watermark to this batch; False when it is there or beyond already."""
    keys = {"which": batch.node, "boot": batch.boot_id}
    newest = connection.execute(_WATERMARK, keys).one_or_none()
    frozen_us = to_us(batch.at)
    if newest is None and forgotten_us is not None and frozen_us <= forgotten_us:
        log.warning(
            "a batch of %s of %s is not counted: the deliveries of its boot are not kept, and this "
            "may be a repeat (is that node's clock right?)",
            batch.node,
            batch.at,
        )
        return False
    if newest is not None and batch.seq <= newest.seq:
        return False
    # Never before the batch's own time: the floor is computed from it.
    at_us = max(to_us(now), frozen_us, newest.at if newest else 0)
    row = {"node": batch.node, "boot_id": batch.boot_id, "seq": batch.seq, "at": at_us}
    upsert(connection, DELIVERIES, [row])
    return True


def _fits(batch: EnergyBatch, rows: Iterable[Mapping[str, Any]]) -> None:
    """Check that texts fit their columns: PostgreSQL would refuse such a delivery again and again.

    Raises:
        InputInvalid: one does not.
    """
    told = [(_BOOT, batch.boot_id)]
    told += [(each, row[each.name]) for row in rows for each in _texts(ENERGY)]
    told += [(each, getattr(one, each.name)) for one in batch.baselines for each in _DEVICE]
    for room, text in told:
        if len(text) > room.letters:
            raise InputInvalid(
                f"{room.name} has {len(text)} letters, at most {room.letters} fit: {text[:80]!r}"
            )
        if "\0" in text:
            raise InputInvalid(f"{room.name} has a zero byte in it: {text!r}")


class _Room(NamedTuple):
    """A column of text, and how many letters fit."""

    name: str
    letters: int


@cache
def _texts(table: Table) -> tuple[_Room, ...]:
    limits = ((each.name, getattr(each.type, "length", None)) for each in table.c)
    return tuple(_Room(name, letters) for name, letters in limits if letters)


(_BOOT,) = (each for each in _texts(DELIVERIES) if each.name == "boot_id")
_DEVICE = tuple(each for each in _texts(NODE_COUNTERS) if each.name != "node")


def _merged(rows: Iterable[EnergyRow]) -> list[EnergyRow]:
    """Join changes of one row: PostgreSQL refuses a statement that touches a row twice."""
    found: dict[tuple[str, str, datetime, str], EnergyRow] = {}
    for row in rows:
        key = (row.gpu_uuid, row.run, row.slot_start, row.line)
        known = found.get(key)
        found[key] = _both(known, row) if known else row
    return list(found.values())


def _both(one: EnergyRow, other: EnergyRow) -> EnergyRow:
    amounts = [each for each in (one.energy_mj, other.energy_mj) if each is not None]
    return replace(
        other,
        energy_mj=sum(amounts) if amounts else None,
        unobserved_ms=one.unobserved_ms + other.unobserved_ms,
        upper_mj=one.upper_mj + other.upper_mj,
        quality=merged_quality((one.quality, other.quality)),
    )


def _values(row: EnergyRow) -> dict[str, Any]:
    values = columns(row)
    return values | {"slot_start": to_us(row.slot_start), "slot_end": to_us(row.slot_end)}


def _add_or_insert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(_addition(connection.dialect.name), list(rows))


@cache
def _addition(dialect: str) -> Any:
    """Build the statement that adds a change to a row, once: building takes longer than running."""
    statement = insert_into(ENERGY, dialect)
    old, new = ENERGY.c, statement.excluded
    any_has = {
        word: or_(old.quality.contains(word), new.quality.contains(word))
        for word in (str(Quality.SIMULATED), SPREAD, str(Quality.ESTIMATED))
    }
    either = [
        (and_(*(any_has[word] for word in words)), merged_quality(words))
        for count in (3, 2, 1)
        for words in combinations(any_has, count)
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


def _count(connection: Connection, node: str, batch: EnergyBatch, now: datetime) -> None:
    """Store the counters of a batch; delete those of devices whose rows are not all delivered."""
    counted = {each.gpu_uuid for each in batch.baselines}
    open_still = {row.gpu_uuid for row in batch.rows} - counted
    if open_still:
        mine = (NODE_COUNTERS.c.node == node) & NODE_COUNTERS.c.gpu_uuid.in_(open_still)
        connection.execute(delete(NODE_COUNTERS).where(mine))
    counters = [{"node": node, **columns(each), "at": to_us(each.at)} for each in batch.baselines]
    upsert(connection, NODE_COUNTERS, counters)
    copied_us = copied_until_us(connection)
    extend(connection, batch.baselines, now_us=to_us(now), copied_us=copied_us)


def _remember(
    connection: Connection, node: str, report: Report, known: Row[Any], now: datetime
) -> None:
    """Store the newest facts of a node; a device that does not answer keeps its old ones."""
    devices: dict[str, Any] = stored(known.devices, known.facts)[0]
    devices = {name: facts for name, facts in devices.items() if not _removed(facts, now)}
    devices |= report.devices
    for name in report.missing:
        devices.setdefault(name, {"at": now.isoformat(), "silent": True})
    if len(devices) > MOST_METERS:
        raise InputInvalid(node_devices.too_many(node, len(devices)))
    boot_id = report.batch.boot_id if report.batch else str(report.facts.get("boot_id", ""))
    row = {
        "node": node,
        "boot_id": boot_id,
        "last_seen_at": to_us(now),
        "devices": to_text(devices),
        "facts": to_text({**report.facts, CHECKED: True}),
        "retired_at": None,
    }
    upsert(connection, NODES, [row])


def _removed(facts: Mapping[str, Any], now: datetime) -> bool:
    """Return whether a device was silent so long, while its node reports, that it was removed."""
    return now - datetime.fromisoformat(str(facts["at"])) > REMOVED
