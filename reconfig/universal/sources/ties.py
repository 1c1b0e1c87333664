"""Compares two tensors that are declared to be tied byte by byte, before one is dropped.

Invariant: only a few megabytes of each are in memory.
"""

from collections.abc import Iterable, Mapping

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.files.reader import Files, Reader
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Index

_SLAB_NBYTES = 4 << 20


def check(files: Files, both: Index, one: int, other: int) -> None:
    """Compare two entries of an index.

    Raises:
        InputInvalid: they differ in dtype, shape or any byte.
        CheckpointDamaged: bytes are missing.
    """
    left, right = both.entries[one], both.entries[other]
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        raise InputInvalid(
            f"{left.name} and {right.name} are declared to be tied, but the one is {left.dtype} "
            f"{left.shape}, the other {right.dtype} {right.shape}."
        )
    if box := first_difference(files, both, one, other):
        raise InputInvalid(
            f"{left.name} and {right.name} are declared to be tied, but differ in {box}."
        )


def first_difference(files: Files, both: Index, one: int, other: int) -> Box | None:
    """The first box in which two entries of equal dtype and shape differ; None if they do not."""
    reader, left = Reader(both, files), both.entries[one]
    for box in _slabs(left.shape, dtypes.size_of(left.dtype)):
        if reader.read(one, box).tobytes() != reader.read(other, box).tobytes():
            return box
    return None


def check_aliases(tied: Mapping[str, str], names: Iterable[str]) -> None:
    """Refuse a tie of what is a tensor of its own.

    Args:
        tied: alias -> name.
        names: of all tensors.

    Raises:
        InputInvalid: an alias is one of them.
    """
    if own := sorted(tied.keys() & set(names)):
        raise InputInvalid(
            f"{own[0]} is declared to be tied to {tied[own[0]]}, but is a tensor of its own here; "
            "leave the declaration out."
        )


def _slabs(shape: Shape, item_nbytes: int) -> list[Box]:
    """Split along the first dim into boxes of a few megabytes."""
    whole = Box.whole(shape)
    if not shape or not whole.count:
        return [whole] if whole.count else []
    row_nbytes = whole.count // shape[0] * item_nbytes
    step = max(1, _SLAB_NBYTES // row_nbytes)
    rest = (0,) * (len(shape) - 1)
    return [
        Box((at, *rest), (min(step, shape[0] - at), *shape[1:])) for at in range(0, shape[0], step)
    ]
