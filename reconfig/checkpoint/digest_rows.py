"""The logical digest's sums, with weights by row and column (digests that begin with "2:").

A tensor is seen as rows of its last dim. Of one tensor the sum is

    odd(mix(tensor)) * sum over (row, column) of A(row) * B(column) * (bits + constant)

modulo 2^64, where A and B are odd and bits are unsigned. So a row costs one product of vectors, and
the weights need not be mixed anew for each element. Elements of eight bytes count as two of four,
the lower first, because an odd weight times bit 63 would be bit 63 wherever it is.

On the host a row's product is taken of whole words of eight bytes, with NumPy: with n elements to a
word, `sum of e_i B_i` is `sum of (word >> s j) W_j` for W_0 = B_0 and W_j = B_j - 2^s B_(j-1).

Invariant: the host's number, a device's and the one of stored bytes (`universal/logical.py`) are
equal, bit by bit.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wattmesh.reconfig.state.boxes import LocalBox, Shape

Unsigned = NDArray[np.uint64]

BLOCK = 1 << 15
"""Words at a time on the host: two arrays of them stay in a core's L2 cache."""

CHUNK = 1 << 22
"""Elements at a time on a device."""

MASK = (1 << 64) - 1
PRESENT = 0x632BE59BD9B4E019
ROW, COLUMN = 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_STEP, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one box: A by row, B by column."""

    rows: Unsigned
    columns: Unsigned


class RowSummer:
    """Sums boxes one after the other. Not thread safe.

    Weights depend on a box's place alone, so a parameter and its slots share them.
    """

    def __init__(self) -> None:
        """Allocate one block."""
        self._room = np.empty(BLOCK, dtype=np.uint64)
        self._known: tuple[Any, Weights] | None = None

    def sum_of_box(self, box: LocalBox) -> int:
        """Return the sum over one box, modulo 2^64, wherever it is."""
        if not box.local.numel():
            return 0
        weights = self._weights(box)
        on_host = box.local.device.type == "cpu"
        total = self._on_host(box, weights) if on_host else _on_device(box, weights)
        total += PRESENT * _sum(weights.rows) * _sum(weights.columns)
        return total * (_mixed(box.tensor_id) | 1) & MASK

    def sum_on_device(self, box: LocalBox) -> int:
        """Return the same, by torch's operators on the device of the box, whichever it is."""
        if not box.local.numel():
            return 0
        weights = self._weights(box)
        total = _on_device(box, weights)
        total += PRESENT * _sum(weights.rows) * _sum(weights.columns)
        return total * (_mixed(box.tensor_id) | 1) & MASK

    def _weights(self, box: LocalBox) -> Weights:
        parts = _parts(box.local.element_size())
        place = box.local.shape, box.whole, box.offset, parts
        if self._known is None or self._known[0] != place:
            self._known = place, weights_of(tuple(box.local.shape), box.whole, box.offset, parts)
        return self._known[1]

    def _on_host(self, box: LocalBox, weights: Weights) -> int:
        rows, columns = len(weights.rows), len(weights.columns)
        octets = box.local.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        width = len(octets) // (rows * columns)
        per_word = 8 // width
        if columns % per_word or octets.ctypes.data % 8:
            bits = octets.view(_UNSIGNED[width]).reshape(rows, columns)
            return self._products(bits, weights.rows, [weights.columns], 0)
        words = octets.view(np.uint64).reshape(rows, columns // per_word)
        shift = 8 * width
        by_place = weights.columns.reshape(-1, per_word)
        shifted = [np.ascontiguousarray(by_place[:, 0])]
        for place in range(1, per_word):
            shifted.append(by_place[:, place] - (by_place[:, place - 1] << np.uint64(shift)))
        return self._products(words, weights.rows, shifted, shift)

    def _products(
        self, bits: NDArray[Any], rows: Unsigned, by_shift: list[Unsigned], shift: int
    ) -> int:
        """Sum rows * ((bits >> shift * j) @ by_shift[j]) over all rows and j."""
        wide = min(BLOCK, bits.shape[1])
        many = max(1, BLOCK // wide)
        total = 0
        for row in range(0, len(bits), many):
            found = np.zeros(len(rows[row : row + many]), dtype=np.uint64)
            for column in range(0, bits.shape[1], wide):
                part = bits[row : row + many, column : column + wide]
                room = self._room[: part.size].reshape(part.shape)
                if part.dtype != np.uint64:
                    room[...] = part
                    part = room
                for place, weights in enumerate(by_shift):
                    if place:
                        np.right_shift(part, np.uint64(shift * place), out=room)
                    found += np.dot(room if place else part, weights[column : column + wide])
            total += int(np.dot(found, rows[row : row + many]))
        return total


def weights_of(shape: Shape, whole: Shape, offset: Shape, parts: int = 1) -> Weights:
    """Return the weights of a box of `shape` at `offset`; an element counts as `parts` of them."""
    numbers = np.zeros(1, dtype=np.uint64)
    for size, length, first in zip(shape[:-1], whole[:-1], offset[:-1], strict=True):
        along = np.arange(first, first + size, dtype=np.uint64)
        numbers = (numbers[:, None] * np.uint64(length) + along[None, :]).reshape(-1)
    first, size = (offset[-1], shape[-1]) if shape else (0, 1)
    columns = np.arange(first * parts, (first + size) * parts, dtype=np.uint64)
    return Weights(_odd(numbers, ROW), _odd(columns, COLUMN))


def _on_device(box: LocalBox, weights: Weights) -> int:
    local = box.local.detach().contiguous()
    rows, columns = len(weights.rows), len(weights.columns)
    width = local.numel() * local.element_size() // (rows * columns)
    bits = local.reshape(-1).view(_SIGNED[width]).reshape(rows, columns)
    a_R, b_C = (
        torch.from_numpy(each.view(np.int64)).to(bits.device)
        for each in (weights.rows, weights.columns)
    )
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    wide = min(CHUNK, columns)
    many = max(1, CHUNK // wide)
    for row in range(0, rows, many):
        for column in range(0, columns, wide):
            part = bits[row : row + many, column : column + wide].to(torch.int64)
            if width > 1:
                part &= (1 << 8 * width) - 1
            products_R = part.mul_(b_C[column : column + wide]).sum(1)
            total += products_R.mul_(a_R[row : row + many]).sum()
    return int(total)


def _parts(size: int) -> int:
    return 2 if size == 8 else 1


def _odd(numbers: Unsigned, start: int) -> Unsigned:
    """Apply splitmix64 to `start + number * step`, and make the result odd."""
    mixed = numbers * np.uint64(_STEP) + np.uint64(start)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
    found: Unsigned = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return found


def _mixed(number: int) -> int:
    mixed = number & MASK
    mixed = ((mixed ^ (mixed >> 30)) * _MIX_1) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * _MIX_2) & MASK
    return mixed ^ (mixed >> 31)


def _sum(weights: Unsigned) -> int:
    return int(weights.sum(dtype=np.uint64))
