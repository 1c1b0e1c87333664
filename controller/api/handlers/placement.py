"""`/v1/runs/{run}/placement`: where a run's experts lie, and placing them anew at a save step.

The placement is a switch in the layout that the run has, so it is an order like any: its row is
committed before the run can fetch it, and the run proves or takes back what it does. Invariant:
only a person asks for it, the deadline guard permits it, and the job may still say no.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from wattmesh.controller.api.handlers.operators import check_acted_on
from wattmesh.controller.api.request_context import Call, Conflict, RequestContext
from wattmesh.controller.cycle.act import OPERATOR, order_where_it_is, rebuilding
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import SwitchRow
from wattmesh.controller.views import Done, PlacedExperts
from wattmesh.errors import InputInvalid
from wattmesh.policies.rules.orders import placement_too_late
from wattmesh.policies.run_context import examine
from wattmesh.reconfig import placement as placements
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.experts import PlacementWish
from wattmesh.reconfig.wire.messages import SwitchMode

HISTORY = 1000
"""Switches of a run that are looked through."""


def placed(context: RequestContext, call: Call) -> PlacedExperts:
    """Say where a run's experts lie, as far as its confirmed orders say so."""
    row = context.run(call.path["run"], call.peer)
    return known_placement(row.attempt, context.journal.switches.history(row.run, HISTORY))


def known_placement(attempt: int, history: Sequence[SwitchRow]) -> PlacedExperts:
    """Conclude where experts lie in a launch. Pure.

    A placement stays in every later switch of its launch. A later launch begins from a checkpoint,
    which may be from before.

    Args:
        attempt: the launch's number.
        history: switches of the run, newest first.
    """
    newest = next(
        (each for each in history if each.order.placement and each.state is SwitchState.CONFIRMED),
        None,
    )
    if newest is None:
        return PlacedExperts(placement=(), known=True)
    launch = newest.attempt + int(newest.order.mode is SwitchMode.RESTART)
    if launch == attempt:
        return PlacedExperts(placement=newest.order.placement, known=True)
    why = (
        f"experts were placed in launch {launch}, and launch {attempt} may have begun from a "
        "checkpoint of before; `wattmesh experts place RUN --checkpoint-dir DIR` reads it there"
    )
    return PlacedExperts(placement=(), known=False, why=why)


def place(context: RequestContext, call: Call) -> Done:
    """Order one run to place its experts anew."""
    epoch = context.act()
    row = context.run(call.path["run"], call.peer)
    call.as_owner(context, row, "place the experts of")
    reason = call.text("reason")
    wish = PlacementWish.from_json({**call.body, "reason": reason})
    layers = len(wish.placement)
    experts = len(wish.placement[0]) if layers else 0
    problem = placements.problem(wish.placement, layers=layers, experts=experts)
    if not experts or problem:
        raise InputInvalid(f"This is no placement: {problem or 'it places no expert'}.")
    if row.observed:
        raise InputInvalid(
            f"{row.name} is only observed, so no expert of it can be placed; `wattmesh.attach` in "
            "its script lets it be moved"
        )
    if wish.gpus and wish.gpus != row.layout.ep:
        raise InputInvalid(
            f"That is a placement on {wish.gpus} GPUs, and {row.name} trains as {row.layout}, with "
            f"{row.layout.ep} ranks in an expert-parallel group; give a file with so many GPUs"
        )
    check_acted_on(context, row)
    _check_in_time(context, row)
    point = row.point.id if row.point is not None else ""
    why = (
        f"{experts} experts in each of {layers} layers are placed anew. Asked by "
        f"{call.who}: {reason}."
    )
    order = replace(
        order_where_it_is(row, point, rebuilding(row), why, epoch), placement=wish.placement
    )
    written = context.journal.switches.order(
        order,
        from_point=point,
        requested_by=OPERATOR,
        reason=order.reason,
        predicted_g=None,
        switch_cost_g=None,
        now=context.now,
    )
    if not written:
        raise Conflict(
            f"{row.name} has a switch under way; ask again when it has ended (`wattmesh status`)."
        )
    context.changes.ring()
    context.wake()
    every = f" (every {row.boundary_every} steps)" if row.boundary_every else ""
    return Done(
        done=(
            f"Ordered {row.name} to place its experts anew at a coming boundary{every}; follow it "
            "with `wattmesh status`."
        ),
        changed=(row.run,),
    )


def _check_in_time(context: RequestContext, row: RunRow) -> None:
    """Refuse a placement after which the deadline guard cannot keep the run's deadline.

    Raises:
        Conflict: it would be late, or no cycle has looked at the run yet.
    """
    if row.deadline is None:
        return
    turn = context.loop_facts.turned
    seen = turn.report.observation if turn is not None else None
    view = next((each for each in seen.runs if each.run == row.run), None) if seen else None
    if seen is None or view is None:
        raise Conflict(
            f"{row.name} has a deadline, and no cycle has looked at the run yet; ask again in a "
            "moment."
        )
    ago_s = context.loop_facts.clock.monotonic() - turn.monotonic_s if turn is not None else 0.0
    why = placement_too_late(examine(replace(seen, now=seen.now + timedelta(seconds=ago_s)), view))
    if why:
        raise Conflict(f"The experts of {row.name} are not placed anew, because {why}.")
