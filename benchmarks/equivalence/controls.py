"""What the negative controls of benchmarks.equivalence do to a state, on every rank of it.

Each is a fault that live resharding really has: torch raises for none of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from wattmesh.reconfig.state.boxes import box_of
from wattmesh.reconfig.state.state import State

Harm = Callable[[State, int], None]
"""(state, global rank)"""


class AfterLoad:
    """Extra state whose loading is the last thing that a load does: there harm can be done."""

    def __init__(self, act: Callable[[], None]) -> None:
        """Do `act` after a load."""
        self._act = act

    def state_dict(self) -> dict[str, Any]:
        """Have nothing."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Everything else has been loaded."""
        self._act()


def drop_moments(state: State, rank: int) -> None:
    """The optimizer begins anew, as a weights-only checkpoint makes it."""
    for slots in _slots(state):
        slots["exp_avg"].zero_()
        slots["exp_avg_sq"].zero_()


def count_on(state: State, rank: int) -> None:
    """The optimizer's count of steps is one too high: its bias correction is another."""
    for slots in _slots(state):
        slots["step"] += 1


def shift_data(state: State, rank: int) -> None:
    """One rank reads one sample further on than it should."""
    if rank == 1:
        share = state.parts.share
        state.parts.share = replace(share, offset=share.offset + 1)


def swap_experts(state: State, rank: int) -> None:
    """The first two experts of the first layer change places; the router does not know."""
    for name in ("gate", "up", "down"):
        _reorder(state, f"layers.0.feed_forward.experts.{name}", [1, 0])


def permute_heads(state: State, rank: int) -> None:
    """Heads of the first layer's queries change places, as a fused QKV cut by rows makes them."""
    parameter = _find(state, "layers.0.attention.query.weight")
    if parameter is not None:
        rows = parameter.shape[0] // 4
        order = [*range(rows, 2 * rows), *range(rows)]
        _reorder(state, "layers.0.attention.query.weight", order)


HARM: dict[str, Harm] = {
    "moments dropped": drop_moments,
    "step off by one": count_on,
    "one rank's data shifted": shift_data,
    "two experts swapped": swap_experts,
    "QKV permuted": permute_heads,
}


def _slots(state: State) -> list[dict[str, Tensor]]:
    return [slots for each in state.optimizers for slots in each.state.values()]


def _find(state: State, name: str) -> torch.nn.Parameter | None:
    for module in state.modules:
        found = dict(module.named_parameters()).get(name)
        if found is not None:
            return found
    return None


def _reorder(state: State, name: str, order: Sequence[int]) -> None:
    """Put the first rows of a parameter into another order, however it is sharded."""
    parameter = _find(state, name)
    if parameter is None:
        return
    with torch.no_grad():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter.clone()
        whole = torch.cat([whole[list(order)], whole[len(order) :]])
        box = box_of(name, parameter)
        if box is not None:
            ends = zip(box.offset, box.local.shape, strict=True)
            box.local.copy_(whole[tuple(slice(start, start + size) for start, size in ends)])
