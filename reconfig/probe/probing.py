"""Computes the loss of the fixed batch without side effects on the training.

Invariant: buffers, modes, gradients and random streams are restored, to the bit; a probe that
changes a parameter is refused with its name. No parameter is copied.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid, WattmeshError
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.launch.in_step import words
from wattmesh.reconfig.state import streams
from wattmesh.reconfig.state.names import parameters_of
from wattmesh.reconfig.state.state import State


def take(probe: Callable[[State], float], state: State) -> float:
    """Return the loss that `probe` computes.

    Raises:
        InputInvalid: it raised, returned no number, or changed a parameter.
    """
    try:
        with untouched(state), streams.undisturbed(), torch.no_grad():
            return float(probe(state))
    except WattmeshError:
        raise
    except Exception as error:
        raise InputInvalid(
            f"attach: the probe cannot be taken ({words(error)}); give the loss of a fixed batch, "
            "forward only."
        ) from error


@contextmanager
def untouched(state: State) -> Iterator[None]:
    """Restore everything that a forward may change in the modules of a state.

    Raises:
        InputInvalid: on exit, if a parameter was changed or a gradient was left.
    """
    modules = {each: each.training for part in state.modules for each in part.modules()}
    buffers = [
        (module, name, buffer, _local(buffer).clone() if buffer is not None else None)
        for module in modules
        for name, buffer in torch_compat.buffers(module).items()
    ]
    parameters = [
        (each, torch_compat.version_of(each), each.grad)
        for optimizer in state.optimizers
        for group in optimizer.param_groups
        for each in group["params"]
    ]
    try:
        yield
    finally:
        for module, training in modules.items():
            module.training = training
        for module, name, buffer, before in buffers:
            _put_back(module, name, buffer, before)
        left = [each for each, _, grad in parameters if each.grad is not grad]
        for each, _, grad in parameters:
            each.grad = grad
    changed = [each for each, version, _ in parameters if torch_compat.version_of(each) != version]
    if changed or left:
        did = "changed the parameter" if changed else "left a gradient in"
        raise InputInvalid(
            f"attach: the probe {did} {_name((changed or left)[0], state)!r}; give the loss of a "
            "fixed batch, forward only."
        )


def _put_back(
    module: nn.Module, name: str, buffer: torch.Tensor | None, before: torch.Tensor | None
) -> None:
    """Restore a buffer: the same tensor with the same bits."""
    torch_compat.buffers(module)[name] = buffer
    if buffer is None or before is None:
        return
    local = _local(buffer)
    # Written only if it differs, because a graph may have saved it and checks its version.
    if local.shape != before.shape or not torch.equal(_bits(local), _bits(before)):
        with torch.no_grad():
            local.resize_(before.shape).copy_(before)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _name(parameter: torch.Tensor, state: State) -> str:
    every = (each for module in state.modules for each in parameters_of(module).items())
    return next((name for name, each in every if each is parameter), "of an optimizer")
