"""The placement of a job's experts: what a build must hold, what an order changes.

Invariant: a rank trains with a placement only if its own `build` says that it routes by it; the
digest and the probe prove the rest, as of any switch.
"""

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import placement as placements
from wattmesh.reconfig.client.orders import ExpertsStanding
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire import Order


def check(state: State, generation: Generation) -> None:
    """Compare what `build` made with the placement that it was asked for.

    Raises:
        InputInvalid: it placed experts otherwise, or not at all.
    """
    found = state.experts
    if found is None:
        if generation.placement:
            raise InputInvalid(
                "build: the experts of this run are placed in an order of their own, and build "
                "declares no stacks of experts; set State.experts."
            )
        return
    told = placements.problem(found.placement, layers=found.layers, experts=found.experts)
    if told:
        raise InputInvalid(f"build: State.experts.placement cannot be: {told}.")
    if placements.settled(found.placement) != generation.placement:
        raise InputInvalid(
            "build: it placed the experts otherwise than Ranks.placement asked; give that "
            "placement to the model and to State.experts."
        )


def standing(state: State, *, own_save: bool) -> ExpertsStanding | None:
    """Return what may be placed; None for a job that did not declare it.

    `own_save`: whether the job's own checkpointer writes, which stores rows as they lie.
    """
    found = state.experts
    if found is None or own_save:
        return None
    return ExpertsStanding(
        layers=found.layers, experts=found.experts, placement=placements.settled(found.placement)
    )


def after(order: Order, generation: Generation) -> Placement:
    """Return where experts lie once an order is carried out."""
    return placements.settled(order.placement) if order.placement else generation.placement


def shown(order: Order, generation: Generation) -> str:
    """Name what an order goes to, for people."""
    moved = placements.moved(generation.placement, after(order, generation))
    return f"{order.layout} with {moved} experts placed anew" if moved else str(order.layout)
