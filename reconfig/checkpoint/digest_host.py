"""The logical digest on the CPU, with NumPy.

Unlike torch, NumPy has unsigned 64-bit shifts and works in place, and blocks stay in the CPU's
cache: 5 ns per element, where torch's operators, each of which allocates a tensor, take 70 ns.

Invariant: equal to what `digest.py` computes on a device, bit by bit.
"""

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray

from wattmesh.reconfig.state.boxes import LocalBox, Shape

Unsigned = NDArray[np.uint64]

Place = tuple[Shape, Shape, Shape]
"""Local shape, shape of the whole, offset in it."""

BLOCK = 1 << 15
"""Elements per step, so that two arrays of 64-bit numbers stay in a core's L2 cache."""

_MASK = (1 << 64) - 1
_PRESENT = np.uint64(0x632BE59BD9B4E019)
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Summer:
    """Sums boxes one after the other. Not thread safe.

    The weights' indices depend only on a box's place. A parameter, its slots and its averages have
    the same place and share them, if they are summed one after the other.
    """

    def __init__(self) -> None:
        """Allocate one block."""
        self._room = np.empty((2, BLOCK), dtype=np.uint64)
        self._place: Place | None = None
        self._across = self._along = self._room[0, :0]

    def sum_of_box(self, box: LocalBox) -> int:
        """Sum weight * (bits + constant) over the elements of one box, modulo 2^64."""
        if self._place != place_of(box):
            self._place = place_of(box)
            self._across, self._along = _numbers(box)
        along, across = self._along, self._across + np.uint64(box.tensor_id & _MASK)
        flat = box.local.contiguous().reshape(-1)
        bits = flat.view(_BITS[flat.element_size()]).numpy().reshape(len(across), len(along))
        wide = max(1, min(BLOCK, len(along)))
        rows = max(1, BLOCK // wide)
        total = 0
        for row in range(0, len(across), rows):
            for column in range(0, len(along), wide):
                part = bits[row : row + rows, column : column + wide]
                weight, value = (each[: part.size].reshape(part.shape) for each in self._room)
                starts = across[row : row + rows, None]
                np.add(starts, along[column : column + wide], out=weight)
                total += _sum(weight, value, part)
        return total & _MASK


def place_of(box: LocalBox) -> Place:
    """Return a box's place, which is equal for tensors with the same sharding."""
    return tuple(box.local.shape), box.whole, box.offset


def _numbers(box: LocalBox) -> tuple[Unsigned, Unsigned]:
    """Indices times the step, of rows and within a row; a row is the largest that fits."""
    steps = _steps(box)
    split = len(steps) - 1
    while split > 0 and math.prod(map(len, steps[split - 1 :])) <= BLOCK:
        split -= 1
    return _outer(steps[:split]), _outer(steps[split:])


def _steps(box: LocalBox) -> list[Unsigned]:
    """Per dim, the contribution of each index to index times the step; at least one dim."""
    found: list[Unsigned] = []
    stride = 1
    for size, whole, offset in zip(
        reversed(box.local.shape), reversed(box.whole), reversed(box.offset), strict=True
    ):
        numbers = np.arange(offset, offset + size, dtype=np.uint64)
        found.append(numbers * np.uint64(stride & _MASK) * _STEP)
        stride *= whole
    return found[::-1] or [np.zeros(1, dtype=np.uint64)]


def _outer(steps: Sequence[Unsigned]) -> Unsigned:
    """All sums of one number from each array, row-major."""
    return reduce(
        lambda a, b: (a[:, None] + b[None, :]).reshape(-1), steps, np.zeros(1, dtype=np.uint64)
    )


def _sum(weight: Unsigned, value: Unsigned, bits: NDArray[np.integer]) -> int:
    """Sum one block. `weight` is index * step + tensor on entry; both arrays are overwritten."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        np.right_shift(weight, np.uint64(shift), out=value)
        np.bitwise_xor(weight, value, out=weight)
        np.multiply(weight, factor, out=weight)
    np.right_shift(weight, np.uint64(31), out=value)
    np.bitwise_xor(weight, value, out=weight)
    np.bitwise_or(weight, np.uint64(1), out=weight)
    signed = value.view(np.int64)
    signed[...] = bits
    if bits.dtype.itemsize == 8:
        # The fold of digest.py, so that the top bit also counts in the lower half.
        signed ^= (signed >> 32) & 0xFFFFFFFF
    value += _PRESENT
    return int(np.dot(weight.reshape(-1), value.reshape(-1)))
