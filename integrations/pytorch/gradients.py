"""The global gradient norm over mixed meshes and pipeline stages, and sums over ranks.

PyTorch's own `clip_grad_norm_` wants all parameters on one mesh; here dense matrices are on
(dp_replicate, fsdp, tp), experts on (dp_replicate, efsdp, ep).
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wattmesh.reconfig import torch_compat


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
    """Return this rank's part of a tensor, as a view; gradients flow back to it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradients(
    modules: Iterable[nn.Module], *, without: Collection[nn.Parameter] = ()
) -> list[Gradient]:
    """List this rank's gradient shards, but for those of some parameters."""
    found, left_out = [], {id(each) for each in without}
    for module in modules:
        for parameter in (each for each in module.parameters() if id(each) not in left_out):
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
    norms = torch.stack(torch_compat.norms([each.shard for each in gradients])).double()
    shards = torch.tensor(
        [each.shards for each in gradients], dtype=torch.float64, device=norms.device
    )
    return (norms.square() * shards).sum() / replicas


def expert_squares(
    stacks: Sequence[Sequence[nn.Parameter]], placement: Sequence[Sequence[int]], experts: int
) -> Tensor:
    """Return this rank's share of the squared gradient norm of every expert. Collective.

    Summed over all ranks it is the same to the last bit wherever experts lie: an expert's squares
    are added among the ranks that share it, in an order that its place does not change, and one of
    them alone has it in its share.

    Args:
        stacks: by layer on this rank, its parameters with the experts along dim 0.
        placement: by layer on this rank, the expert in each row; () in the order of their numbers.
        experts: of a layer.

    Returns:
        (layers on this rank, experts), fp64.
    """
    device = next((each.device for stack in stacks for each in stack), torch.device("cpu"))
    found = torch.zeros(len(stacks), experts, dtype=torch.float64, device=device)
    for row, stack in enumerate(stacks):
        order = torch.tensor(placement[row] if placement else range(experts), device=device)
        for gradient in (each.grad for each in stack if each.grad is not None):
            local = shard_of(gradient)
            at = _first_row(gradient)
            squares = local.detach().double().square().flatten(1).sum(1)
            found[row].index_add_(0, order[at : at + len(squares)], squares)
    first = next((each.grad for stack in stacks for each in stack), None)
    if isinstance(first, DTensor):
        for axis, part in enumerate(first.placements):
            if part.is_shard(0) or first.device_mesh.size(axis) == 1:
                continue
            if part.is_shard():
                dist.all_reduce(found, group=first.device_mesh.get_group(axis))
            if first.device_mesh.get_local_rank(axis):
                found.zero_()
    return found


def _first_row(gradient: Tensor) -> int:
    """Return which row of the whole tensor this rank's part begins with."""
    if not isinstance(gradient, DTensor):
        return 0
    at = 0
    for axis, part in enumerate(gradient.placements):
        if part.is_shard(0):
            at = gradient.device_mesh.get_local_rank(axis) * gradient.to_local().shape[0]
    return at


def clip(gradients: Sequence[Gradient], norm: float, limit: float) -> None:
    """Scale gradients down so that their global norm, which is `norm`, is at most `limit`."""
    if norm > limit:
        torch_compat.scale([each.shard for each in gradients], limit / norm)
