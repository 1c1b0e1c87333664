"""Fully sharded data parallel (FSDP2, and HSDP on two axes), summing gradients.

Invariant: a gradient is the plain sum over ranks. The loss is divided by the global token count
already; an average over ranks would make it depend on the layout.
"""

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Shard

from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.state.optimizer.shards import on_shard

Placement = Callable[[nn.Parameter], Shard | None]


def shard_data(module: nn.Module, mesh: DeviceMesh, *, dim: int = 0) -> None:
    """Shard a module's parameters, gradients and optimizer slots over `mesh`.

    Parameters of inner modules that are sharded already are left as they are.

    Args:
        module: becomes a unit of communication of its own.
        mesh: one axis (sharded) or two (replicated, sharded).
        dim: of the parameters, that is cut; must divide evenly unless it is 0.
    """
    placement: Placement | None = (lambda _: Shard(dim)) if dim else None
    fully_shard(module, mesh=mesh, reshard_after_forward=False, shard_placement_fn=placement)


def give_memory(module: nn.Module, device: str) -> None:
    """Allocate a meta-device module's shards without initializing them (`to_empty`)."""
    empty = partial(torch.empty_like, device=device)
    torch_compat.give_storage(module, partial(on_shard, make=empty))


def sum_gradients(modules: Iterable[nn.Module]) -> None:
    """Make every FSDP module sum its gradients; call it once all of them are sharded."""
    for module in modules:
        for each in module.modules():
            if isinstance(each, FSDPModule):
                each.set_gradient_divide_factor(1.0)
                # gloo has no pre-multiplied sum, which the factor would else be done by.
                each.set_force_sum_reduction_for_comms(True)


def shard_again(modules: Iterable[nn.Module]) -> None:
    """Reshard after a forward without backward: checkpoints read shards."""
    for module in modules:
        for each in module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()
