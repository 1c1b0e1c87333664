"""The global gradient norm over mixed meshes and pipeline stages, and sums over ranks.

PyTorch's own `clip_grad_norm_` wants all parameters on one mesh; here dense matrices are on
(dp_replicate, fsdp, tp), experts on (dp_replicate, efsdp, ep).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def sum_over_ranks(*values: Tensor) -> list[Tensor]:
    """Sum tensors over all ranks in fp64, in one collective; equal on every rank.

    Args:
        values: of any shapes, each the same on every rank.
    """
    packed = torch.cat([each.detach().double().reshape(-1) for each in values])
    dist.all_reduce(packed)
    parts = torch.split(packed, [each.numel() for each in values])
    return [part.reshape(each.shape) for part, each in zip(parts, values, strict=True)]


@dataclass(frozen=True, slots=True)
class Gradient:
    """This rank's part of a gradient that is in `shards` equal parts over its stage."""

    shard: Tensor
    shards: int


def shard_of(tensor: Tensor) -> Tensor:
    """Return this rank's local part of a tensor, as a view."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradients(modules: Iterable[nn.Module]) -> list[Gradient]:
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
    """Return this rank's share of the squared global gradient norm, fp64.

    A tensor in n shards is held `replicas / n` times by the `replicas` ranks of its stage; dividing
    by that makes the sum over all ranks of all stages count every element once.
    """
    norms = torch.stack(torch._foreach_norm([each.shard for each in gradients])).double()
    shards = torch.tensor(
        [each.shards for each in gradients], dtype=torch.float64, device=norms.device
    )
    return (norms.square() * shards).sum() / replicas


def clip(gradients: Sequence[Gradient], norm: float, limit: float) -> None:
    """Scale gradients down so that their global norm, which is `norm`, is at most `limit`."""
    if norm > limit:
        torch._foreach_mul_([each.shard for each in gradients], limit / norm)
