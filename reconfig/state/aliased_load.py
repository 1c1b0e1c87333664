"""Tells whether loading into named tensors has already filled the model.

Then `load_state_dict` is not needed: it would copy every tensor onto itself, and plan an operator
per shape and mesh, which takes longer than the load.

Invariant: True only if every tensor has the memory of the named one, and no module has a hook on
loads.
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
    """Tell whether filling `tensors` filled this part of the model."""
    if any(_hears_of_loads(each) for each in module.modules()):
        return False
    return all(_same(own, tensors.get(key)) for key, own in _held(module, tensors))


def is_state(state: State, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Tell whether named tensors are exactly the memory of a state's tensors."""
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
    """Every parameter, and the buffers among `tensors`, by their names there."""
    found: list[tuple[str, Any]] = [
        (f"model.{name}", each) for name, each in parameters_of(module).items()
    ]
    buffers = [(f"model.{canonical(name)}", each) for name, each in module.named_buffers()]
    return found + [(key, each) for key, each in buffers if key in tensors]


def _hears_of_loads(module: nn.Module) -> bool:
    """Tell whether a module does more in a load than copy its tensors."""
    kind = type(module)
    return (
        any(not torch_compat.is_of_fsdp(hook) for hook in torch_compat.load_hooks(module))
        or kind.set_extra_state is not nn.Module.set_extra_state
        or kind.load_state_dict is not nn.Module.load_state_dict
        or torch_compat.loads_by_itself(kind)
    )


def _same(own: Any, named: torch.Tensor | None) -> bool:
    """Tell whether two tensors are the same memory."""
    return isinstance(own, torch.Tensor) and named is not None and _at(own) == _at(named)


def _at(tensor: torch.Tensor) -> tuple[int, torch.Size, torch.dtype]:
    """Address, shape and dtype of this rank's piece."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.data_ptr(), local.shape, local.dtype
