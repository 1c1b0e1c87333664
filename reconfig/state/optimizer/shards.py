"""Makes tensors with the sharding of others, without DTensor operators.

Propagating the sharding of a DTensor operator for a new mesh takes a switch longer than the memory
access itself.
"""

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor


def on_shard(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Apply `make` to this rank's shard, and return a tensor of the same sharding; no gradients.

    `make` must keep the local shape.
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
