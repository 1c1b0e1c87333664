"""Reads the bytes of a box, and no others, with positional reads into the destination.

Contiguous runs of at least `MIN_RUN` bytes are read one by one. For shorter runs (thin columns) the
calls would cost more than the bytes, so their whole span is read into a buffer and copied from it.

Invariant: a read never exceeds the file, follows a link out of the folder or returns short
unnoticed; a file that shrinks while it is read raises an error.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.index import Index
from wattmesh.reconfig.universal.index.planner import Planner

BUFFER = 8 << 20
MIN_RUN = 256
MAX_OPEN = 128
"""Most open files, the folder included: a large job's checkpoint has more files than a process may
open."""


class Files:
    """Files below one folder by relative path, with a bounded number open. For one thread.

    Attributes:
        allowance: remaining limits for metadata; tensor data is not counted.
    """

    def __init__(self, folder: Path, allowance: Allowance | None = None) -> None:
        """Open nothing yet."""
        self.folder = folder
        self.allowance = allowance or Allowance()
        self.bytes_read = 0
        self._root = RegularFiles(folder)
        self._open: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "Files":
        """Use as a context: files are closed at its end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close every file."""
        self.close()

    def close(self) -> None:
        """Close every file."""
        self._root.close()
        while self._open:
            os.close(self._open.popitem()[1][0])

    def read_into(self, name: str, offset: int, out: memoryview) -> None:
        """Fill `out` with the bytes of a file from `offset` on.

        Raises:
            CheckpointDamaged: the file is missing, or ends before that.
        """
        descriptor, size = self.opened(name)
        if offset < 0 or offset + len(out) > size:
            raise CheckpointDamaged(
                f"{self.folder.name}/{name} has {size} bytes; bytes {offset} to "
                f"{offset + len(out)} were expected."
            )
        done = 0
        while done < len(out):
            try:
                count = os.preadv(descriptor, [out[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(name, error) from error
            if count == 0:
                raise CheckpointDamaged(f"{self.folder.name}/{name} shrank while it was read.")
            done += count
        self.bytes_read += done

    def read_runs(self, name: str, starts: Sequence[int], run: int, out: memoryview) -> None:
        """Fill `out` with runs of `run` bytes, one from each of `starts`.

        Raises:
            CheckpointDamaged: see `read_into`.
        """
        descriptor, size = self.opened(name)
        if starts and not (min(starts) >= 0 and max(starts) + run <= size):
            self.read_into(name, max(starts), out[:run])
        at = 0
        read = os.preadv
        try:
            for start in starts:
                if read(descriptor, (out[at : at + run],), start) != run:
                    self.read_into(name, start, out[at : at + run])
                    self.bytes_read -= run
                at += run
        except OSError as error:
            raise self._unreadable(name, error) from error
        self.bytes_read += at

    def opened(self, name: str) -> tuple[int, int]:
        """Return the descriptor and size of a file, valid until the next call.

        Raises:
            InputInvalid: its path leads out of the folder.
            CheckpointDamaged: it is missing or not a regular file.
        """
        if name not in self._open:
            while len(self._open) >= MAX_OPEN - 1:
                os.close(self._open.pop(next(iter(self._open)))[0])
            try:
                descriptor, found = self._root.open(name)
            except OSError as error:
                raise self._unreadable(name, error) from error
            self._open[name] = (descriptor, found.st_size)
        return self._open[name]

    def _unreadable(self, name: str, error: OSError) -> CheckpointDamaged:
        return CheckpointDamaged(f"{self.folder.name}/{name} cannot be read ({error.strerror}).")


class Reader:
    """Reads boxes of one index's tensors."""

    def __init__(self, index: Index, files: Files) -> None:
        """Read `index` from `files`, which the caller closes."""
        self.index = index
        self.files = files
        self.planner = Planner(index)
        self._scratch = np.empty(BUFFER, dtype=np.uint8)

    def read(self, row: int, box: Box | None = None) -> NDArray[np.generic]:
        """Read a box of entry `row` (all of it by default) into a new array.

        Raises:
            CheckpointDamaged: see `read_into`.
        """
        entry = self.index.entries[row]
        wanted = box or Box.whole(entry.shape)
        out = np.empty(wanted.shape, dtype=dtypes.view_of(entry.dtype))
        self.read_into(row, wanted, out)
        return out

    def read_into(self, row: int, box: Box, out: NDArray[np.generic]) -> None:
        """Fill `out` with a box of entry `row`.

        Args:
            row: number of the entry.
            box: logical, within the entry's shape.
            out: array of the box's shape and the NumPy dtype `dtypes.view_of`, with any strides.

        Raises:
            InputInvalid: `out` has another shape or dtype, or the box exceeds the tensor.
            CheckpointDamaged: bytes are missing.
        """
        entry = self.index.entries[row]
        if out.shape != box.shape or out.dtype != dtypes.view_of(entry.dtype):
            raise InputInvalid(
                f"{entry} is {entry.dtype} {box.shape} there, the destination is {out.dtype} "
                f"{out.shape}."
            )
        if not box.within(entry.shape):
            raise InputInvalid(f"{entry} is {entry.shape}; {box} lies outside it.")
        for piece in self.planner.pieces(row, box):
            where = [
                slice(a - b, a - b + n)
                for a, b, n in zip(piece.box.start, box.start, piece.box.shape, strict=True)
            ]
            name = self.index.files[piece.file]
            # For a scalar, out[()] would be a copy instead of an array to fill.
            part = out[tuple(where)] if where else out
            self._copy(name, piece.offset, piece.box.shape, piece.strides, part)

    def _copy(
        self, name: str, offset: int, shape: Shape, strides: Shape, out: NDArray[np.generic]
    ) -> None:
        """Read elements stored with `strides` from byte `offset` on into `out`."""
        size = out.dtype.itemsize
        dims = contiguous_dims(shape, strides)
        outer = shape[: len(shape) - dims]
        run = math.prod(shape[len(outer) :]) * size
        span = (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * size
        if not outer and out.flags.c_contiguous:
            self.files.read_into(name, offset, _bytes(out))
        elif span <= BUFFER and (not outer or run < MIN_RUN):
            raw = self._scratch[:span]
            self.files.read_into(name, offset, raw.data)
            steps = [each * size for each in strides]
            out[...] = np.lib.stride_tricks.as_strided(raw.view(out.dtype), shape, steps)
        elif outer and run >= MIN_RUN and out.flags.c_contiguous:
            starts = _starts(offset, outer, [each * size for each in strides])
            self.files.read_runs(name, starts, run, _bytes(out))
        else:
            # Split along the dim with the largest span, so that the parts fit a buffer soonest.
            dim = max(range(len(shape)), key=lambda each: (shape[each] - 1) * strides[each])
            fits = max(1, BUFFER // (strides[dim] * size))
            rows = 1 if outer and run >= MIN_RUN else min(fits, -(-shape[dim] // 2))
            for at in range(0, shape[dim], rows):
                part = out[(slice(None),) * dim + (slice(at, at + rows),)]
                self._copy(name, offset + at * strides[dim] * size, part.shape, strides, part)


def _starts(offset: int, outer: Shape, steps: Sequence[int]) -> list[int]:
    """Byte offsets of all rows of `outer` dims, row-major."""
    starts = np.full(outer, offset, dtype=np.int64)
    for dim, count in enumerate(outer):
        along = [1] * len(outer)
        along[dim] = count
        starts += (np.arange(count, dtype=np.int64) * steps[dim]).reshape(along)
    found: list[int] = starts.ravel().tolist()
    return found


def contiguous_dims(shape: Shape, strides: Shape) -> int:
    """Count the trailing dims that are row-major without gaps."""
    expected = 1
    for count, (size, step) in enumerate(zip(reversed(shape), reversed(strides), strict=True)):
        if size != 1 and step != expected:
            return count
        expected *= size
    return len(shape)


def _bytes(out: NDArray[np.generic]) -> memoryview:
    return out.reshape(-1).view(np.uint8).data
