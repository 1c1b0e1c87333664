"""Whether a load that filled named tensors has thereby filled the model.

Then nothing is left to hand over. torch's own way copies every tensor onto itself,
which takes an operator's plan per shape and mesh: more than the load itself.

Invariant: True only where every tensor begins where the named one does, and no module wants to
hear of a load.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.state.names import canonical, parameters_of
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.universal.index.names import AVERAGE


def filled_in_place(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether filling `tensors` filled this part of the model."""
    if any(_hears_of_loads(each) for each in module.modules()):
        return False
    return all(_same(own, tensors.get(key)) for key, own in _held(module, tensors))


def is_state(state: State, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Whether named tensors are, as memory, all that a state holds now, and nothing else."""
    own = [each for module in state.modules for each in _held(module, tensors)]
    names: dict[torch.Tensor, str] = {
        parameter: name
        for module in state.modules
        for name, parameter in parameters_of(module).items()
    }
    own += [
        (f"optim.state.{names.get(parameter, '')}.{slot}", value)
        for optimizer in state.optimizers
        for parameter, slots in optimizer.state.items()
        for slot, value in slots.items()
        if isinstance(value, torch.Tensor | dict)
    ]
    own += [
        (f"{AVERAGE}{slot}.{canonical(name)}", average)
        for slot, averages in state.averages.items()
        for name, average in averages.items()
    ]
    same = all(_same(each, tensors.get(key)) for key, each in own)
    return same and {key for key, _ in own} == tensors.keys()


def _held(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, Any]]:
    """Every parameter, and the buffers that are among `tensors`, by their names there."""
    found: list[tuple[str, Any]] = [
        (f"model.{name}", each) for name, each in parameters_of(module).items()
    ]
    buffers = [(f"model.{canonical(name)}", each) for name, each in module.named_buffers()]
    return found + [(key, each) for key, each in buffers if key in tensors]


def _hears_of_loads(module: nn.Module) -> bool:
    """Whether a load means more to a module than other numbers in its tensors."""
    kind = type(module)
    return (
        any(not torch_compat.is_of_fsdp(hook) for hook in torch_compat.load_hooks(module))
        or kind.set_extra_state is not nn.Module.set_extra_state
        or kind.load_state_dict is not nn.Module.load_state_dict
        or torch_compat.loads_by_itself(kind)
    )


def _same(own: Any, named: torch.Tensor | None) -> bool:
    """Whether two tensors are the same memory."""
    return isinstance(own, torch.Tensor) and named is not None and _at(own) == _at(named)


def _at(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype]:
    """Where this rank's piece of a tensor begins, its shape and type."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr(), local.shape, local.dtype
