"""Puts the pieces of a sharded tensor together. Pure (numpy).

A tensor on a mesh was sharded along one axis after the other. An axis that sharded a dim after
other axes did (FSDP over tensor parallel: torch's strided sharding) is undone before those; the
others are undone from the last axis to the first.

Invariant: replicas are compared bit by bit before one of them is used.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid

Array = NDArray[Any]
Place = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How one rank's piece was cut out of a tensor.

    Attributes:
        dtype: the dtype in the job.
        local: shape of the piece.
        mesh: the ranks that share the tensor.
        sizes: sizes of the mesh's axes; () for a tensor of this rank alone.
        place: this rank's coordinate.
        axes: per mesh axis the dim that it shards (-1: none, replicas), and torch's split factor:
            into how many parts later axes had sharded that dim before (1: none).
    """

    dtype: str
    local: tuple[int, ...]
    mesh: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    place: Place = ()
    axes: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Decode one from JSON."""
        return cls(
            dtype=fields["dtype"],
            local=tuple(fields["local"]),
            mesh=tuple(fields["mesh"]),
            sizes=tuple(fields["sizes"]),
            place=tuple(fields["place"]),
            axes=tuple((dim, before) for dim, before in fields["axes"]),
        )


def put_together(pieces: Sequence[tuple[Cut, Array]]) -> tuple[Array, bool]:
    """Return the whole tensor, and whether all replicas agree.

    Raises:
        InputInvalid: a piece is missing, or the order of the cuts is not known.
    """
    by_mesh: dict[tuple[int, ...], list[tuple[Cut, Array]]] = {}
    for cut, array in pieces:
        by_mesh.setdefault(cut.mesh, []).append((cut, array))
    found = [_one_mesh(each) for each in by_mesh.values()]
    first, agreed = found[0][0], len({cut.dtype for cut, _ in pieces}) == 1
    for array, alike in found:
        agreed = agreed and alike and _same(array, first)
    return first, agreed


def _one_mesh(pieces: Sequence[tuple[Cut, Array]]) -> tuple[Array, bool]:
    cut = pieces[0][0]
    if len(pieces) != math.prod(cut.sizes):
        raise InputInvalid(f"equivalence: {len(pieces)} pieces of a tensor on a mesh {cut.sizes}")
    grid = {each.place: array for each, array in pieces}
    agreed = True
    for axis in _order(cut):
        dim = cut.axes[axis][0]
        merged = {}
        for place in grid:
            if place[axis]:
                continue
            row = [grid[(*place[:axis], n, *place[axis + 1 :])] for n in range(cut.sizes[axis])]
            if dim >= 0:
                merged[place] = np.concatenate(row, axis=dim)
            else:
                agreed = agreed and all(_same(each, row[0]) for each in row)
                merged[place] = row[0]
        grid = merged
    return next(iter(grid.values())), agreed


def _order(cut: Cut) -> list[int]:
    """The axes in the order in which their cuts are undone."""
    for axis, (dim, before) in enumerate(cut.axes):
        later = [
            size
            for (other, _), size in zip(cut.axes[axis + 1 :], cut.sizes[axis + 1 :], strict=True)
            if other == dim
        ]
        if before not in (1, math.prod(later)):
            raise InputInvalid(
                f"equivalence: an axis cuts dim {dim} after {before} parts, but later axes make "
                f"{math.prod(later)}"
            )
    strided = [axis for axis, (_, before) in enumerate(cut.axes) if before > 1]
    rest = [axis for axis, (_, before) in enumerate(cut.axes) if before == 1]
    return strided + rest[::-1]


def _same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
