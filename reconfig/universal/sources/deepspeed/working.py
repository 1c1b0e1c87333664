"""Compares working copies with the fp32 masters that they are casts of.

DeepSpeed casts the master to the working copy after each step, so the two tell whether files are of
one step and of one layer.

Invariant: only a few megabytes of each are in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.exports.casts import to_bfloat16
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Optimizer

SAMPLE = 64
"""Elements of each parameter that are compared where not all are: enough to tell layers apart."""

_CHUNK = 1 << 20


def _to_float16(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f2")


_CASTS: Mapping[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "float32": ("<u4", lambda values: values.view("<u4")),
    "float16": ("<u2", lambda values: _to_float16(values).view("<u2")),
    "bfloat16": ("<u2", to_bfloat16),
}


@dataclass(frozen=True, slots=True)
class Master:
    """A parameter's fp32 master: number `param` of `optimizer`."""

    optimizer: Optimizer
    param: int

    @property
    def shape(self) -> Shape:
        """Of the parameter."""
        return tuple(self.optimizer.shapes[self.optimizer.names[self.param]])


def masters(optimizers: Sequence[Optimizer]) -> dict[str, list[Master]]:
    """The masters of several optimizers by name; several stages may train a shared module."""
    found: dict[str, list[Master]] = {}
    for optimizer in optimizers:
        for param, name in enumerate(optimizer.names):
            found.setdefault(name, []).append(Master(optimizer, param))
    return found


def is_cast_of_any(
    files: Files,
    several: Sequence[Master],
    working: tuple[str, StoredTensor],
    most: int | None = None,
) -> bool:
    """Tell whether a working copy has the shape of one of several masters and is its cast."""
    return any(
        each.shape == working[1].shape and is_cast(files, each, working, most) for each in several
    )


def is_cast(
    files: Files, of: Master, working: tuple[str, StoredTensor], most: int | None = None
) -> bool:
    """Tell whether a working copy is the cast of a parameter's master.

    Args:
        files: of the checkpoint.
        of: the master.
        working: the copy's file and place; of the parameter's shape.
        most: compare the first so many elements only; None for all.
    """
    file, copy = working
    if copy.dtype not in _CASTS:
        return False
    if not copy.contiguous:
        return most is not None
    view, cast = _CASTS[copy.dtype]
    width = np.dtype(view).itemsize
    optimizer, held = of.optimizer, of.optimizer.fragments
    first_row, last_row = np.searchsorted(held.param, [of.param, of.param + 1]).tolist()
    for row in range(first_row, last_row):
        begin, count, at = (int(each[row]) for each in (held.begin, held.count, held.at))
        end = begin + count if most is None else min(begin + count, most)
        rank, group = int(held.rank[row]), int(held.group[row])
        master = optimizer.flats[rank][group].master
        if master.dtype != "float32":
            return False
        for first in range(begin, end, _CHUNK):
            files.allowance.look(file)
            length = min(_CHUNK, end - first)
            offset = master.offset + (at + first - begin) * 4
            values = _read(files, optimizer.files[rank], offset, length * 4).view("<f4")
            found = _read(files, file, copy.offset + first * width, length * width).view(view)
            nan = np.isnan(values)
            if ((cast(values) != found) & ~nan).any():
                return False
    return True


def _read(files: Files, name: str, offset: int, nbytes: int) -> NDArray[np.uint8]:
    data = bytearray(nbytes)
    files.read_into(name, offset, memoryview(data))
    return np.frombuffer(data, dtype=np.uint8)
