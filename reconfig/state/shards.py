"""Tensors that are sharded as others are, made without an operator's plan.

An operator on DTensors is planned in Python anew for every mesh, which costs a switch more than
the memory that it touches.
"""

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor


def on_shard(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Make another tensor of the same sharding from what this rank holds of one; no gradients.

    `make` keeps the local shape.
    """
    with torch.no_grad():
        if not isinstance(tensor, DTensor):
            return make(tensor)
        return DTensor.from_local(
            make(tensor.to_local()),
            tensor.device_mesh,
            tensor.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
