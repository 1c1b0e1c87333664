"""Brute force: what the algebra must agree with, element by element."""

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Index, Segment, TensorEntry, build

Cut = tuple[Box, ...]

SHAPES = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


def elements(box: Box, shape: Shape) -> list[int]:
    """Row-major numbers, in a tensor of `shape`, of a box's elements."""
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    picked = numbers[tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))]
    return [int(each) for each in np.asarray(picked).ravel()]


def covers_once(boxes: Cut, shape: Shape) -> bool:
    """Whether every element is in exactly one of the distinct boxes."""
    count = Counter(each for box in set(boxes) for each in elements(box, shape))
    total = int(np.prod(shape, dtype=np.int64))
    return len(count) == total and set(count.values()) <= {1}


@st.composite
def cuts(draw: st.DrawFn, shape: Shape) -> Cut:
    """A random tiling of a tensor by boxes: halve some box, several times."""
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(boxes) - 1))
        dims = [dim for dim, size in enumerate(boxes[at].shape) if size > 1]
        if not dims:
            continue
        box, dim = boxes.pop(at), draw(st.sampled_from(dims))
        middle = draw(st.integers(1, box.shape[dim] - 1))
        boxes += [_part(box, dim, 0, middle), _part(box, dim, middle, box.shape[dim])]
    return tuple(draw(st.permutations(boxes)))


@st.composite
def boxes_in(draw: st.DrawFn, shape: Shape) -> Box:
    """Any box within a tensor, empty ones too."""
    start = [draw(st.integers(0, size)) for size in shape]
    return Box(
        tuple(start),
        tuple(draw(st.integers(0, n - a)) for n, a in zip(shape, start, strict=True)),
    )


def _part(box: Box, dim: int, begin: int, end: int) -> Box:
    start, shape = list(box.start), list(box.shape)
    start[dim], shape[dim] = box.start[dim] + begin, end - begin
    return Box(tuple(start), tuple(shape))


@dataclass(frozen=True)
class Stored:
    """A tensor cut in pieces, and one file's bytes that hold them, in that order."""

    array: NDArray[np.float32]
    index: Index
    data: bytes


def stored(shape: Shape, cut: Cut, flat_cuts: tuple[int, ...] | None = None) -> Stored:
    """Store a tensor of `shape` piece by piece; or as flat ranges between `flat_cuts`."""
    count = int(np.prod(shape, dtype=np.int64))
    array = np.arange(count, dtype=np.float32).reshape(shape)
    entry = TensorEntry(name="w", state="param", dtype="float32", shape=shape)
    segments, data = [], b"\xff" * 3
    if flat_cuts is not None:
        edges = sorted({0, count, *(each for each in flat_cuts if 0 < each < count)})
        for begin, end in itertools.pairwise(edges):
            box = Box((begin,), (end - begin,))
            segments.append(
                Segment(entry=entry.key, file="f", offset=len(data), box=box, flat=True)
            )
            data += array.ravel()[begin:end].tobytes()
    else:
        for box in cut:
            where = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
            segments.append(Segment(entry=entry.key, file="f", offset=len(data), box=box))
            data += array[where].tobytes()
    return Stored(array, build([entry], segments), data)
