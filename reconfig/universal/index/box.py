"""Boxes: hyperrectangles of a tensor's elements.

Invariant: a box is a product of half-open ranges, one per dim, with its elements in row-major
order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """`shape` elements from `start` on, per dim. A scalar's box has no dims and one element."""

    start: Shape
    shape: Shape

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        """The box of a whole tensor of `shape`."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> Shape:
        """One past the last index, per dim."""
        return tuple(a + n for a, n in zip(self.start, self.shape, strict=True))

    def within(self, shape: Sequence[int]) -> bool:
        """Tell whether the box lies inside a tensor of `shape`."""
        return len(shape) == len(self.start) and all(
            a >= 0 and n >= 0 and a + n <= size
            for a, n, size in zip(self.start, self.shape, shape, strict=True)
        )

    def intersect(self, other: "Box") -> "Box | None":
        """The intersection; None when it is empty."""
        start = tuple(max(a, b) for a, b in zip(self.start, other.start, strict=True))
        stop = tuple(min(a, b) for a, b in zip(self.stop, other.stop, strict=True))
        shape = tuple(b - a for a, b in zip(start, stop, strict=True))
        return Box(start, shape) if all(n > 0 for n in shape) else None

    def __str__(self) -> str:
        """Format as an index expression: [0:4, 2:6]."""
        ranges = (f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))
        return f"[{', '.join(ranges)}]"


def row_major(shape: Sequence[int]) -> Shape:
    """Strides in elements of a contiguous tensor of `shape`."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def flat_boxes(shape: Sequence[int], begin: int, end: int) -> list[Box]:
    """Split the flat range [begin, end) of a tensor of `shape` into boxes, in row-major order.

    There are at most 2n - 1 boxes for n dims: per dim part of a row, whole rows, part of a row.
    Each box is contiguous in the flattened tensor.
    """
    if begin >= end:
        return []
    if not shape:
        return [Box((), ())]
    inner = math.prod(shape[1:])
    first, last = -(-begin // inner), end // inner
    if first > last:  # within one row
        row = begin // inner
        return _in_row(shape, row, begin - row * inner, end - row * inner)
    boxes = _in_row(shape, first - 1, begin - (first - 1) * inner, inner) if begin % inner else []
    if last > first:
        start, size = (first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:])
        boxes.append(Box(start, size))
    return boxes + (_in_row(shape, last, 0, end - last * inner) if end % inner else [])


def _in_row(shape: Sequence[int], row: int, begin: int, end: int) -> list[Box]:
    """Boxes of [begin, end) within one index of the first dim."""
    return [Box((row, *each.start), (1, *each.shape)) for each in flat_boxes(shape[1:], begin, end)]
