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

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.archives.tensors import StoredTensor
from wattmesh.reconfig.universal.exports.casts import to_bfloat16
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.sources.deepspeed.zero_index import Optimizer

SAMPLE = 64
"""Elements of each parameter that are compared where not all are: enough to tell layers apart."""

_CHUNK = 1 << 20
_OTHER = "the file is of another layer or another step."


def _to_float16(values: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f2")


_BITS = {"float32": "<u4", "float16": "<u2", "bfloat16": "<u2"}

_CASTS: Mapping[str, tuple[int, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "float16": (0x7C00, lambda values: _to_float16(values).view("<u2")),
    "bfloat16": (0x7F80, to_bfloat16),
}
"""By 16-bit dtype: the bits of its infinity, and the cast from float32 to its bits."""


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


def check_copy(
    files: Files,
    owners: Sequence[Master],
    name: str,
    working: tuple[str, StoredTensor],
    why: str = _OTHER,
) -> None:
    """Compare the first elements of a parameter's working copy with its masters.

    Args:
        files: of the checkpoint.
        owners: the masters that the parameter has on its stages.
        name: the parameter's.
        working: the copy's file and place.
        why: the end of the sentence that refuses other values.

    Raises:
        InputInvalid: it is the cast of none of them.
    """
    file, tensor = working
    if all(tensor.shape != each.shape for each in owners):
        raise InputInvalid(
            f"{file}: {name} has shape {tensor.shape} here and {owners[0].shape} in the "
            "optimizer; the files are not of one model."
        )
    if not is_cast_of_any(files, owners, working, SAMPLE):
        raise InputInvalid(f"{file}: its {name} is not the cast of the optimizer's; {why}")


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
    if copy.dtype not in _BITS or (most is None and not copy.contiguous):
        return False
    view = _BITS[copy.dtype]
    optimizer, held = of.optimizer, of.optimizer.fragments
    first_row, last_row = np.searchsorted(held.param, [of.param, of.param + 1]).tolist()
    for row in range(first_row, last_row):
        begin, count, at = (int(each[row]) for each in (held.begin, held.count, held.at))
        end = begin + count if most is None else min(begin + count, most)
        rank, group = int(held.rank[row]), int(held.group[row])
        master = optimizer.flats[rank][group].master
        if master.dtype not in ("float32", copy.dtype):
            return False
        for first in range(begin, end, _CHUNK):
            files.allowance.look(file)
            length = min(_CHUNK, end - first)
            size = dtypes.size_of(master.dtype)
            offset = master.offset + (at + first - begin) * size
            values = _read(files, optimizer.files[rank], offset, length * size)
            found = _elements(files, file, copy, range(first, first + length)).view(view)
            if master.dtype == copy.dtype:
                differs = values.view(view) != found
            else:
                floats, (infinity, cast) = values.view("<f4"), _CASTS[copy.dtype]
                # A cast may change which NaN it is.
                is_nan = (found & 0x7FFF) > infinity
                differs = (cast(floats) != found) & ~(np.isnan(floats) & is_nan)
            if differs.any():
                return False
    return True


def _elements(files: Files, file: str, of: StoredTensor, which: range) -> NDArray[np.uint8]:
    """The bytes of some elements in row-major order; one by one where they are not together."""
    size = dtypes.size_of(of.dtype)
    if of.contiguous:
        return _read(files, file, of.offset + which.start * size, len(which) * size)
    places = np.array(np.unravel_index(np.array(which), of.shape)).T @ np.array(of.strides)
    return np.concatenate(
        [_read(files, file, of.offset + at * size, size) for at in places.tolist()]
    )


def _read(files: Files, name: str, offset: int, nbytes: int) -> NDArray[np.uint8]:
    data = bytearray(nbytes)
    files.read_into(name, offset, memoryview(data))
    return np.frombuffer(data, dtype=np.uint8)
