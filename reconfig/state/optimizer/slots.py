"""Makes the slots of a new optimizer in the form of a checkpoint by the same program.

Torch makes them by a step with zero gradients, which takes a switch longer than all its bytes,
because the step's sharding is propagated again for every mesh.

Invariant: exactly the slots of the checkpoint are made, or none; if a form is not certainly known,
torch makes them.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from wattmesh.reconfig.state.memory import torch_dtype
from wattmesh.reconfig.state.names import parameters_of
from wattmesh.reconfig.state.optimizer.shards import on_shard
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.index import PARAM, TensorEntry
from wattmesh.reconfig.universal.index.names import EXTRA, is_average

_STEP = "step"
_VALUE = "optim.state."
"""Prefix of plain-number slots in trainer.json, which are left to torch."""


def begin_slots(state: State, checkpoint: Checkpoint) -> None:
    """Make the slots of a checkpoint, uninitialised, in every new optimizer.

    Call it only if this very program wrote the checkpoint: the slots are not compared with those
    that the optimizer would make.
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


def _slots_of(checkpoint: Checkpoint) -> dict[str, list[TensorEntry]]:
    """The slots of every parameter in a checkpoint; {} if some have an unknown form."""
    if any(key.startswith(_VALUE) for key in checkpoint.trainer.get("values", {})):
        return {}
    entries = checkpoint.index.entries
    slots: dict[str, list[TensorEntry]] = {e.name: [] for e in entries if e.state == PARAM}
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
    slots: dict[str, list[TensorEntry]],
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
    parameter: torch.Tensor, group: dict[str, Any], entries: Iterable[TensorEntry]
) -> dict[str, torch.Tensor] | None:
    """One parameter's slots; None if one has an unknown form."""
    found: dict[str, torch.Tensor] = {}
    for entry in entries:
        dtype = torch_dtype(entry.dtype)
        if entry.state == _STEP and entry.shape == ():
            # As in torch.optim: on the parameter's device only if a kernel reads it there.
            beside = group.get("fused") or group.get("capturable")
            device = parameter.device if beside else torch.device("cpu")
            found[entry.state] = torch.zeros((), dtype=dtype, device=device)
        elif entry.shape == tuple(parameter.shape):
            found[entry.state] = on_shard(parameter, partial(torch.empty_like, dtype=dtype))
        else:
            return None
    return found
