"""Assigns every tensor of an index to safetensors files of bounded size. Pure.

    data-00000.safetensors   header, padded with spaces so that data begin at a multiple of 4096;
                             whole tensors under "<state>:<name>", widest elements first

Invariant: a file is a plain safetensors file without holes. A tensor lies in one file, so a file
exceeds the limit only if its one tensor does.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.data_header import ALIGNMENT, data_header, header_line
from wattmesh.reconfig.universal.index.index import Column, Index, Segments, TensorEntry, from_table

MAX_FILE_BYTES = 4 << 30
SEGMENT_BYTES = 64 << 20
"""Longest segment: the unit that a worker copies and hashes."""
_DIGITS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class OutFile:
    """A data file to write. `header`: its first bytes, including the 8 bytes of length."""

    name: str
    header: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The data files, and an index over them with the entries of the original."""

    files: tuple[OutFile, ...]
    index: Index


def arrange(
    index: Index, *, max_file_bytes: int = MAX_FILE_BYTES, segment_bytes: int = SEGMENT_BYTES
) -> Arrangement:
    """Assign the tensors of an index to files, in its order."""
    dims = max([len(entry.shape) for entry in index.entries], default=0) or 1
    files: list[OutFile] = []
    tables: list[Column] = []
    for rows in _rows_by_file(index.entries, max_file_bytes):
        # Wide elements first, so that every tensor is aligned without holes; the sort is stable.
        rows.sort(key=lambda row: -dtypes.size_of(index.entries[row].dtype))
        ordered = [index.entries[row] for row in rows]
        header, offsets = data_header((key_of(each), each.dtype, each.shape) for each in ordered)
        at = len(header)
        name = f"data-{len(files):05d}.safetensors"
        for row, offset in zip(rows, offsets, strict=True):
            entry = index.entries[row]
            tables.append(_segments(entry, row, len(files), at + offset, segment_bytes))
        last = offsets[-1] + index.entries[rows[-1]].nbytes
        files.append(OutFile(name=name, header=header, size=at + last))
    return Arrangement(
        files=tuple(files),
        index=Index(
            entries=index.entries,
            files=tuple(each.name for each in files),
            segments=_sorted(tables, dims),
            tied=index.tied,
        ),
    )


def key_of(entry: TensorEntry) -> str:
    """The key of a tensor in a data file."""
    return f"{entry.state}:{entry.name}"


def _rows_by_file(entries: Sequence[TensorEntry], limit: int) -> Iterator[list[int]]:
    group: list[int] = []
    used = 0
    for row, entry in enumerate(entries):
        # Offsets of 19 digits bound the length of the header's line from above.
        need = (
            entry.nbytes
            + len(json.dumps(header_line(entry.dtype, entry.shape, _DIGITS)))
            + len(key_of(entry)) * 6
            + 8
        )
        if group and used + need > limit - 2 * ALIGNMENT:
            yield group
            group, used = [], 0
        group.append(row)
        used += need
    if group:
        yield group


def _segments(entry: TensorEntry, row: int, file: int, offset: int, limit: int) -> Column:
    """Split an entry into flat ranges: columns of COLUMNS, the last three one wide."""
    size = dtypes.size_of(entry.dtype)
    count, each = entry.nbytes // size, max(1, limit // size)
    begin = np.arange(0, count, each, dtype=np.int64)
    length = np.minimum(each, count - begin)
    same = np.ones_like(begin)
    return np.stack(
        [same * row, same * file, offset + begin * size, length * size, same, begin, length, same],
        axis=1,
    )


def _sorted(tables: Sequence[Column], dims: int) -> Segments:
    """Join all tables in the order of the entries, with columns `dims` wide."""
    narrow = np.concatenate([*tables, np.zeros((0, 8), dtype=np.int64)])
    narrow = narrow[np.argsort(narrow[:, 0], kind="stable")]
    table = np.zeros((len(narrow), 5 + 3 * dims), dtype=np.int64)
    table[:, :5] = narrow[:, :5]
    table[:, 5 + dims : 5 + 2 * dims] = 1
    for at in range(3):
        table[:, 5 + at * dims] = narrow[:, 5 + at]
    return from_table(table, dims)
