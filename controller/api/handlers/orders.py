"""`GET /v1/runs/{run}/order?wait=`: the newest order of a run, or none.

A waiting call holds no thread: it sleeps until a signal says that orders may have changed. Until
such a signal, "none" is answered from memory. Invariant: an order is the journal's open switch row
and nothing else, read at that moment; while the journal does not answer, there is no order and the
run trains on.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from wattmesh.controller.api.calls import Received, failure, plain, receive, success
from wattmesh.controller.api.request_context import Call, NotFound, RequestContext
from wattmesh.controller.api.speaking import SpeaksElsewhere, check
from wattmesh.controller.api.waits import TooMany, Waits
from wattmesh.controller.api.workers import Crowded, Workers
from wattmesh.controller.journal.database import identity
from wattmesh.controller.journal.runs.run_nodes import ANY, HERE
from wattmesh.errors import RetryLater
from wattmesh.reconfig.wire.messages import SWITCH_ID_KEY, Orders

LONGEST_WAIT_S = 60.0
STANDBY_WAIT_S = 1.0
"""A standby hears no signal of the leader's: it looks into the journal this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrders:
    """What the journal said about one run. `owner_uid`: fixed at its first registration."""

    run: str
    name: str
    owner_uid: int
    orders: Orders


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOrder:
    """A run that had no order, as read after `rings` signals in one epoch."""

    rings: int
    found: RunOrders


def orders(context: RequestContext, call: Call) -> Orders:
    """Read the newest order of a run; only its owner and operators may."""
    found = find(context, call)
    call.as_owner(context, found, READ)
    return found.orders


READ = "read the orders of"


def find(context: RequestContext, call: Call) -> RunOrders:
    """Ask the journal; the caller's rights are not checked here.

    Raises:
        NotFound: there is no such run.
    """
    # A hook sends its run's id; another run of the same name is not meant.
    row = context.journal.runs.find(call.path["run"], context.now)
    if row is None:
        raise NotFound(f"There is no run {call.path['run']!r}; register it first.")
    switch = context.journal.switches.open(row.run)
    order = None
    if switch is not None:
        # From the journal: a standby answers too, and does not know whose epoch it is.
        order = replace(switch.order, journal=identity.read(context.journal.database).journal)
    return RunOrders(
        run=row.run,
        name=row.name,
        owner_uid=row.owner_uid,
        orders=Orders(
            order=order,
            epoch=context.loop_facts.lead.epoch or 0,
            frozen=bool(row.frozen or context.journal.runs.frozen_all()),
        ),
    )


class OrderBoard:
    """Answers the order call, remembering which runs have none."""

    def __init__(self, context: RequestContext, workers: Workers, waits: Waits) -> None:
        """Begin without any remembered run."""
        self._waits = waits
        self._context = context
        self._workers = workers
        self._quiet: dict[str, NoOrder] = {}

    async def answer(self, request: Request) -> Response:
        """Serve the long-polling call."""
        try:
            received = await receive(request)
            call = received.call()
            wait_s = call.number("wait", default=0.0, lowest=0.0, highest=LONGEST_WAIT_S)
            if call.peer.node not in (HERE, ANY):
                caller = received.caller(self._context)
                await self._workers.do(caller, partial(check, self._context, call))
            with self._waits.place(call):
                return success(self._stamped(await self._newest(received, call, wait_s)).to_json())
        except (TooMany, Crowded, SpeaksElsewhere) as error:
            return failure(error, request.url.path)
        except RetryLater:
            return success(
                self._stamped(Orders(epoch=self._context.loop_facts.lead.epoch or 0)).to_json()
            )
        except Exception as error:
            return failure(error, request.url.path)

    def _stamped(self, found: Orders) -> Orders:
        """Add the daemon's mode, as its settings are at this moment."""
        return replace(found, mode=self._context.loop_facts.settings.mode.value)

    async def _newest(self, received: Received, call: Call, wait_s: float) -> Orders:
        """Wait up to `wait_s` for an order that the caller does not know; give the newest."""
        changes, seen = self._context.changes, call.query.get(SWITCH_ID_KEY, "")
        until_s = time.monotonic() + wait_s
        while True:
            rings = changes.rings
            found = await self._look(received, call, rings)
            call.as_owner(self._context, found, READ)
            order, left_s = found.orders.order, until_s - time.monotonic()
            if left_s <= 0 or (order is not None and order.switch_id != seen):
                return found.orders
            leads = self._context.loop_facts.lead.epoch is not None
            patience_s = left_s if leads else min(left_s, STANDBY_WAIT_S)
            heard = await changes.heard_after(rings, patience_s)
            if changes.closed or not (heard or patience_s < left_s):
                return found.orders

    async def _look(self, received: Received, call: Call, rings: int) -> RunOrders:
        """Give a run's orders: from memory if it had none and no signal has come since."""
        name, epoch = call.path["run"], self._context.loop_facts.lead.epoch
        quiet = self._quiet.get(name)
        if quiet is not None and quiet.rings == rings and quiet.found.orders.epoch == epoch:
            return quiet.found
        caller = received.caller(self._context)
        found: RunOrders = await self._workers.do(caller, partial(plain, self._context, find, call))
        # A standby gets no signal of the leader's, so it reads the journal each time.
        if epoch is not None and found.orders.order is None:
            self._quiet[name] = NoOrder(rings=rings, found=found)
        else:
            self._quiet.pop(name, None)
        return found


def order_endpoint(
    context: RequestContext, workers: Workers, waits: Waits
) -> Callable[[Request], Awaitable[Response]]:
    """Make the long-polling endpoint."""
    return OrderBoard(context, workers, waits).answer
