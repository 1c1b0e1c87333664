"""Maps stored pieces to logical coordinates by their tensor's rule."""

from collections.abc import Iterator
from dataclasses import replace

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.index.box import Box, Shape, flat_boxes, row_major
from wattmesh.reconfig.universal.index.index import Segment
from wattmesh.reconfig.universal.index.rules import Replicate, Rule, Run, Shard


def logical_shape(rule: Rule, stored: Shape) -> Shape:
    """Return the logical shape of a tensor that was stored with shape `stored`.

    Raises:
        InputInvalid: the rule does not fit that shape.
    """
    if not stored or is_identity(rule):
        return stored
    _check_dim(rule, stored)
    return (*stored[: rule.dim], rule.logical_size(stored[rule.dim]), *stored[rule.dim + 1 :])


def place(rule: Rule, segment: Segment, stored: Shape, item_size: int) -> Iterator[Segment]:
    """Map a segment in stored coordinates to segments in logical ones.

    Args:
        rule: of the tensor.
        segment: in stored coordinates.
        stored: shape of the stored tensor; no rule changes a scalar.
        item_size: bytes of an element.

    Raises:
        InputInvalid: the rule does not fit that shape.
    """
    if not stored or is_identity(rule):
        yield segment
        return
    _check_dim(rule, stored)
    runs = rule.runs(stored[rule.dim])
    for piece in unflattened(segment, stored, item_size):
        for run in runs:
            if (part := _within_run(piece, run, rule.dim, item_size)) is not None:
                yield part


def logical_parts(rule: Rule, box: Box, stored: Shape) -> Iterator[tuple[Box, Box]]:
    """Yield the parts of a box in stored coordinates that are data by a rule, not padding.

    Args:
        rule: of the tensor.
        box: of the stored tensor.
        stored: shape of the stored tensor; no rule changes a scalar.

    Yields:
        A part's box in the logical tensor, and its box relative to the start of `box`.

    Raises:
        InputInvalid: the rule does not fit that shape.
    """
    if not stored or is_identity(rule):
        yield box, Box.whole(box.shape)
        return
    _check_dim(rule, stored)
    dim = rule.dim
    for run in rule.runs(stored[dim]):
        begin = max(box.start[dim], run.stored)
        end = min(box.stop[dim], run.stored + run.length)
        if begin < end and box.count:
            shape = (*box.shape[:dim], end - begin, *box.shape[dim + 1 :])
            logical = run.logical + begin - run.stored
            within = [0] * len(shape)
            within[dim] = begin - box.start[dim]
            start = (*box.start[:dim], logical, *box.start[dim + 1 :])
            yield Box(start, shape), Box(tuple(within), shape)


def is_identity(rule: Rule) -> bool:
    """Tell whether stored and logical coordinates are the same."""
    return isinstance(rule, Replicate | Shard)


def _check_dim(rule: Rule, stored: Shape) -> None:
    if not 0 <= rule.dim < len(stored):
        raise InputInvalid(f"rule {rule.kind}: dim {rule.dim} is none of a tensor {stored}.")


def unflattened(segment: Segment, stored: Shape, item_size: int) -> Iterator[Segment]:
    """Split a flat range into boxes of the stored tensor; a box stays as it is."""
    if not segment.flat:
        yield segment
        return
    offset = segment.offset
    for box in flat_boxes(stored, segment.box.start[0], segment.box.stop[0]):
        yield replace(segment, box=box, offset=offset, flat=False, digest=None)
        offset += box.count * item_size


def _within_run(segment: Segment, run: Run, dim: int, item_size: int) -> Segment | None:
    """The part of a stored box inside a run; None when there is none."""
    box = segment.box
    begin = max(box.start[dim], run.stored)
    end = min(box.stop[dim], run.stored + run.length)
    if begin >= end:
        return None
    strides = segment.strides if segment.strides is not None else row_major(box.shape)
    start, shape = list(box.start), list(box.shape)
    start[dim], shape[dim] = run.logical + begin - run.stored, end - begin
    return replace(
        segment,
        box=Box(tuple(start), tuple(shape)),
        offset=segment.offset + (begin - box.start[dim]) * strides[dim] * item_size,
        strides=strides,
        digest=segment.digest if shape == list(box.shape) else None,
    )
