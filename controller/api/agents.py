"""What a node's agent brings and asks: readings, what is wished for its GPUs, whose they are.

Invariant: an answer of success means the journal has the delivery, once. What is wished is only
told while it is fresh: a daemon whose journal is gone says nothing, and economy leases run out.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wattmesh.controller import clocks
from wattmesh.controller.api.calls import failure, read_call, success
from wattmesh.controller.api.deliveries import read_delivery
from wattmesh.controller.api.desk import Call, Conflict, Desk, NotFound
from wattmesh.controller.api.waits import Waits
from wattmesh.controller.fleet import Snapshot, holders
from wattmesh.controller.views import Done
from wattmesh.errors import InputInvalid, RetryLater
from wattmesh.reconfig.ranges import NODE
from wattmesh.telemetry.delivery import Report
from wattmesh.telemetry.ledger import EnergyRow, SlotGrid, share
from wattmesh.telemetry.readings import SPREAD, merged_quality

LONGEST_WAIT_S = 60.0

OLDEST_SNAPSHOT_S = 15.0
"""What the cycle saw longer ago than this, and than three of its turns, is not told any more."""


def readings(desk: Desk, call: Call) -> dict[str, Any]:
    """Take a delivery of a node's agent; one that comes again is acknowledged without effect."""
    call.as_agent(desk)
    desk.lead()
    node, source = call.path["node"], desk.pulse.settings.power.source
    if source != "agents":
        raise Conflict(
            f'This daemon\'s power.source is "{source}"; set it to "agents" and restart it, so '
            "that no GPU is read twice."
        )
    NODE.read(node, "the node in the address")
    try:
        report = read_delivery(call.body, desk.now, desk.grid())
        applied = _deliver(desk, node, report)
    except InputInvalid as error:
        if not _taken(desk, node, call.body):
            desk.pulse.node_faults.note(node, str(error))
            raise
        return {"ok": True, "applied": False}
    desk.pulse.node_faults.clear(node)
    answer: dict[str, Any] = {"ok": True, "applied": applied}
    if report.fresh:
        answer["baselines"] = [asdict(each) for each in desk.journal.nodes.baselines(node)]
    return answer


def _deliver(desk: Desk, node: str, report: Report) -> bool:
    """Take a delivery into the journal; where its rows are refused, at least how the node is.

    Raises:
        InputInvalid: the rows are refused, and none of them was counted.
    """
    batch = report.batch
    if batch is not None and batch.node != node:
        raise InputInvalid(f"the address names node {node!r}, the batch names {batch.node!r}")
    slots = desk.journal.ledger_slots.on(desk.grid(), desk.now)
    rows = laid(batch.rows, slots, batch.at) if batch else []
    try:
        return desk.journal.nodes.deliver(node, report, rows, desk.now)
    except InputInvalid:
        if batch is not None:
            desk.journal.nodes.deliver(node, replace(report, batch=None), (), desk.now)
        raise


def _taken(desk: Desk, node: str, body: Mapping[str, Any]) -> bool:
    """Say whether a batch that is refused now was taken in before, by whoever led us then.

    A refusal means that it was never counted: the agent delivers what it holds anew.
    """
    batch = body.get("batch")
    if not isinstance(batch, Mapping) or batch.get("node") != node:
        return False
    boot_id, seq = batch.get("boot_id"), batch.get("seq")
    if not isinstance(boot_id, str) or "\0" in boot_id or not isinstance(seq, int):
        return False
    return desk.journal.nodes.taken(node, boot_id, seq)


def desired(desk: Desk, call: Call) -> dict[str, Any]:
    """Tell what is wished for a node's GPUs, who may own their processes, and where slots end."""
    call.as_agent(desk)
    epoch = desk.lead()
    return _answer(desk, call.path["node"], _fresh(desk), epoch)


def retire(desk: Desk, call: Call) -> Done:
    """Expect nothing of a node any more, until it reports again."""
    call.as_operator(desk, "retire a node")
    node = call.path["node"]
    if not desk.journal.nodes.retire(node, desk.now):
        raise NotFound(f"There is no node {node!r} that is expected.")
    desk.pulse.node_faults.clear(node)
    desk.wake()
    return Done(done=f"{node} is retired; its GPUs count for no coverage.", changed=(node,))


def laid(rows: Iterable[EnergyRow], grid: SlotGrid, until: datetime) -> list[EnergyRow]:
    """Lay changes over our own slots, in proportion to time; the sums stay whole.

    What one of them gets of a longer row is no measurement of that slot, and marked as such.

    Args:
        rows: changes of a node's slots, which may be longer, or begin elsewhere.
        grid: our slots.
        until: no joule of them was drawn later.
    """
    found: list[EnergyRow] = []
    for row in rows:
        slot = grid.slot(row.slot_start)
        if slot[1] >= row.slot_end:
            found.append(replace(row, slot_start=slot[0], slot_end=slot[1]))
        else:
            found += _split(row, grid, until)
    return found


def _split(row: EnergyRow, grid: SlotGrid, until: datetime) -> list[EnergyRow]:
    """Split one change over the slots it lies in."""
    end = row.slot_end if row.slot_end <= until else max(until, row.slot_start)
    parts = list(grid.parts(row.slot_start, end))
    weights = [int((to - at).total_seconds() * 1e6) for at, to in parts]
    amounts = zip(
        parts,
        share(row.energy_mj or 0, weights),
        share(row.unobserved_ms, weights),
        share(row.upper_mj, weights),
        strict=True,
    )
    made = []
    for (at, _), energy_mj, unobserved_ms, upper_mj in amounts:
        slot_start, slot_end = grid.slot(at)
        made.append(
            replace(
                row,
                slot_start=slot_start,
                slot_end=slot_end,
                energy_mj=None if row.energy_mj is None else energy_mj,
                unobserved_ms=unobserved_ms,
                upper_mj=upper_mj,
                quality=merged_quality((row.quality, SPREAD)) if len(parts) > 1 else row.quality,
            )
        )
    return made


class WishBoard:
    """Answers the long-polling call from what the newest cycle saw; holds no thread."""

    def __init__(self, desk: Desk, waits: Waits) -> None:
        """Take the desk, and who counts whoever waits."""
        self._desk = desk
        self._waits = waits

    async def answer(self, request: Request) -> Response:
        """Serve the call."""
        try:
            call = await read_call(request)
            call.as_agent(self._desk)
            wait_s = call.number("wait", default=0.0, lowest=0.0, highest=LONGEST_WAIT_S)
            with self._waits.place(call):
                return success(await self._newest(call, wait_s))
        except Exception as error:
            return failure(error, request.url.path)

    async def _newest(self, call: Call, wait_s: float) -> dict[str, Any]:
        """Wait up to `wait_s` for something that the caller does not know; give what there is."""
        desk, bell = self._desk, self._desk.bell
        until_s = time.monotonic() + wait_s
        while True:
            rings = bell.rings
            found = desired(desk, call)
            left_s = until_s - time.monotonic()
            if left_s <= 0 or found["serial"] != call.query.get("serial", ""):
                return found
            if not await bell.heard_after(rings, left_s):
                # Said again only after a look: who hears it renews its leases.
                return desired(desk, call)
            if bell.closed:
                raise RetryLater("The daemon ends; ask again.")
            await asyncio.sleep(0)


def desired_endpoint(desk: Desk, waits: Waits) -> Callable[[Request], Awaitable[Response]]:
    """Make the long-polling endpoint."""
    return WishBoard(desk, waits).answer


def _fresh(desk: Desk) -> Snapshot:
    """Give what the newest cycle saw.

    Raises:
        RetryLater: it is too old to be told; leases run out meanwhile.
    """
    pulse, snapshot = desk.pulse, desk.pulse.snapshot
    if snapshot is None:
        raise RetryLater("The first control cycle has not ended yet; ask again.")
    age_s = pulse.clock.monotonic() - snapshot.monotonic_s
    if age_s > max(OLDEST_SNAPSHOT_S, 3 * pulse.settings.loops.cycle_s):
        raise RetryLater(
            f"The journal was last read {age_s:.0f} s ago, so nothing is wished for any GPU; "
            "obligations stand until their own end."
        )
    return snapshot


def _answer(desk: Desk, node: str, snapshot: Snapshot, epoch: int) -> dict[str, Any]:
    """Put together what one node is told."""
    row = snapshot.nodes.get(node)
    runs = snapshot.runs_on(row) if row else ()
    wishes = clocks.desired(
        node,
        row.devices if row else (),
        runs,
        epoch=epoch,
        mode=desk.pulse.settings.mode,
        frozen=snapshot.frozen,
        cap=snapshot.cap,
        journal=desk.pulse.journal,
    )
    here = row.devices if row else {}
    owners = [each.on(here) for each in holders(runs, desk.now, seen=True)]
    grid = desk.grid()
    more = {
        "known": row is not None,
        "holders": [each.to_json() for each in owners],
        "grid": {
            "origin": grid.origin,
            "interval_s": grid.interval_s,
            "timezone": grid.timezone,
        },
    }
    text = json.dumps([wishes.serial, more], default=str)
    serial = hashlib.sha256(text.encode()).hexdigest()[:16]
    return replace(wishes, serial=serial).to_json() | more
