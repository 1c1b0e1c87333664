"""The logical digest of stored tensors: equal to the one `checkpoint/digest.py` takes in memory.

It sums weight * (bits + constant) over the stored pieces, in storage order, without planner or
reader; weights are by row and column or, of digests without a head, by tensor and logical index. So
it checks a conversion independently of the code that made it, and a checkpoint against the training
state that it was saved from.

Invariant: replicas count once; the numbers equal those of `reconfig/checkpoint/digest.py` bit by
bit.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wattmesh.reconfig.universal.files.hashing import default_jobs
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape, row_major
from wattmesh.reconfig.universal.index.index import Column, Index, TensorEntry
from wattmesh.reconfig.universal.index.names import HOOK, Names

Unsigned = NDArray[np.uint64]

CHUNK = 1 << 16
"""Elements per step, so that their 64-bit numbers stay in the CPU's cache."""

BY_ROWS = "2:"
"""How a digest begins whose weights are by row and column; one by index has no such head."""

MASK = (1 << 64) - 1
_SIGN = 1 << 63
_PRESENT = np.uint64(0x632BE59BD9B4E019)
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ROW, _COLUMN = np.uint64(0xD1B54A32D192ED03), np.uint64(0x8CB92BA72F3D8DD7)
# Bits are widened as checkpoint/digest.py does: one byte unsigned, wider ones signed.
_BITS: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}


def head_of(digest: str) -> str:
    """Return the head of a digest, which says how it is summed; the newest one of ""."""
    return BY_ROWS if not digest or digest.startswith(BY_ROWS) else ""


def digest(
    tensors: Mapping[tuple[str, str], int],
    facts: int | None = None,
    values: Mapping[str, Any] | None = None,
    head: str = BY_ROWS,
) -> str:
    """Add up the digests of a checkpoint's tensors to a head and 16 hex digits.

    Args:
        tensors: as returned by `by_tensor`.
        facts: xxh3_64 of the extra state's text in the job's digest.
        values: plain values that the digest counts by name.
        head: of the digest, as `by_tensor` got it.
    """
    total = sum(tensors.values()) + digest_of_values(values or {})
    if facts is not None:
        total += (facts ^ _SIGN) - _SIGN
    return f"{head}{total & MASK:016x}"


def digest_of_values(values: Mapping[str, Any]) -> int:
    """Digest JSON values by their names; the order does not matter."""
    return sum(
        xxhash.xxh3_64_intdigest(f"{key}={json.dumps(value, sort_keys=True)}".encode())
        for key, value in values.items()
    )


def by_tensor(
    index: Index,
    folder: Path,
    *,
    names: Names = HOOK,
    jobs: int = 0,
    progress: Progress = silent,
    head: str = BY_ROWS,
) -> dict[tuple[str, str], int]:
    """Digest every tensor of an index, by (name, state): unsigned 64-bit numbers.

    Args:
        index: of the checkpoint or source.
        folder: the folder that its file names are relative to.
        names: maps entries to the trainer's names, which the digests depend on.
        jobs: threads; 0 for as many as there are CPUs, at most 4.
        progress: called with the bytes read since its last call, from several threads.
        head: of the digest that these are part of.

    Raises:
        CheckpointDamaged: bytes are missing.
    """
    sum_up = _sum_by_rows if head == BY_ROWS else _sum_by_index

    def work(number: int) -> int:
        entry = index.entries[number]
        tensor = tensor_id(names.fqn(entry.name, entry.state), entry)
        total = 0
        with Files(folder) as files:
            for row in _distinct(index, number):
                total += _segment(index, files, row, tensor, sum_up=sum_up, progress=progress)
        return total * (_mixed(int(tensor)) | 1 if head == BY_ROWS else 1) & MASK

    with ThreadPoolExecutor(jobs or default_jobs()) as pool:
        values = pool.map(work, range(len(index.entries)))
        return {entry.key: value for entry, value in zip(index.entries, values, strict=True)}


def tensor_id(fqn: str, entry: TensorEntry) -> np.uint64:
    """Hash what all pieces of a tensor share: the trainer's name, dtype and shape."""
    text = f"{fqn}|torch.{entry.dtype}|{entry.shape}"
    return np.uint64(xxhash.xxh3_64_intdigest(text.encode()))


def _distinct(index: Index, number: int) -> list[int]:
    """Rows of an entry's segments, one per distinct box."""
    rows = index.segments_of(number)
    part = index.segments.take(rows)
    boxes: Column = np.column_stack([part.flat, part.start, part.shape])
    _, first = np.unique(boxes, axis=0, return_index=True)
    return sorted(rows.start + int(each) for each in first)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Location of a piece: `strides` in elements of `size` bytes, from byte `offset` on."""

    files: Files
    name: str
    offset: int
    strides: Shape
    size: int

    def bits(self, part: Box, skipped: int) -> NDArray[np.generic]:
        """Row-major bits of `part` as numbers of their width; `skipped` elements precede it."""
        return _bits(self, self.offset + skipped * self.size, part.shape, self.strides)


Sum = Callable[[NDArray[Any], Unsigned, int, np.uint64], int]
"""Sums bits with their logical indices, in rows of so many columns, of a tensor with an id."""


def _segment(
    index: Index, files: Files, row: int, tensor: np.uint64, *, sum_up: Sum, progress: Progress
) -> int:
    """Sum over one stored piece."""
    segments = index.segments
    entry = index.entries[int(segments.entry[row])]
    box = segments.box(row, entry)
    whole = (Box.whole(entry.shape).count,) if segments.flat[row] else entry.shape
    stored = _Stored(
        files,
        index.files[int(segments.file[row])],
        int(segments.offset[row]),
        tuple(segments.strides[row, : len(box.shape)].tolist()),
        dtypes.size_of(entry.dtype),
    )
    total = 0
    for part, skipped in _cut(box, stored.strides):
        bits, numbers = stored.bits(part, skipped), _logical_index(part, whole)
        total += sum_up(bits, numbers, entry.shape[-1] if entry.shape else 1, tensor)
        progress(part.count * stored.size)
    return total


def _cut(box: Box, strides: Shape) -> Iterator[tuple[Box, int]]:
    """Split into boxes of at most CHUNK elements, with the stored elements before each."""
    if box.count <= CHUNK or not box.shape:
        if box.count:
            yield box, 0
        return
    dim = next(at for at, size in enumerate(box.shape) if size > 1)
    rest = box.count // box.shape[dim]
    step = max(1, CHUNK // rest)
    for at in range(0, box.shape[dim], step):
        start, shape = list(box.start), list(box.shape)
        start[dim] += at
        shape[dim] = min(step, box.shape[dim] - at)
        for part, skipped in _cut(Box(tuple(start), tuple(shape)), strides):
            yield part, skipped + at * strides[dim]


def _bits(stored: _Stored, offset: int, shape: Shape, strides: Shape) -> NDArray[Any]:
    """Read the row-major bits of a box from byte `offset` on."""
    span = _span(shape, strides)
    if strides == row_major(shape) or span <= 64 * CHUNK:
        raw = np.empty(span * stored.size, dtype=np.uint8)
        stored.files.read_into(stored.name, offset, raw.data)
        steps = [each * stored.size for each in strides]
        bits = np.lib.stride_tricks.as_strided(raw.view(_BITS[stored.size]), shape, steps)
        return bits.reshape(-1).copy()
    step = strides[0] * stored.size
    rows = [_bits(stored, offset + at * step, shape[1:], strides[1:]) for at in range(shape[0])]
    return np.concatenate(rows)


def _span(shape: Shape, strides: Shape) -> int:
    return sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1


def _logical_index(part: Box, whole: Shape) -> Unsigned:
    """Row-major indices of a box's elements in a tensor of shape `whole`."""
    numbers = np.zeros(part.shape, dtype=np.uint64)
    for dim, stride in enumerate(row_major(whole)):
        along = np.arange(part.start[dim], part.stop[dim], dtype=np.uint64) * np.uint64(stride)
        numbers += along.reshape((-1,) + (1,) * (len(whole) - dim - 1))
    return numbers.reshape(-1)


def _sum_by_rows(bits: NDArray[Any], index: Unsigned, columns: int, tensor: np.uint64) -> int:
    """Sum A(row) * B(column) * (bits + constant); eight bytes count as two elements of four."""
    unsigned = bits.view(f"<u{bits.dtype.itemsize}").astype(np.uint64)
    row, column = index // np.uint64(columns), index % np.uint64(columns)
    halves = [(column, unsigned)]
    if bits.dtype.itemsize == 8:
        low, high = unsigned & np.uint64(0xFFFFFFFF), unsigned >> np.uint64(32)
        twice = column * np.uint64(2)
        halves = [(twice, low), (twice + np.uint64(1), high)]
    along = _odd(row, _ROW)
    return sum(
        int((along * _odd(at, _COLUMN) * (value + _PRESENT)).sum(dtype=np.uint64))
        for at, value in halves
    )


def _odd(numbers: Unsigned, start: np.uint64) -> Unsigned:
    """Mix `start + number * step` to odd weights."""
    mixed = numbers * _STEP + start
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= factor
    mixed ^= mixed >> np.uint64(31)
    return mixed | np.uint64(1)


def _mixed(number: int) -> int:
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        number = ((number ^ (number >> shift)) * int(factor)) & MASK
    return number ^ (number >> 31)


def _sum_by_index(narrow: NDArray[Any], index: Unsigned, columns: int, tensor: np.uint64) -> int:
    """Sum weight(index) * (bits + constant) modulo 2^64. It overwrites `index`."""
    bits = narrow.astype(np.int64)
    if narrow.dtype.itemsize == 8:
        bits ^= (bits >> 32) & 0xFFFFFFFF
    weight = index
    weight *= _STEP
    weight += tensor
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        weight ^= weight >> np.uint64(shift)
        weight *= factor
    weight ^= weight >> np.uint64(31)
    weight |= np.uint64(1)
    values = bits.view(np.uint64)
    values += _PRESENT
    values *= weight
    return int(values.sum(dtype=np.uint64))
