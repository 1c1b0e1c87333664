"""An exponential average of the parameters, kept in shards as they are (`State.averages`)."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wattmesh.integrations.pytorch.gradients import shard_of


def begin_average(modules: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Copy this rank's shards of all parameters, by global name."""
    return {
        name: _copy(parameter.detach())
        for module in modules
        for name, parameter in module.named_parameters()
    }


def move_average(modules: Iterable[nn.Module], average: Mapping[str, Tensor], decay: float) -> None:
    """Move an average towards the parameters: `decay * average + (1 - decay) * parameter`."""
    pairs = [
        (shard_of(average[name]), shard_of(parameter.detach()))
        for module in modules
        for name, parameter in module.named_parameters()
    ]
    torch._foreach_lerp_([each for each, _ in pairs], [each for _, each in pairs], 1 - decay)


def _copy(tensor: Tensor) -> Tensor:
    """Copy a shard; DTensor's own clone is planned anew for every mesh."""
    if not isinstance(tensor, DTensor):
        return tensor.clone()
    return DTensor.from_local(
        tensor.to_local().clone(),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
