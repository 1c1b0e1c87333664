"""Which node a device belongs to: the one that reported it first, for as long as it sees it.

Invariant: only a device's own node can book its energy or report its state. A device is free again
when its node has not seen it for a day, or was retired: then it was moved or removed.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

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


class DeviceOwners:
    """Which nodes some devices belong to, read once in a delivery's transaction."""

    def __init__(self, connection: Connection, devices: Collection[str]) -> None:
        """Read the owners of `devices`; of no others can be asked."""
        self._connection = connection
        self._known: dict[str, tuple[str, int]] = {}
        self._read(devices)

    def elsewhere(self, node: str, devices: Collection[str], now: datetime) -> dict[str, str]:
        """Map those of these devices that belong to another node to that node."""
        free_us, found = to_us(now - FREE_AFTER), dict[str, str]()
        for name in devices:
            owner, seen_us = self._known.get(name, (node, 0))
            if owner != node and seen_us > free_us:
                found[name] = owner
        return found

    def bind(
        self, node: str, devices: Collection[str], seen: Collection[str], now: datetime
    ) -> None:
        """Assign free devices to a node, and record which of its devices it sees.

        Raises:
            InputInvalid: it would have more devices than a node can have; nothing is to be written.
        """
        new = False
        for name in devices:
            owner, seen_us = self._known.get(name, ("", 0))
            if owner == node and (name not in seen or seen_us > to_us(now - REFRESHED)):
                continue
            values = {"gpu_uuid": name, "node": node, "seen_at": to_us(now)}
            if owner:
                upsert(self._connection, NODE_DEVICES, [values])
            elif insert_new(self._connection, NODE_DEVICES, values):
                new = True
            else:  # another node was first, in a transaction beside this one
                self._read([name])
                continue
            self._known[name] = (node, to_us(now))
        if new:
            self._check_count(node, now)

    def _read(self, devices: Collection[str]) -> None:
        if devices:
            found = self._connection.execute(_DEVICES, {"names": sorted(devices)})
            self._known.update((row.gpu_uuid, (row.node, row.seen_at)) for row in found)

    def _check_count(self, node: str, now: datetime) -> None:
        lately = NODE_DEVICES.c.seen_at > to_us(now - FREE_AFTER)
        many = self._connection.execute(
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
