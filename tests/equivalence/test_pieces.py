"""Pieces are put together as they were cut, replicas are compared, and nothing is made up."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.equivalence.pieces import Cut, put_together

Pieces = list[tuple[Cut, np.ndarray]]


def cut_up(
    whole: np.ndarray, sizes: tuple[int, ...], dims: tuple[int, ...], *, strided: bool = False
) -> Pieces:
    """Cut a tensor as torch does: axis after axis, or (FSDP over TP) the last axis first."""
    order = range(len(sizes))[::-1] if strided else range(len(sizes))
    found = []
    for place in product(*map(range, sizes)):
        part = whole
        for axis in order:
            if dims[axis] >= 0:
                part = np.array_split(part, sizes[axis], axis=dims[axis])[place[axis]]
        before = [
            int(
                np.prod([n for n, d in zip(sizes[a + 1 :], dims[a + 1 :], strict=True) if d == dim])
            )
            if strided and dim >= 0
            else 1
            for a, dim in enumerate(dims)
        ]
        cut = Cut(
            dtype="torch.float64",
            local=part.shape,
            mesh=tuple(range(int(np.prod(sizes)))),
            sizes=sizes,
            place=place,
            axes=tuple(zip(dims, before, strict=True)),
        )
        found.append((cut, part))
    return found


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    sizes=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    data=st.data(),
)
def test_what_was_cut_is_put_together(
    shape: tuple[int, int], sizes: tuple[int, ...], data: st.DataObject
) -> None:
    """Any mesh of up to three axes, any dims, uneven and empty parts, replicas, both orders."""
    dims = tuple(data.draw(st.integers(-1, 1)) for _ in sizes)
    strided = data.draw(st.booleans())
    whole = np.random.default_rng(0).standard_normal(shape)
    array, agreed = put_together(cut_up(whole, sizes, dims, strided=strided))
    assert agreed
    assert array.tobytes() == whole.tobytes()


def test_the_order_of_cuts_matters() -> None:
    """Sabotaged twin: strided cuts undone as plain ones give another tensor."""
    whole = np.arange(16.0)
    pieces = [
        (replace(cut, axes=((0, 1), (0, 1))), part)
        for cut, part in cut_up(whole, (2, 2), (0, 0), strided=True)
    ]
    array, _ = put_together(pieces)
    assert sorted(array) == sorted(whole)
    assert array.tobytes() != whole.tobytes()


def test_replicas_that_differ_are_told() -> None:
    """One bit in one replica, on a mesh or on ranks of their own."""
    whole = np.arange(6.0).reshape(2, 3)
    pieces = cut_up(whole, (2, 2), (-1, 0))
    drifted = np.nextafter(pieces[3][1], 9)
    assert not put_together([*pieces[:3], (pieces[3][0], drifted)])[1]
    alone = [(Cut(dtype="torch.float64", local=(2, 3), mesh=(rank,)), whole) for rank in range(2)]
    assert put_together(alone)[1]
    assert not put_together([alone[0], (alone[1][0], -whole)])[1]


def test_a_missing_piece_and_an_unknown_order_are_refused() -> None:
    """What cannot be put together for certain is not."""
    pieces = cut_up(np.arange(8.0), (2, 2), (0, 0))
    with pytest.raises(InputInvalid, match="3 pieces"):
        put_together(pieces[:3])
    odd = [(replace(cut, axes=((0, 3), (0, 1))), part) for cut, part in pieces]
    with pytest.raises(InputInvalid, match="later axes make 2"):
        put_together(odd)
