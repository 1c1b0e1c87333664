"""Checks by digest that copies of the same elements are equal, before one of them is used.

Invariant: only equal boxes are replicas; `cover.prove` has refused any other overlap.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports.stream import pieces
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index.box import Box
from wattmesh.reconfig.universal.index.index import Column, Index


def differing(index: Index, folder: Path) -> list[int]:
    """Rows of segments whose bytes differ from an earlier replica.

    Raises:
        CheckpointDamaged: bytes cannot be read.
    """
    found = []
    with Files(folder) as files:
        for rows in groups(index):
            first, *others = (_digest(index, files, row) for row in rows)
            found += [row for row, digest in zip(rows[1:], others, strict=True) if digest != first]
    return found


def compare(index: Index, folder: Path) -> None:
    """Refuse a source whose replicas differ.

    Raises:
        InputInvalid: two copies differ; the tensor, the box and the files are named.
    """
    for row in differing(index, folder):
        entry = index.entries[int(index.segments.entry[row])]
        name = index.files[int(index.segments.file[row])]
        raise InputInvalid(
            f"{entry}: the copy of {index.segments.box(row, entry)} in {name} differs from another "
            "copy of the same box; either replicas have drifted apart or a layout rule is missing."
        )


def groups(index: Index) -> Iterator[list[int]]:
    """Rows of equal boxes of one tensor, two or more per group."""
    segments = index.segments
    stored = np.bincount(
        segments.entry, weights=segments.shape.prod(axis=1), minlength=len(index.entries)
    )
    whole = np.array([Box.whole(entry.shape).count for entry in index.entries], dtype=np.float64)
    # A covered tensor that stores no more elements than it has, as nearly all do, has no replicas.
    for number in np.flatnonzero(stored > whole).tolist():
        rows = index.segments_of(number)
        part = segments.take(rows)
        boxes: Column = np.column_stack([part.flat, part.start, part.shape])
        _, which = np.unique(boxes, axis=0, return_inverse=True)
        for group in range(int(which.max(initial=-1)) + 1):
            same = np.flatnonzero(which.ravel() == group)
            if len(same) > 1:
                yield [rows.start + int(each) for each in same]


def _digest(index: Index, files: Files, row: int) -> bytes:
    """Hash a segment's elements in row-major order, whatever its strides."""
    entry = index.entries[int(index.segments.entry[row])]
    box = index.segments.box(row, entry)
    if index.segments.flat[row]:
        entry = replace(entry, shape=box.stop)
    alone = index.segments.take(slice(row, row + 1))
    alone = replace(alone, entry=np.zeros(1, dtype=np.int64))
    reader = Reader(Index(entries=(entry,), files=index.files, segments=alone), files)
    hasher = xxhash.xxh3_128()
    for part in pieces(reader, 0, box):
        hasher.update(part)
    return hasher.digest()
