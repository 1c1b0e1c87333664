"""The index: for every (tensor, state) its dtype, its shape and the byte segments that hold it.

Segments are rows of int64 columns, sorted by entry. A row means: `nbytes` bytes of file `file` from
`offset` on hold the elements of a box of the entry, with `strides`.

Invariant: coordinates are logical. Layout rules were applied when the index was built; an entry
keeps its rule only as a record of how the source was sharded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, row_major
from wattmesh.reconfig.universal.index.rules import Replicate, Rule

Column = NDArray[np.int64]

PARAM = "param"
"""The state of the model's own tensors; other states are slots of an optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One logical tensor in one state.

    Attributes:
        name: the tensor's name, without a framework's prefix, with global layer numbers.
        state: "param", or the name of the slot ("exp_avg", "momentum_buffer", "step").
        dtype: torch's name.
        shape: of the unsharded, unpadded tensor.
        rule: how the source was sharded.
    """

    name: str
    state: str
    dtype: str
    shape: tuple[int, ...]
    rule: Rule = field(default_factory=Replicate)

    @property
    def key(self) -> tuple[str, str]:
        """The entry's unique key in its index."""
        return self.name, self.state

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return Box.whole(self.shape).count * dtypes.size_of(self.dtype)

    def __str__(self) -> str:
        """Format for error messages."""
        return f"{self.name} ({self.state})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Columns of n segments; boxes have k dims, as many as the widest entry (flat ones: one).

    Attributes:
        entry, file: row numbers in the index's `entries` and `files`.
        offset, nbytes: the byte range in the file.
        flat: 1 where the box is of the flattened tensor.
        start, shape: the box, n x k; unused dims have start 0 and shape 1.
        strides: strides in the file, in elements, n x k; unused dims have 0.
        digest: xxh3_128 of the bytes, n x 2, high half first (as signed integers); or None.
    """

    entry: Column
    file: Column
    offset: Column
    nbytes: Column
    flat: Column
    start: Column
    shape: Column
    strides: Column
    digest: Column | None = None

    def __len__(self) -> int:
        """Number of segments."""
        return len(self.entry)

    @property
    def dims(self) -> int:
        """k, the width of the box columns."""
        return int(self.start.shape[1])

    def take(self, rows: Any) -> "Segments":
        """Select rows by indices, slice or mask."""
        digest = None if self.digest is None else self.digest[rows]
        columns = (getattr(self, name)[rows] for name in COLUMNS)
        return Segments(**dict(zip(COLUMNS, columns, strict=True)), digest=digest)

    def box(self, row: int, entry: TensorEntry) -> Box:
        """The box of one segment; of the flattened tensor for a flat one."""
        dims = 1 if self.flat[row] else len(entry.shape)
        return Box(tuple(self.start[row, :dims].tolist()), tuple(self.shape[row, :dims].tolist()))


COLUMNS = ("entry", "file", "offset", "nbytes", "flat", "start", "shape", "strides")
"""The columns that every index has, in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """All tensors of a checkpoint.

    Attributes:
        entries: unique by (name, state), in the order of the data.
        files: relative paths below the checkpoint folder, "/" between parts.
        segments: sorted by entry.
        tied: alias -> name: a second name of a tensor that is stored once, for all its states.
    """

    entries: tuple[TensorEntry, ...]
    files: tuple[str, ...]
    segments: Segments
    tied: Mapping[str, str] = field(default_factory=dict)

    def row_of(self, name: str, state: str = PARAM) -> int:
        """Row of an entry, by its name or an alias of it.

        Raises:
            InputInvalid: the checkpoint does not hold it.
        """
        found = self.rows.get((self.tied.get(name, name), state))
        if found is None:
            raise InputInvalid(f"the checkpoint holds no {name} ({state}).")
        return found

    @cached_property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of all entries by (name, state)."""
        return {entry.key: row for row, entry in enumerate(self.entries)}

    def segments_of(self, row: int) -> slice:
        """Rows of an entry's segments."""
        first, last = np.searchsorted(self.segments.entry, [row, row + 1])
        return slice(int(first), int(last))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment, for building small indexes.

    Attributes:
        entry: (name, state).
        file: relative path.
        box: logical, or of the flattened tensor.
        strides: in elements; None for row-major.
        digest: 16 bytes of xxh3_128, big-endian; None when unknown.
    """

    entry: tuple[str, str]
    file: str
    offset: int
    box: Box
    flat: bool = False
    strides: tuple[int, ...] | None = None
    digest: bytes | None = None


def build(
    entries: Iterable[TensorEntry],
    segments: Sequence[Segment],
    tied: Mapping[str, str] | None = None,
) -> Index:
    """Build an index; the digests are kept only if every segment has one.

    Raises:
        InputInvalid: two entries have the same key, or a segment has no entry.
    """
    known = tuple(entries)
    number = {entry.key: row for row, entry in enumerate(known)}
    if len(number) != len(known):
        twice = next(e for i, e in enumerate(known) if number[e.key] != i)
        raise InputInvalid(f"two tensors are both called {twice}; one would overwrite the other.")
    files = tuple(dict.fromkeys(each.file for each in segments))
    file_number = {name: row for row, name in enumerate(files)}
    dims = max([len(entry.shape) for entry in known] + [1])
    lines = [_line(each, number, file_number, known, dims) for each in segments]
    table = np.array(lines, dtype=np.int64).reshape(len(lines), 5 + 3 * dims)
    digest = None
    if segments and all(each.digest is not None for each in segments):
        joined = b"".join(each.digest or b"" for each in segments)
        digest = np.frombuffer(joined, ">i8").astype(np.int64).reshape(-1, 2)
    return Index(
        entries=known,
        files=files,
        segments=sort_by_entry(from_table(table, dims, digest)),
        tied=dict(tied or {}),
    )


def from_table(table: Column, dims: int, digest: Column | None = None) -> Segments:
    """Wrap the columns of an n x (5 + 3 dims) table: COLUMNS, the last three `dims` wide."""
    columns: dict[str, Any] = {name: table[:, at] for at, name in enumerate(COLUMNS[:5])}
    for at, name in enumerate(COLUMNS[5:]):
        columns[name] = table[:, 5 + at * dims : 5 + (at + 1) * dims]
    return Segments(**columns, digest=digest)


def sort_by_entry(segments: Segments) -> Segments:
    """Sort segments by entry, stably."""
    if bool(np.all(segments.entry[1:] >= segments.entry[:-1])):
        return segments
    return segments.take(np.argsort(segments.entry, kind="stable"))


def _line(
    segment: Segment,
    number: Mapping[tuple[str, str], int],
    file_number: Mapping[str, int],
    entries: Sequence[TensorEntry],
    dims: int,
) -> list[int]:
    row = number.get(segment.entry)
    if row is None:
        raise InputInvalid(f"a segment belongs to {segment.entry}, which the index does not list.")
    box, size = segment.box, dtypes.size_of(entries[row].dtype)
    strides = segment.strides if segment.strides is not None else row_major(box.shape)
    span = sum((n - 1) * step for n, step in zip(box.shape, strides, strict=True)) + 1
    nbytes = size * span if box.count else 0
    rest = dims - len(box.shape)
    return [
        row,
        file_number[segment.file],
        segment.offset,
        nbytes,
        int(segment.flat),
        *box.start,
        *([0] * rest),
        *box.shape,
        *([1] * rest),
        *strides,
        *([0] * rest),
    ]
