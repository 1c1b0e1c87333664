"""Finds the stored bytes of a requested box.

The segments of an entry are sorted along the dim with the most distinct starts, so a box finds its
segments by bisection: O((L + C) log C) for L requested boxes over C segments.

Invariant: the pieces of a box are disjoint and cover it; replicas are used once.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape, flat_boxes, row_major
from wattmesh.reconfig.universal.index.index import Column, Index, Segments

FEW = 64
"""Up to this many segments a loop is faster than sorting rows with NumPy."""


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """The location of a part of a requested box.

    Attributes:
        box: logical.
        file: number in the index's files.
        offset: byte of the first element.
        strides: in elements.
    """

    box: Box
    file: int
    offset: int
    strides: Shape


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """An entry's segments as boxes of its own dims, sorted by `dim`, without replicas.

    Attributes:
        reach: running maximum of `stop` along `dim`, so that bisection is correct for any boxes.
    """

    dim: int
    start: Column
    stop: Column
    strides: Column
    offset: Column
    segment: Column
    reach: Column


class Planner:
    """Finds pieces in one index, and caches its sorted tables."""

    def __init__(self, index: Index) -> None:
        """Prepare; an entry is sorted when it is first requested."""
        self.index = index
        self._tables: dict[int, SegmentTable] = {}

    def pieces(self, row: int, box: Box) -> list[StoredPiece]:
        """Find the stored parts of `box` of entry `row`, in the order of their start.

        Raises:
            CheckpointDamaged: the index does not cover the box, because its cover was never proven.
        """
        if box.count == 0:
            return []
        only = self._only_one(row, box)
        if only is not None:
            return [only]
        table = self.table(row)
        found = self._pieces_of(table, row, box)
        if sum(each.box.count for each in found) != box.count:
            raise CheckpointDamaged(
                f"{self.index.entries[row]}: the index does not cover {box} exactly once."
            )
        return found

    def _only_one(self, row: int, box: Box) -> StoredPiece | None:
        """Find the stored box that holds all of `box`, where the entry has no other."""
        segments, rows = self.index.segments, self.index.segments_of(row)
        at = rows.start
        if rows.stop - at != 1 or segments.flat[at]:
            return None
        stored = segments.box(at, self.index.entries[row])
        skipped = tuple(a - b for a, b in zip(box.start, stored.start, strict=True))
        if not Box(skipped, box.shape).within(stored.shape):
            return None
        strides = tuple(segments.strides[at, : len(box.shape)].tolist())
        size = dtypes.size_of(self.index.entries[row].dtype)
        return StoredPiece(
            box=box,
            file=int(segments.file[at]),
            offset=int(segments.offset[at])
            + size * sum(a * b for a, b in zip(skipped, strides, strict=True)),
            strides=strides,
        )

    def table(self, row: int) -> SegmentTable:
        """Return the sorted segments of an entry."""
        if row not in self._tables:
            self._tables[row] = _table(self.index, row)
        return self._tables[row]

    def _pieces_of(self, table: SegmentTable, row: int, box: Box) -> list[StoredPiece]:
        if box.shape:
            low, high = box.start[table.dim], box.stop[table.dim]
            first = int(np.searchsorted(table.reach, low, side="right"))
            last = int(np.searchsorted(table.start[:, table.dim], high, side="left"))
        else:
            first, last = 0, len(table.start)
        rows = slice(first, last)
        wanted_start = np.array(box.start, dtype=np.int64)
        start = np.maximum(table.start[rows], wanted_start)
        stop = np.minimum(table.stop[rows], np.array(box.stop, dtype=np.int64))
        meets = np.flatnonzero((stop > start).all(axis=1))
        size = dtypes.size_of(self.index.entries[row].dtype)
        skipped = ((start - table.start[rows]) * table.strides[rows]).sum(axis=1) * size
        offset = table.offset[rows] + skipped
        segments = self.index.segments
        return [
            StoredPiece(
                box=Box(tuple(start[at].tolist()), tuple((stop[at] - start[at]).tolist())),
                file=int(segments.file[table.segment[first + at]]),
                offset=int(offset[at]),
                strides=tuple(table.strides[first + at].tolist()),
            )
            for at in meets.tolist()
        ]


def _table(index: Index, row: int) -> SegmentTable:
    """Sort an entry's segments, with flat ranges split into boxes."""
    entry = index.entries[row]
    dims = len(entry.shape)
    rows = index.segments_of(row)
    flat = index.segments.flat[rows] == 1
    number = np.arange(rows.start, rows.stop, dtype=np.int64)
    if flat.any():
        boxed = _boxed(index.segments, number[~flat], dims)
        split = _unflattened(index, entry.shape, number[flat], row)
        columns = [np.concatenate(both) for both in zip(boxed, split, strict=True)]
    else:
        columns = list(_boxed(index.segments, rows, dims))
    start, shape, strides, offset, number = columns
    dim, order = (0, slice(0, 1)) if dims == 0 else _sorted(start, shape)
    start, stop = start[order], (start + shape)[order]
    reach = np.maximum.accumulate(stop[:, dim]) if dims else np.zeros(0, dtype=np.int64)
    return SegmentTable(dim, start, stop, strides[order], offset[order], number[order], reach)


def _sorted(start: Column, shape: Column) -> tuple[int, Column]:
    """The dim with the most distinct starts, and the distinct boxes' rows sorted along it."""
    if len(start) > FEW:
        keep = np.unique(np.hstack([start, shape]), axis=0, return_index=True)[1]
        dim = int(np.argmax([len(np.unique(column)) for column in start[keep].T]))
        return dim, keep[np.argsort(start[keep, dim], kind="stable")]
    starts = start.tolist()
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for row, (begin, size) in enumerate(zip(starts, shape.tolist(), strict=True)):
        first.setdefault((tuple(begin), tuple(size)), row)
    distinct = [len({starts[row][dim] for row in first.values()}) for dim in range(start.shape[1])]
    dim = distinct.index(max(distinct))
    order = sorted(first.values(), key=lambda row: starts[row][dim])
    return dim, np.array(order, dtype=np.int64)


def _boxed(segments: Segments, rows: Column | slice, dims: int) -> tuple[Column, ...]:
    wide = (segments.start, segments.shape, segments.strides)
    number = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    return (*(column[rows, :dims] for column in wide), segments.offset[rows], number)


def _unflattened(index: Index, shape: Shape, rows: Column, row: int) -> tuple[Column, ...]:
    """Columns of the boxes that flat segments split into."""
    item_size = dtypes.size_of(index.entries[row].dtype)
    starts, shapes, strides, offsets, numbers = [], [], [], [], []
    for each in rows.tolist():
        offset = int(index.segments.offset[each])
        begin = int(index.segments.start[each, 0])
        for box in flat_boxes(shape, begin, begin + int(index.segments.shape[each, 0])):
            starts.append(box.start)
            shapes.append(box.shape)
            strides.append(row_major(box.shape))
            offsets.append(offset)
            numbers.append(each)
            offset += box.count * item_size
    dims = len(shape)
    size = (len(offsets), dims)
    wide = (np.array(each, dtype=np.int64).reshape(size) for each in (starts, shapes, strides))
    narrow = (np.array(each, dtype=np.int64) for each in (offsets, numbers))
    return (*wide, *narrow)
