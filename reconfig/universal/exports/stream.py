"""Reads one tensor in row-major order, in pieces of bounded size."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.universal.files.reader import BUFFER, Reader
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box

Values = NDArray[np.generic]
Cast = Callable[[Values], Values]
"""Converts an array to one of another dtype, elementwise."""


def keep(values: Values) -> Values:
    """The identity cast."""
    return values


def blocks(box: Box, count: int) -> Iterator[Box]:
    """Split a box into boxes of at most `count` elements, in row-major order."""
    if box.count == 0:
        return
    if box.count <= count or not box.shape:
        yield box
        return
    # Find the first dim whose rows are small enough; the dims before it are iterated by index.
    dim, row = 0, box.count // box.shape[0]
    while row > count:
        dim += 1
        row //= box.shape[dim]
    rows = max(1, count // row)
    for outer in np.ndindex(*box.shape[:dim]):
        begin = tuple(a + n for a, n in zip(box.start, outer, strict=False))
        for at in range(0, box.shape[dim], rows):
            yield Box(
                (*begin, box.start[dim] + at, *box.start[dim + 1 :]),
                ((1,) * dim + (min(rows, box.shape[dim] - at), *box.shape[dim + 1 :])),
            )


def pieces(
    reader: Reader, row: int, box: Box | None = None, cast: Cast = keep, size: int = BUFFER
) -> Iterator[memoryview]:
    """Read a box of entry `row` (all of it by default), row-major, in pieces of `size` bytes.

    A piece is valid until the next one is requested: all share one buffer.

    Raises:
        CheckpointDamaged: bytes are missing.
    """
    entry = reader.index.entries[row]
    wanted = box or Box.whole(entry.shape)
    count = max(1, size // dtypes.size_of(entry.dtype))
    buffer = np.empty(min(count, wanted.count), dtype=dtypes.view_of(entry.dtype))
    for part in blocks(wanted, count):
        values = buffer[: part.count].reshape(part.shape)
        reader.read_into(row, part, values)
        yield np.ascontiguousarray(cast(values)).reshape(-1).view(np.uint8).data
