"""AdamW on this rank's local shards: the same numbers, without DTensor dispatch.

The update is elementwise, so a shard's new value needs nothing but that shard. torch's own step
hands whole lists of DTensors to one operator, and plans it in Python anew for every mesh: the first
step after a switch pays for it, with more than it pays for its gradients.
"""

from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.gradients import shard_of


class ShardAdamW(AdamW):
    """torch's AdamW; its state holds DTensors where parameters are DTensors, as torch's does."""

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Collect a group's tensors as torch does, and replace DTensors by this rank's shards."""
        complex_found: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        parameters, gradients = lists[:2]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if _placed(parameter) != _placed(gradient):
                raise InputInvalid(
                    f"optimizer: a parameter of shape {tuple(parameter.shape)} is placed "
                    f"{_placed(parameter)}, its gradient {_placed(gradient)}; reduce the gradient "
                    "before the step, or use torch's AdamW."
                )
        for tensors in lists:
            tensors[:] = [shard_of(each) for each in tensors]
        return complex_found


def _placed(tensor: Tensor) -> Any:
    return tensor.placements if isinstance(tensor, DTensor) else None
