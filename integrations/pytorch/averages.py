"""An exponential average of the parameters, kept in shards as they are (`State.averages`)."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from wattmesh.integrations.pytorch.gradients import shard_of
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.state.optimizer.shards import on_shard


def begin_average(modules: Iterable[nn.Module]) -> dict[str, Tensor]:
    """Copy this rank's shards of all parameters, by global name."""
    return {
        name: on_shard(parameter, torch.clone)
        for module in modules
        for name, parameter in module.named_parameters()
    }


def move_average(modules: Iterable[nn.Module], average: Mapping[str, Tensor], decay: float) -> None:
    """Update an average: `decay * average + (1 - decay) * parameter`."""
    pairs = [
        (shard_of(average[name]), shard_of(parameter.detach()))
        for module in modules
        for name, parameter in module.named_parameters()
    ]
    torch_compat.approach([each for each, _ in pairs], [each for _, each in pairs], 1 - decay)
