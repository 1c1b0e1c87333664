"""Book each moment of a device from one reader: cut from a delivery what another reader booked.

A device has two readers when a node was renamed while its old agent still runs, or when an agent
runs beside a daemon that samples by itself. The journal takes one of them (node_devices.py). The
other keeps what it read, and delivers it once the device is its own. Invariant: no joules are added
for a moment of a device that another reader has booked already, as read or as unobserved.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import BindParameter, Connection, bindparam, select, union_all

from wattmesh.controller.journal.database.tables import COUNTERS, COVERAGE, NODE_COUNTERS
from wattmesh.controller.journal.database.values import from_us, to_us
from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.ledger import EnergyRow, Span, share
from wattmesh.telemetry.energy.unobserved import MILLISECOND, without

Spans = Mapping[str, Sequence[tuple[int, int]]]
"""Half-open spans by device, in microseconds since 1970."""

_NAMES: BindParameter[str] = bindparam("names", expanding=True)
_COVERED = select(COVERAGE).where(COVERAGE.c.gpu_uuid.in_(_NAMES)).order_by(COVERAGE.c.from_at)
_COUNTED = select(NODE_COUNTERS.c.gpu_uuid, NODE_COUNTERS.c.since_us, NODE_COUNTERS.c.at).where(
    NODE_COUNTERS.c.gpu_uuid.in_(_NAMES)
)
_MINE = _COUNTED.where(NODE_COUNTERS.c.node == bindparam("which"))
_OTHERS = union_all(
    select(COUNTERS.c.gpu_uuid, COUNTERS.c.since_us, COUNTERS.c.at).where(
        COUNTERS.c.gpu_uuid.in_(_NAMES)
    ),
    _COUNTED.where(NODE_COUNTERS.c.node != bindparam("which")),
)


def once(
    connection: Connection, node: str, batch: EnergyBatch, rows: Sequence[EnergyRow]
) -> Sequence[EnergyRow]:
    """Return a node's changes without the time that others have booked: `rows` if there is none.

    Args:
        connection: of the transaction that adds them.
        node: whose changes they are.
        batch: the delivery that they came with.
        rows: its changes, laid over our slots.
    """
    covered = _booked_time(connection, {row.gpu_uuid for row in rows})
    since_us = {each.gpu_uuid: each.since_us for each in batch.baselines}
    doubtful = {
        row.gpu_uuid
        for row in rows
        for begin_us, until_us in covered.get(row.gpu_uuid, ())
        if begin_us != since_us.get(row.gpu_uuid)
        and begin_us < to_us(row.slot_end)
        and until_us > to_us(row.slot_start)
    }
    if not doubtful:
        return rows
    theirs = _theirs(connection, node, doubtful, covered)
    delivered = _delivered(connection, node, doubtful)
    found = list[EnergyRow]()
    for row in rows:
        gpu = row.gpu_uuid
        if gpu in theirs:
            begun = from_us(max(since_us.get(gpu, 0), delivered.get(gpu, 0)))
            found += _outside(row, _window(row, begun, batch.at), theirs[gpu])
        else:
            found.append(row)
    return found


def _booked_time(connection: Connection, devices: Iterable[str]) -> Spans:
    found = defaultdict[str, list[tuple[int, int]]](list)
    for row in connection.execute(_COVERED, {"names": sorted(devices)}):
        found[row.gpu_uuid].append((row.from_at, row.until_at))
    return found


def _theirs(
    connection: Connection, node: str, devices: Iterable[str], covered: Spans
) -> Mapping[str, Sequence[Span]]:
    """Return the time of devices that other nodes, or our own sampler, booked.

    It is read from their newest counters, which stay when a node is retired. A counter that does
    not say since when it is booked counts from the first covered moment.
    """
    found = defaultdict[str, list[Span]](list)
    for row in connection.execute(_OTHERS, {"names": sorted(devices), "which": node}):
        since_us = row.since_us or covered[row.gpu_uuid][0][0]
        if since_us < row.at:
            found[row.gpu_uuid].append((from_us(since_us), from_us(row.at)))
    return found


def _delivered(connection: Connection, node: str, devices: Iterable[str]) -> Mapping[str, int]:
    """Give up to when a node has delivered each device, in microseconds since 1970."""
    found = connection.execute(_MINE, {"names": sorted(devices), "which": node})
    return {row.gpu_uuid: row.at for row in found}


def _window(row: EnergyRow, begun: datetime, until: datetime) -> Span:
    """Return the time that a change covers: the part of its slot not delivered before.

    A change that was refused before comes late and may be of any part of its slot: then it covers
    the whole slot.
    """
    window = (max(row.slot_start, begun), min(row.slot_end, until))
    return window if window[0] < window[1] else (row.slot_start, row.slot_end)


def _outside(row: EnergyRow, window: Span, theirs: Sequence[Span]) -> Sequence[EnergyRow]:
    """Give the share of a change that lies outside the time of others; nothing if none does.

    When only a part lies outside, the joules of the rest are added to `upper_mj`.
    """
    mine_ms = sum((end - start) // MILLISECOND for start, end in without(window, theirs))
    weights = ((window[1] - window[0]) // MILLISECOND - mine_ms, mine_ms)
    if not weights[0]:
        return (row,)
    if not mine_ms:
        return ()
    theirs_mj, energy_mj = share(row.energy_mj or 0, weights)
    cut = replace(
        row,
        energy_mj=None if row.energy_mj is None else energy_mj,
        unobserved_ms=share(row.unobserved_ms, weights)[1],
        upper_mj=row.upper_mj + theirs_mj,
    )
    return (cut,)
