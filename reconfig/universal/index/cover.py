"""Proves that an index holds every element of every tensor exactly once, replicas excepted.

Boxes inside a tensor that do not overlap and whose volumes add up to its volume cover it. Two equal
boxes are replicas and count once; any other overlap is an error.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Column, Index, TensorEntry
from wattmesh.reconfig.universal.index.planner import Planner

GAP_BOXES = 512
"""Above this many boxes only the size of a gap is reported, because locating it takes too long."""


def prove(index: Index, allowance: Allowance | None = None) -> None:
    """Prove exact cover, within the CPU time of the allowance, if one is given.

    Raises:
        InputInvalid: elements are missing, stored twice, or outside; the message names the tensor
            and the box.
    """
    _prove_sorted(index)
    proven = _prove_flat(index) | _are_whole(index)
    planner = Planner(index)
    for row in np.flatnonzero(~proven).tolist():
        _prove_boxes(index, planner, row, allowance)


def _prove_sorted(index: Index) -> None:
    segments = index.segments
    if len(segments) and not 0 <= segments.entry[0] <= segments.entry[-1] < len(index.entries):
        raise InputInvalid("the index has segments of tensors that it does not list.")
    if bool((segments.entry[1:] < segments.entry[:-1]).any()):
        raise InputInvalid("the index's segments are not in the order of its tensors.")
    if len(segments) and not 0 <= segments.file.min() <= segments.file.max() < len(index.files):
        raise InputInvalid("the index has segments in files that it does not list.")


def _prove_flat(index: Index) -> NDArray[np.bool_]:
    """Prove all entries that consist of flat ranges; return which they are (n of bool)."""
    segments = index.segments
    count = len(index.entries)
    volume = np.array([Box.whole(entry.shape).count for entry in index.entries], dtype=np.int64)
    present = np.bincount(segments.entry, minlength=count)
    flat = np.bincount(segments.entry[segments.flat == 1], minlength=count)
    flat_only: NDArray[np.bool_] = flat == present
    rows = np.flatnonzero(flat_only[segments.entry])
    entry, begin = segments.entry[rows], segments.start[rows, 0]
    end = begin + segments.shape[rows, 0]
    order = np.lexsort((end, begin, entry))
    entry, begin, end = entry[order], begin[order], end[order]
    fresh = np.ones(len(entry), dtype=bool)
    fresh[1:] = (entry[1:] != entry[:-1]) | (begin[1:] != begin[:-1]) | (end[1:] != end[:-1])
    entry, begin, end = entry[fresh], begin[fresh], end[fresh]
    expected = np.zeros(len(entry), dtype=np.int64)
    expected[1:] = np.where(entry[1:] == entry[:-1], end[:-1], 0)
    wrong = np.flatnonzero((begin != expected) | (end < begin) | (end > volume[entry]))
    if len(wrong):
        at = int(wrong[0])
        _refuse_flat(index.entries[int(entry[at])], int(expected[at]), int(begin[at]), int(end[at]))
    last = np.ones(len(entry), dtype=bool)
    last[:-1] = entry[1:] != entry[:-1]
    reached = np.zeros(count, dtype=np.int64)
    reached[entry[last]] = end[last]
    short = np.flatnonzero(flat_only & (reached != volume))
    if len(short):
        row = int(short[0])
        _refuse_flat(index.entries[row], int(reached[row]), int(volume[row]), int(volume[row]))
    return flat_only


def _are_whole(index: Index) -> NDArray[np.bool_]:
    """Find the entries with a single box, that of the whole tensor: the common case."""
    segments = index.segments
    shapes = np.ones((len(index.entries), segments.dims), dtype=np.int64)
    for row, entry in enumerate(index.entries):
        # If every segment is flat, the columns may have fewer dims than a tensor.
        shapes[row, : len(entry.shape)] = entry.shape if len(entry.shape) <= segments.dims else -1
    is_whole = (
        (segments.flat == 0)
        & (segments.start == 0).all(axis=1)
        & (segments.shape == shapes[segments.entry]).all(axis=1)
    )
    present = np.bincount(segments.entry, minlength=len(index.entries))
    whole = np.bincount(segments.entry[is_whole], minlength=len(index.entries))
    proven: NDArray[np.bool_] = (present == 1) & (whole == 1)
    return proven


def _refuse_flat(entry: TensorEntry, expected: int, begin: int, end: int) -> None:
    if begin > expected:
        raise InputInvalid(
            f"{entry}: elements {expected} to {begin} of {Box.whole(entry.shape).count} are "
            "missing from the checkpoint; it is incomplete, or a layout rule is missing."
        )
    raise InputInvalid(
        f"{entry}: elements {begin} to {end} are stored again or lie outside its "
        f"{Box.whole(entry.shape).count} elements; two pieces overlap that are not replicas."
    )


def _prove_boxes(index: Index, planner: Planner, row: int, allowance: Allowance | None) -> None:
    """Prove one entry that has boxes."""
    entry = index.entries[row]
    table = planner.table(row)
    _prove_cover(
        str(entry), entry.shape, table.start, table.stop, dim=table.dim, allowance=allowance
    )


def prove_boxes(name: str, shape: Shape, boxes: Collection[Box]) -> None:
    """Prove that distinct boxes cover a tensor of `shape` exactly.

    Raises:
        InputInvalid: elements are in no box, in two, or outside; the message begins with `name` and
            names a box.
    """
    start = np.array([each.start for each in boxes], dtype=np.int64).reshape(len(boxes), len(shape))
    stop = np.array([each.stop for each in boxes], dtype=np.int64).reshape(len(boxes), len(shape))
    if not shape:
        _prove_cover(name, shape, start, stop, dim=0)
        return
    # Sort along the dim with the most distinct starts, so that each box is compared with few
    # others.
    dim = max(range(len(shape)), key=lambda at: len(np.unique(start[:, at])))
    order = np.argsort(start[:, dim], kind="stable")
    _prove_cover(name, shape, start[order], stop[order], dim=dim)


def _prove_cover(
    name: str,
    shape: Shape,
    start: Column,
    stop: Column,
    *,
    dim: int,
    allowance: Allowance | None = None,
) -> None:
    """Prove boxes that are sorted by their start along `dim`."""
    limit = np.array(shape, dtype=np.int64)
    outside = ((start < 0) | (stop > limit) | (stop < start)).any(axis=1)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise InputInvalid(f"{name}: {_box(start, stop, at)} is outside {shape}.")
    holds = (stop > start).all(axis=1)
    start, stop = start[holds], stop[holds]
    _refuse_overlap(name, start, stop, dim, allowance)
    volume = int((stop - start).prod(axis=1).sum())
    whole = Box.whole(shape)
    if volume != whole.count:
        raise InputInvalid(
            f"{name}: {_gap(whole, start, stop, whole.count - volume)} missing from the "
            "checkpoint; it is incomplete, or a layout rule is missing."
        )


def _refuse_overlap(
    name: str, start: Column, stop: Column, dim: int, allowance: Allowance | None
) -> None:
    """Compare each box with those that start before its end, along the sorted dim."""
    if len(start) < 2 or not start.shape[1]:
        return
    until = np.searchsorted(start[:, dim], stop[:, dim], side="left")
    for at in np.flatnonzero(until > np.arange(len(start)) + 1).tolist():
        if allowance is not None and at % 256 == 0:
            allowance.look(name)
        others = slice(at + 1, int(until[at]))
        meets = (start[others] < stop[at]) & (stop[others] > start[at])
        found = np.flatnonzero(meets.all(axis=1))
        if len(found):
            raise InputInvalid(
                f"{name}: {_box(start, stop, at)} and "
                f"{_box(start, stop, at + 1 + int(found[0]))} overlap and are not replicas; either "
                "two parts share a name or a layout rule is missing."
            )


def _gap(whole: Box, start: Column, stop: Column, missing: int) -> str:
    """Name one uncovered box."""
    if len(start) > GAP_BOXES:
        return f"{missing} of {whole.count} elements are"
    left = [whole]
    for at in range(len(start)):
        taken = _box(start, stop, at)
        left = [part for box in left for part in _without(box, taken)]
    return f"{left[0]} is"


def _without(box: Box, taken: Box) -> list[Box]:
    """A box minus another one: at most two boxes per dim."""
    common = box.intersect(taken)
    if common is None:
        return [box]
    parts = []
    start, shape = list(box.start), list(box.shape)
    for dim, (first, last) in enumerate(zip(common.start, common.stop, strict=True)):
        for begin, end in ((start[dim], first), (last, start[dim] + shape[dim])):
            if begin < end:
                before = (*start[:dim], begin, *start[dim + 1 :])
                size = (*shape[:dim], end - begin, *shape[dim + 1 :])
                parts.append(Box(before, size))
        start[dim], shape[dim] = first, last - first
    return parts


def _box(start: Column, stop: Column, at: int) -> Box:
    return Box(tuple(start[at].tolist()), tuple((stop[at] - start[at]).tolist()))
