"""Which node a device belongs to: the one that reported it first, for as long as it sees it.

Invariant: only a device's own node can book its energy or report its state. A device is free again
when its node has not seen it for a day, or was retired: then it was moved or removed.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from wattmesh.controller.journal.database.tables import INCARNATIONS, NODE_DEVICES
from wattmesh.controller.journal.database.values import insert_new, to_us, upsert
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.ranges import MOST_METERS, shown
from wattmesh.telemetry.energy.ledger import EnergyRow

FREE_AFTER = timedelta(days=1)
"""A device that its node has not seen for so long was removed (the sampler uses the same limit)."""

REFRESHED = timedelta(hours=1)
"""How often it is recorded that a device was seen."""

_DEVICES = select(NODE_DEVICES).where(
    NODE_DEVICES.c.gpu_uuid.in_(bindparam("names", expanding=True))
)
_OWN = select(NODE_DEVICES.c.gpu_uuid).where(NODE_DEVICES.c.node == bindparam("which"))
_HELD = select(INCARNATIONS.c.run, INCARNATIONS.c.gpus, INCARNATIONS.c.allocated).where(
    INCARNATIONS.c.run.in_(bindparam("runs", expanding=True))
)


def elsewhere(
    connection: Connection, node: str, devices: Collection[str], now: datetime
) -> dict[str, str]:
    """Map those of these devices that belong to another node to that node."""
    return {
        row.gpu_uuid: row.node
        for row in _rows(connection, devices)
        if row.node != node and row.seen_at > to_us(now - FREE_AFTER)
    }


def bind(
    connection: Connection,
    node: str,
    devices: Collection[str],
    seen: Collection[str],
    now: datetime,
) -> None:
    """Assign free devices to a node, and record which of its devices it sees.

    Raises:
        InputInvalid: it would have more devices than a node can have; nothing is to be written.
    """
    known = {row.gpu_uuid: row for row in _rows(connection, devices)}
    for name in devices:
        row = known.get(name)
        mine = row is not None and row.node == node
        if mine and (name not in seen or known[name].seen_at > to_us(now - REFRESHED)):
            continue
        values = {"gpu_uuid": name, "node": node, "seen_at": to_us(now)}
        if row is None:
            insert_new(connection, NODE_DEVICES, values)
        else:
            upsert(connection, NODE_DEVICES, [values])
    if all(name in known for name in devices):
        return
    lately = NODE_DEVICES.c.seen_at > to_us(now - FREE_AFTER)
    many = connection.execute(
        select(func.count()).where(NODE_DEVICES.c.node == node, lately)
    ).scalar_one()
    if many > MOST_METERS:
        raise InputInvalid(too_many(node, many))


def too_many(node: str, many: int) -> str:
    """Say that no node has so many devices."""
    return (
        f"{node} has told of {many} devices within a day, and no node has more than {MOST_METERS}; "
        "see what its agent reads"
    )


def check_charged(connection: Connection, node: str, rows: Iterable[EnergyRow]) -> None:
    """Let a node charge only runs that had one of its devices.

    A run that this journal does not know (it was restored, or the run is long gone) may be charged.

    Raises:
        InputInvalid: all devices of a run are on other nodes.
    """
    runs = {row.run for row in rows if row.run}
    if not runs:
        return
    held: dict[str, set[str]] = {}
    for row in connection.execute(_HELD, {"runs": sorted(runs)}):
        held.setdefault(row.run, set()).update(json.loads(row.gpus), json.loads(row.allocated))
    own = set(connection.execute(_OWN, {"which": node}).scalars())
    for run, gpus in held.items():
        if not gpus & own:
            raise InputInvalid(
                f"run {shown(run)} never had a device of {node}, so {node} cannot charge it; see "
                "what its agent takes for that run"
            )


def left_out_sentence(strange: Mapping[str, str]) -> str:
    """Say which devices were left out, and what to do."""
    device, owner = next(iter(strange.items()))
    more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
    return (
        f"{shown(device)}{more} is reported as well, but belongs to {owner}: if it was moved, "
        f"retire {owner} (`wattmesh nodes retire {owner}`), or wait a day; if not, see who holds "
        "this node's token"
    )


def _rows(connection: Connection, devices: Collection[str]) -> Sequence[Any]:
    if not devices:
        return ()
    return connection.execute(_DEVICES, {"names": sorted(devices)}).all()
