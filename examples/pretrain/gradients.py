"""The global gradient norm over mixed meshes and pipeline stages, and the sum over ranks.

PyTorch's own `clip_grad_norm_` wants all parameters on one mesh; under FSDP with tensor parallelism
the norms' weights are on (dp) and the matrices on (dp, tp).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def sum_over_ranks(*values: Tensor) -> list[float]:
    """Sum scalars over all ranks in fp64, in one collective; equal on every rank."""
    packed = torch.stack([each.double() for each in values])
    dist.all_reduce(packed)
    return packed.tolist()


@dataclass(frozen=True, slots=True)
class Gradient:
    """What this rank holds of one gradient, which is in `shards` equal parts over its stage."""

    shard: Tensor
    shards: int


def local_gradients(modules: Sequence[nn.Module]) -> list[Gradient]:
    """List this rank's gradient shards."""
    found = []
    for module in modules:
        for parameter in module.parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                mesh = gradient.device_mesh
                shards = math.prod(
                    mesh.size(axis)
                    for axis, placement in enumerate(gradient.placements)
                    if not placement.is_replicate()
                )
                found.append(Gradient(gradient.to_local(), shards))
            elif gradient is not None:
                found.append(Gradient(gradient, 1))
    return found


def squared_norm_share(gradients: Sequence[Gradient], replicas: int) -> Tensor:
    """Give this rank's share of the squared global gradient norm, over mixed meshes and stages.

    A tensor in n shards is held `replicas / n` times by the ranks of its stage; dividing by that
    makes the sum over all ranks of all stages count every element once.
    """
    norms = torch.stack(torch._foreach_norm([each.shard for each in gradients])).double().cpu()
    shards = torch.tensor([each.shards for each in gradients], dtype=torch.float64)
    return (norms.square() * shards).sum() / replicas
