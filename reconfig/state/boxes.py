"""A rank's piece of a tensor as a box of logical indices.

Invariant: elements are numbered row-major in the unsharded tensor, so numbers are the same in every
layout.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import xxhash
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.state.expert_stacks import Orders

_SIGN = 1 << 63

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBox:
    """One rank's piece of one tensor.

    Attributes:
        key: global name.
        whole: shape of the unsharded tensor.
        offset: of the piece in it.
        local: the piece, on its device.
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


Place = tuple[Shape, Shape]
"""Local shape and offset of a piece."""


def boxes_of(
    tensors: Mapping[str, torch.Tensor], orders: Orders | None = None
) -> dict[str, LocalBox]:
    """Return this rank's boxes; a tensor whose elements are all on other ranks has none.

    They are by name; of a tensor whose rows are in an order of their own there is one for each run
    of successive rows, by the name and the first of them.

    Args:
        tensors: by name.
        orders: of those whose stored rows are not in the logical order.

    Raises:
        InputInvalid: a tensor cannot be stored (partial, complex, unevenly sharded).
    """
    # A parameter, its slots and its averages are sharded alike, so the computation is cached.
    known: dict[Any, Place] = {}
    found = {key: box_of(key, tensor, known) for key, tensor in tensors.items()}
    boxes = {key: box for key, box in found.items() if box is not None}
    for key, order in (orders or {}).items():
        cut = _by_rows(boxes.pop(key), order) if key in boxes else ()
        boxes.update((f"{key}[{each.offset[0]}]", each) for each in cut)
    return boxes


def _by_rows(box: LocalBox, order: Sequence[int]) -> Iterator[LocalBox]:
    """Cut a piece into runs of rows that follow each other logically, too.

    Raises:
        InputInvalid: the tensor has another number of rows.
    """
    if not box.whole or box.whole[0] != len(order):
        raise InputInvalid(
            f"checkpoint: {box.key!r} is {box.whole}, but {len(order)} experts are placed along "
            "its first dimension."
        )
    begin, count = box.offset[0], box.local.shape[0]
    rows = order[begin : begin + count]
    starts = [at for at in range(count) if at == 0 or rows[at] != rows[at - 1] + 1]
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        offset = (rows[start], *box.offset[1:])
        yield replace(box, offset=offset, local=box.local[start:stop])


def box_of(
    key: str, tensor: torch.Tensor, known: dict[Any, Place] | None = None
) -> LocalBox | None:
    """Return the box of a tensor on this rank; None when its elements are all on other ranks.

    Args:
        key: global name.
        tensor: a DTensor where it is sharded.
        known: cache of shapes and offsets, which is extended.

    Raises:
        InputInvalid: the size of the piece differs from its sharding.
    """
    if tensor.is_complex():
        raise InputInvalid(f"checkpoint: {key!r} is complex; store it with view_as_real.")
    if not isinstance(tensor, DTensor):
        shape = tuple(tensor.shape)
        return LocalBox(key=key, whole=shape, offset=(0,) * len(shape), local=tensor.detach())
    if any(placement.is_partial() for placement in tensor.placements):
        raise InputInvalid(f"checkpoint: {key!r} is a partial sum on each rank; reduce it first.")
    whole = tuple(tensor.shape)
    shape, offset = _place(tensor, {} if known is None else known)
    with torch.no_grad():  # otherwise `to_local` would build an autograd graph
        local = tensor.to_local()
    if math.prod(whole) == 0:  # every rank holds all of it, as where it is not sharded
        empty = local.new_empty(whole)
        return LocalBox(key=key, whole=whole, offset=(0,) * len(whole), local=empty)
    if math.prod(shape) == 0:
        return None
    if tuple(local.shape) != shape:
        raise InputInvalid(
            f"checkpoint: this rank's piece of {key!r} is {tuple(local.shape)}, its sharding says "
            f"{shape} of {whole}; such a tensor cannot be moved safely."
        )
    return LocalBox(key=key, whole=whole, offset=offset, local=local)


def _place(tensor: DTensor, known: dict[Any, Place]) -> Place:
    kind = (tensor.shape, id(tensor.device_mesh), tensor.placements)
    if kind not in known:
        known[kind] = torch_compat.own_piece(tensor)
    return known[kind]


def signed_hash(text: str) -> int:
    """Return the 64-bit hash of a name as a signed integer."""
    return (xxhash.xxh3_64_intdigest(text.encode()) ^ _SIGN) - _SIGN
