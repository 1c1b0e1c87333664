"""The placement of a job's experts: what a build must hold, what an order changes.

Invariant: a rank trains with a placement only if its own `build` says that it routes by it; the
digest and the probe prove the rest, as of any switch.
"""

from torch import nn

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import placement as placements
from wattmesh.reconfig.client.orders import ExpertsStanding
from wattmesh.reconfig.launch.generation import Generation
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.state.names import canonical, parameters_of
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.messages import Order


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
    unknown = sorted(set(found.layer_of) - _own_names(state))
    if unknown:
        raise InputInvalid(
            f"build: State.experts.layer_of names {unknown[0]!r}, which is no parameter or buffer "
            "on this rank; use the names of the state dict, of this rank's parts."
        )
    outside = [each for each in found.layer_of.values() if not 0 <= each < found.layers]
    if outside:
        raise InputInvalid(
            f"build: State.experts.layer_of names layer {outside[0]} of {found.layers} layers of "
            "experts; they count from 0, those without experts left out."
        )
    told = placements.problem(found.placement, layers=found.layers, experts=found.experts)
    if told:
        raise InputInvalid(f"build: State.experts.placement cannot be: {told}.")
    if placements.settled(found.placement) != generation.placement:
        raise InputInvalid(
            "build: it placed the experts otherwise than Ranks.placement asked; give that "
            "placement to the model and to State.experts."
        )


def _own_names(state: State) -> set[str]:
    """Return the names, in state dicts, of what the parts of the model on this rank hold."""
    return {name for part in state.modules for name in (*parameters_of(part), *_buffers_of(part))}


def _buffers_of(part: nn.Module) -> set[str]:
    return {canonical(name) for name, _ in part.named_buffers()}


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
