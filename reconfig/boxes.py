"""Where a rank's piece of a tensor sits in the whole: a box of logical indices.

Invariant: the numbering of a tensor's elements is that of the unsharded tensor, row-major, and so
the same in every layout.
"""

import math
from dataclasses import dataclass

import torch
import xxhash
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from wattmesh.errors import InputInvalid

_SIGN = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One rank's piece of one tensor.

    Attributes:
        key: global name. `whole`: shape of the unsharded tensor. `offset`: of the piece in it.
        local: the piece itself, on its device.
    """

    key: str
    whole: tuple[int, ...]
    offset: tuple[int, ...]
    local: torch.Tensor

    @property
    def key_id(self) -> int:
        """64-bit signed hash of the name alone."""
        return signed_hash(self.key)

    @property
    def tensor_id(self) -> int:
        """64-bit signed hash of what every piece of this tensor shares: name, dtype, shape."""
        return signed_hash(f"{self.key}|{self.local.dtype}|{self.whole}")

    @property
    def box_id(self) -> int:
        """64-bit signed hash of this piece's identity: the tensor and the box."""
        return signed_hash(f"{self.key}|{self.whole}|{self.offset}|{tuple(self.local.shape)}")


def box_of(key: str, tensor: torch.Tensor) -> Box | None:
    """Find the box of a tensor on this rank; None when this rank holds nothing of it.

    Raises:
        InputInvalid: a piece whose size differs from what its sharding says.
    """
    if tensor.is_complex():
        raise InputInvalid(f"checkpoint: {key!r} is complex; store it with view_as_real.")
    if not isinstance(tensor, DTensor):
        shape = tuple(tensor.shape)
        return Box(key=key, whole=shape, offset=(0,) * len(shape), local=tensor.detach())
    if any(placement.is_partial() for placement in tensor.placements):
        raise InputInvalid(f"checkpoint: {key!r} is a partial sum on each rank; reduce it first.")
    whole = tuple(tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(
        whole, tensor.device_mesh, tensor.placements
    )
    local = tensor.to_local().detach()
    if math.prod(shape) == 0:
        return None
    if tuple(local.shape) != tuple(shape):
        raise InputInvalid(
            f"checkpoint: this rank's piece of {key!r} is {tuple(local.shape)}, its sharding says "
            f"{tuple(shape)} of {whole}; such a tensor cannot be moved safely."
        )
    return Box(key=key, whole=whole, offset=tuple(offset), local=local)


def signed_hash(text: str) -> int:
    """64-bit hash of a name, as torch's signed integers hold it."""
    return (xxhash.xxh3_64_intdigest(text.encode()) ^ _SIGN) - _SIGN
