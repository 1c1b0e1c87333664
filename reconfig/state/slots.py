"""The slots of an optimizer that was just built, made as a checkpoint of the same program has them.

torch makes them by a step with zero gradients, which costs a switch more than all its bytes do: the
step is planned anew for every mesh.

Invariant: made are exactly the slots that the checkpoint holds, or none; where a form is not known
for certain, torch's way stays.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from wattmesh.reconfig.state.memory import torch_dtype
from wattmesh.reconfig.state.names import parameters_of
from wattmesh.reconfig.state.shards import on_shard
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.index import PARAM, Entry
from wattmesh.reconfig.universal.index.names import EXTRA, is_average

_STEP = "step"
_VALUE = "optim.state."
"""Before a slot in trainer.json that is a plain number: torch's way makes such slots."""


def begin_slots(state: State, checkpoint: Checkpoint) -> None:
    """Give every optimizer that has not begun the slots of a checkpoint, with whatever in them.

    Call it only where the checkpoint was written by this very program: slots are not held against
    what the optimizer would have made.
    """
    slots = _slots_of(checkpoint)
    names = {
        parameter: name
        for module in state.modules
        for name, parameter in parameters_of(module).items()
    }
    for optimizer in state.optimizers:
        if not optimizer.state and slots.keys() >= set(names.values()):
            _begin_one(optimizer, names, slots)


def _slots_of(checkpoint: Checkpoint) -> dict[str, list[Entry]]:
    """The slots of every parameter in a checkpoint; {} where not all have a form that is known."""
    if any(key.startswith(_VALUE) for key in checkpoint.trainer.get("values", {})):
        return {}
    entries = checkpoint.index.entries
    slots: dict[str, list[Entry]] = {e.name: [] for e in entries if e.state == PARAM}
    for entry in entries:
        if entry.state in (PARAM, EXTRA) or is_average(entry.state):
            continue
        if entry.name not in slots:
            return {}  # a slot within a slot
        slots[entry.name].append(entry)
    return slots


def _begin_one(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.nn.Parameter, str],
    slots: dict[str, list[Entry]],
) -> None:
    made = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                return
            found = _made(parameter, group, slots[names[parameter]])
            if found is None:
                return
            if found:
                made[parameter] = found
    optimizer.state.update(made)


def _made(
    parameter: torch.Tensor, group: dict[str, Any], entries: Iterable[Entry]
) -> dict[str, torch.Tensor] | None:
    """One parameter's slots; None when one has a form that is not known."""
    found: dict[str, torch.Tensor] = {}
    for entry in entries:
        dtype = torch_dtype(entry.dtype)
        if entry.state == _STEP and entry.shape == ():
            # Where torch.optim keeps it: beside the parameter only if a kernel reads it there.
            beside = group.get("fused") or group.get("capturable")
            device = parameter.device if beside else torch.device("cpu")
            found[entry.state] = torch.zeros((), dtype=dtype, device=device)
        elif entry.shape == tuple(parameter.shape):
            found[entry.state] = on_shard(parameter, partial(torch.empty_like, dtype=dtype))
        else:
            return None
    return found
