"""Calls of a node's agent: deliver readings, ask what is wished for its GPUs and who owns them.

Invariant: an answer of success means that the journal has the delivery, once. A wish is only told
while it is fresh: a daemon whose journal is away tells none, and economy leases run out.
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

from wattmesh.controller.api.calls import failure, receive, success
from wattmesh.controller.api.handlers.deliveries import read_delivery
from wattmesh.controller.api.request_context import Call, Conflict, NotFound, RequestContext
from wattmesh.controller.api.waits import Waits
from wattmesh.controller.cycle import clocks
from wattmesh.controller.cycle.fleet import FleetSnapshot, holders
from wattmesh.controller.views import Done
from wattmesh.errors import InputInvalid, RetryLater
from wattmesh.reconfig.ranges import NODE
from wattmesh.telemetry.energy.delivery import Report
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid, share
from wattmesh.telemetry.readings import SPREAD, merged_quality

LONGEST_WAIT_S = 60.0

OLDEST_SNAPSHOT_S = 15.0
"""A snapshot older than this, and than three turns of the cycle, is not told any more."""


def readings(context: RequestContext, call: Call) -> dict[str, Any]:
    """Take a delivery of a node's agent; a repeated one is acknowledged and changes nothing."""
    call.as_agent(context)
    context.act()
    node, source = call.path["node"], context.loop_facts.settings.power.source
    if source != "agents":
        raise Conflict(
            f'This daemon\'s power.source is "{source}"; set it to "agents" and restart it, so '
            "that no GPU is read twice."
        )
    NODE.read(node, "the node in the address")
    try:
        report = read_delivery(call.body, context.now, context.grid())
        applied = _deliver(context, node, report)
    except InputInvalid as error:
        if not _taken(context, node, call.body):
            context.loop_facts.node_faults.note(node, str(error))
            raise
        return {"ok": True, "applied": False}
    context.loop_facts.node_faults.clear(node)
    answer: dict[str, Any] = {"ok": True, "applied": applied}
    if report.fresh:
        answer["baselines"] = [asdict(each) for each in context.journal.nodes.baselines(node)]
    return answer


def _deliver(context: RequestContext, node: str, report: Report) -> bool:
    """Write a delivery to the journal; where its rows are refused, at least the node's state.

    Raises:
        InputInvalid: the rows are refused, and none of them was counted.
    """
    batch = report.batch
    if batch is not None and batch.node != node:
        raise InputInvalid(f"the address names node {node!r}, the batch names {batch.node!r}")
    slots = context.journal.ledger_slots.on(context.grid(), context.now)
    rows = laid(batch.rows, slots, batch.at) if batch else []
    try:
        return context.journal.nodes.deliver(node, report, rows, context.now)
    except InputInvalid:
        if batch is not None:
            context.journal.nodes.deliver(node, replace(report, batch=None), (), context.now)
        raise


def _taken(context: RequestContext, node: str, body: Mapping[str, Any]) -> bool:
    """Say whether a batch that is refused now was taken before, by the leader of that time.

    A refusal means that a batch was never counted: the agent then delivers its rows again.
    """
    batch = body.get("batch")
    if not isinstance(batch, Mapping) or batch.get("node") != node:
        return False
    boot_id, seq = batch.get("boot_id"), batch.get("seq")
    if not isinstance(boot_id, str) or "\0" in boot_id or not isinstance(seq, int):
        return False
    return context.journal.nodes.taken(node, boot_id, seq)


def desired(context: RequestContext, call: Call) -> dict[str, Any]:
    """Give the clocks and caps for a node's GPUs, the owners of their processes, and slot ends."""
    call.as_agent(context)
    epoch = context.act()
    return _answer(context, call.path["node"], _fresh(context), epoch)


def retire(context: RequestContext, call: Call) -> Done:
    """Expect no reports from a node until it reports again."""
    call.as_operator(context, "retire a node")
    node = call.path["node"]
    if not context.journal.nodes.retire(node, context.now):
        raise NotFound(f"No node {node!r} is expected.")
    context.loop_facts.node_faults.clear(node)
    context.wake()
    return Done(done=f"{node} is retired; its GPUs count in no coverage.", changed=(node,))


def laid(rows: Iterable[EnergyRow], grid: SlotGrid, until: datetime) -> list[EnergyRow]:
    """Split changes over our own slots, in proportion to time; the sums do not change.

    The part of a longer row that one slot gets is not a measurement of that slot, and its quality
    says so.

    Args:
        rows: changes of a node's slots, which may be longer than ours, or begin elsewhere.
        grid: our slots.
        until: when the batch was made; no joule of it was drawn later.
    """
    found: list[EnergyRow] = []
    for row in rows:
        slot = grid.slot(row.slot_start)
        if slot[1] >= row.slot_end:
            found.append(replace(row, slot_start=slot[0], slot_end=slot[1]))
        else:
            found += _split_over_slots(row, grid, until)
    return found


def _split_over_slots(row: EnergyRow, grid: SlotGrid, until: datetime) -> list[EnergyRow]:
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
    """Answers the long-polling call from the newest cycle's snapshot; a wait holds no thread."""

    def __init__(self, context: RequestContext, waits: Waits) -> None:
        """Keep what handlers share, and what counts the waiting calls."""
        self._context = context
        self._waits = waits

    async def answer(self, request: Request) -> Response:
        """Serve the call."""
        try:
            call = (await receive(request)).call()
            call.as_agent(self._context)
            wait_s = call.number("wait", default=0.0, lowest=0.0, highest=LONGEST_WAIT_S)
            with self._waits.place(call):
                return success(await self._newest(call, wait_s))
        except Exception as error:
            return failure(error, request.url.path)

    async def _newest(self, call: Call, wait_s: float) -> dict[str, Any]:
        """Wait up to `wait_s` for a wish that the caller does not know; give the newest."""
        context, changes = self._context, self._context.changes
        until_s = time.monotonic() + wait_s
        while True:
            rings = changes.rings
            found = desired(context, call)
            left_s = until_s - time.monotonic()
            if left_s <= 0 or found["serial"] != call.query.get("serial", ""):
                return found
            if not await changes.heard_after(rings, left_s):
                # Read again before it is repeated: an agent that hears it renews its leases.
                return desired(context, call)
            if changes.closed:
                raise RetryLater("The daemon ends; ask again.")
            await asyncio.sleep(0)


def desired_endpoint(
    context: RequestContext, waits: Waits
) -> Callable[[Request], Awaitable[Response]]:
    """Make the long-polling endpoint."""
    return WishBoard(context, waits).answer


def _fresh(context: RequestContext) -> FleetSnapshot:
    """Give the newest cycle's snapshot.

    Raises:
        RetryLater: there is none, or it is too old to be told; leases run out meanwhile.
    """
    loop_facts, snapshot = context.loop_facts, context.loop_facts.snapshot
    if snapshot is None:
        raise RetryLater("The first control cycle has not ended yet; ask again.")
    age_s = loop_facts.clock.monotonic() - snapshot.monotonic_s
    if age_s > max(OLDEST_SNAPSHOT_S, 3 * loop_facts.settings.loops.cycle_s):
        raise RetryLater(
            f"The journal was last read {age_s:.0f} s ago, so no clock or cap is ordered "
            "for any GPU; operators' caps stay until they end."
        )
    return snapshot


def _answer(
    context: RequestContext, node: str, snapshot: FleetSnapshot, epoch: int
) -> dict[str, Any]:
    row = snapshot.nodes.get(node)
    runs = snapshot.runs_on(row) if row else ()
    wishes = clocks.desired(
        node,
        row.devices if row else (),
        runs,
        epoch=epoch,
        mode=context.loop_facts.settings.mode,
        frozen=snapshot.frozen,
        cap=snapshot.cap,
        journal=context.loop_facts.lead.journal,
    )
    here = row.devices if row else {}
    owners = [each.on(here) for each in holders(runs, context.now, seen=True)]
    grid = context.grid()
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
