"""What a training run reports: register, progress, transitions, finish.

Thin: read the wire type, let the journal decide (owner, fence, idempotence), wake waiting calls.
Invariant: only what the journal took for the first time is logged and wakes the cycle, so a repeat
has no effect. An answer of success means that the journal has the report; except for a heartbeat,
which is kept in memory (`controller.journal.liveness`) and answered even in an outage.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from wattmesh.controller.api.calls import failure, plain, receive, success
from wattmesh.controller.api.request_context import Call, NotFound, RequestContext
from wattmesh.controller.api.speaking import speaking
from wattmesh.controller.api.workers import Workers
from wattmesh.controller.journal.database.values import one_line
from wattmesh.controller.journal.runs.run_nodes import ANY, HERE
from wattmesh.controller.journal.runs.run_store import Forgotten, RunPlan
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.switch import FINAL, SwitchState
from wattmesh.reconfig.wire.messages import (
    OBSERVED,
    PROTOCOL,
    Finish,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Progress,
    Register,
    RunPhase,
    Transition,
)

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

SERVED = (PROTOCOL - 1, PROTOCOL)
"""Protocol versions that are served; the previous one too, because hooks run for weeks."""

HEARTBEAT_BYTES = 4096
"""A heartbeat has about 200 bytes; a larger body is parsed by a worker, to delay no other call."""

LOGGED = 300
"""Most characters of a run's own text in one line of the log."""


def register(context: RequestContext, call: Call) -> dict[str, Any]:
    """Register one launch of a run; the first one binds the run to its owner."""
    message = read_message(Register, call)
    if message.protocol not in SERVED:
        raise InputInvalid(
            f"This daemon speaks protocol {SERVED[0]} and {SERVED[1]}, the run speaks "
            f"{message.protocol}; it trains on unswitched until one of the two is upgraded."
        )
    epoch = context.act()
    with speaking(context, call, registers=True):
        answer, taken = context.journal.runs.register(
            message,
            owner_uid=call.peer.uid,
            now=context.now,
            epoch=epoch,
            plan=_plan(context, message),
            most=context.loop_facts.settings.api.runs_per_user,
            node=call.peer.node,
            doubted=context.loop_facts.trusted.held_s() > 0,
        )
    context.journal.runs.processes.see(message.run, call.peer.pid)
    if taken:
        log.info(
            "%s: incarnation %d registered at step %d by uid %d",
            message.name,
            message.attempt,
            message.step,
            call.peer.uid,
        )
        context.wake()
    mode = context.loop_facts.settings.mode
    every_s = context.journal.runs.liveness.heartbeat_s
    welcome: dict[str, Any] = replace(answer, mode=mode.value, heartbeat_s=every_s).to_json()
    return welcome


def _plan(context: RequestContext, message: Register) -> RunPlan:
    """Give what the settings say of a run; an observed run gets no catalogue and no baseline."""
    plan = context.plan_for(message.name)
    if OBSERVED in message.capabilities:
        return replace(plan, catalogue=None, baseline="")
    return plan


def heartbeat(context: RequestContext, call: Call) -> HeartbeatAnswer:
    """Note that a launch is alive, and its phase."""
    message = read_message(Heartbeat, call)
    context.lead()
    with known_run(context, message.run), speaking(context, call):
        context.journal.signs.hear(message, message.phase, owner_uid=call.peer.uid, now=context.now)
    context.journal.runs.processes.see(message.run, call.peer.pid)
    return HeartbeatAnswer(heartbeat_s=context.journal.runs.liveness.heartbeat_s)


def heartbeat_endpoint(
    context: RequestContext, workers: Workers
) -> Callable[[Request], Awaitable[Response]]:
    """Make the endpoint; it runs on the server's thread where memory says whose heartbeat it is."""

    async def answer(request: Request) -> Response:
        try:
            received = await receive(request)
            caller = received.caller(context)
            if received.content is None or len(received.content) > HEARTBEAT_BYTES:
                call = await workers.do(caller, received.call)
            else:
                call = received.call()
            message, uid = read_message(Heartbeat, call), call.peer.uid
            context.lead()
            if _remembered(context, call) and context.journal.signs.hear_again(
                message, message.phase, owner_uid=uid, now=context.now
            ):
                context.journal.runs.processes.see(message.run, call.peer.pid)
                return success(
                    HeartbeatAnswer(heartbeat_s=context.journal.runs.liveness.heartbeat_s)
                )
            return success(await workers.do(caller, partial(plain, context, heartbeat, call)))
        except Exception as error:
            return failure(error, request.url.path)

    return answer


def _remembered(context: RequestContext, call: Call) -> bool:
    """Say whether memory shows that a caller may report for a run; else ask the journal."""
    node = call.peer.node
    if node in (HERE, ANY):
        return True
    return (
        context.journal.run_nodes.remembered(call.path["run"], context.loop_facts.lead.epoch)
        == node
    )


def progress(context: RequestContext, call: Call) -> dict[str, Any]:
    """Take a report of the training's progress."""
    message = read_message(Progress, call)
    context.act()
    with known_run(context, message.run), speaking(context, call):
        context.journal.runs.progress(message, owner_uid=call.peer.uid, now=context.now)
    return {"ok": True}


def transition(context: RequestContext, call: Call) -> dict[str, Any]:
    """Take one state of a switch that the run reports; a repeat changes nothing."""
    message = read_message(Transition, call)
    context.act()
    with known_run(context, message.run), speaking(context, call):
        row, taken = context.journal.switches.record(
            message, owner_uid=call.peer.uid, now=context.now
        )
        phase = RunPhase.SWITCHING.value
        context.journal.signs.hear(message, phase, owner_uid=call.peer.uid, now=context.now)
    if taken and row.state in FINAL:
        log.log(
            logging.INFO if row.state is SwitchState.CONFIRMED else logging.WARNING,
            "%s: switch %s -> %s: %s at step %d, after %.1f s%s",
            _name(context, message.run),
            row.from_point,
            row.to_point,
            row.state.value.replace("_", " "),
            message.step,
            message.elapsed_s,
            f": {one_line(row.detail, LOGGED)}" if row.detail else "",
        )
        context.wake()
    return {"ok": True, "state": row.state.value}


def finish(context: RequestContext, call: Call) -> dict[str, Any]:
    """Note that a run, or one launch of it, has ended."""
    message = read_message(Finish, call)
    context.act()
    with known_run(context, message.run), speaking(context, call):
        taken = context.journal.runs.finish(message, owner_uid=call.peer.uid, now=context.now)
    if taken:
        reason = one_line(message.reason, LOGGED)
        name = _name(context, message.run)
        log.info("%s: incarnation %d ended: %s", name, message.attempt, reason)
        context.wake()
    return {"ok": True}


def _name(context: RequestContext, run: str) -> str:
    row = context.journal.runs.find(run, context.now)
    return row.name if row is not None else run


@contextmanager
def known_run(context: RequestContext, run: str) -> Iterator[None]:
    """Turn errors about an unknown run into NotFound, on which the run registers again.

    Raises:
        NotFound: this journal has never heard of the run (it was replaced, or restored).
    """
    try:
        yield
    except Forgotten as error:
        raise NotFound(f"{error}.") from error
    except InputInvalid:
        if context.journal.runs.find(run, context.now) is None:
            raise NotFound(f"There is no run {run!r}; register it first.") from None
        raise


def read_message(kind: type[M], call: Call) -> M:
    """Read a wire type whose run must be the one of the address.

    Raises:
        InputInvalid: a field is missing or wrong, or the two differ.
    """
    message = kind.from_json(call.body)
    run = getattr(message, "run", "")
    if run != call.path["run"]:
        raise InputInvalid(
            f"the address names run {call.path['run']!r}, the message names {run!r}; send the "
            "report to its own run"
        )
    return message
