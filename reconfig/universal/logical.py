"""The logical digest of stored tensors: equal to the one `checkpoint/digest.py` takes in memory.

It sums weight(tensor, logical index) * (bits + constant) over the stored pieces, in storage order,
without planner or reader. So it checks a conversion independently of the code that made it, and a
checkpoint against the training state that it was saved from.

Invariant: replicas count once; the numbers equal those of `reconfig/checkpoint/digest.py` bit by
bit.
"""

import json
from collections.abc import Iterator, Mapping
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

MASK = (1 << 64) - 1
_SIGN = 1 << 63
_PRESENT = np.uint64(0x632BE59BD9B4E019)
# The multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Bits are widened as checkpoint/digest.py does: one byte unsigned, wider ones signed.
_BITS: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i2"),
    4: np.dtype("<i4"),
    8: np.dtype("<i8"),
}


def digest(
    tensors: Mapping[tuple[str, str], int],
    facts: int | None = None,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Add up the digests of a checkpoint's tensors to 16 hex digits.

    Args:
        tensors: as returned by `by_tensor`.
        facts: xxh3_64 of the extra state's text in the job's digest.
        values: plain values that the digest counts by name.
    """
    total = sum(tensors.values()) + digest_of_values(values or {})
    if facts is not None:
        total += (facts ^ _SIGN) - _SIGN
    return f"{total & MASK:016x}"


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
) -> dict[tuple[str, str], int]:
    """Digest every tensor of an index, by (name, state): unsigned 64-bit numbers.

    Args:
        index: of the checkpoint or source.
        folder: the folder that its file names are relative to.
        names: maps entries to the trainer's names, which the digests depend on.
        jobs: threads; 0 for as many as there are CPUs, at most 4.
        progress: called with the bytes read since its last call, from several threads.

    Raises:
        CheckpointDamaged: bytes are missing.
    """

    def work(number: int) -> int:
        entry = index.entries[number]
        tensor = tensor_id(names.fqn(entry.name, entry.state), entry)
        total = 0
        with Files(folder) as files:
            for row in _distinct(index, number):
                total += _segment(index, files, row, tensor, progress)
        return total & MASK

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

    def bits(self, part: Box, skipped: int) -> NDArray[np.int64]:
        """Row-major bits of `part` as signed numbers; `skipped` elements precede it."""
        return _bits(self, self.offset + skipped * self.size, part.shape, self.strides)


def _segment(index: Index, files: Files, row: int, tensor: np.uint64, progress: Progress) -> int:
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
        total += _sum(stored.bits(part, skipped), _logical_index(part, whole), tensor)
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


def _bits(stored: _Stored, offset: int, shape: Shape, strides: Shape) -> NDArray[np.int64]:
    """Read the row-major bits of a box from byte `offset` on."""
    span = _span(shape, strides)
    if strides == row_major(shape) or span <= 64 * CHUNK:
        raw = np.empty(span * stored.size, dtype=np.uint8)
        stored.files.read_into(stored.name, offset, raw.data)
        steps = [each * stored.size for each in strides]
        bits = np.lib.stride_tricks.as_strided(raw.view(_BITS[stored.size]), shape, steps)
        wide = bits.astype(np.int64).reshape(-1)
        if stored.size == 8:
            wide ^= (wide >> 32) & 0xFFFFFFFF
        return wide
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


def _sum(bits: NDArray[np.int64], index: Unsigned, tensor: np.uint64) -> int:
    """Sum weight * (bits + constant) modulo 2^64. It overwrites `index` and `bits`."""
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
