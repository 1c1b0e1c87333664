"""Copies segments: gathers their bytes through the source's index and writes them to files.

Invariant: a segment's digest is computed from the buffer that is written, before the write; one
buffer of BUFFER bytes is used for everything.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from wattmesh.reconfig.universal.files.hashing import halves
from wattmesh.reconfig.universal.files.reader import BUFFER, Files, Reader
from wattmesh.reconfig.universal.files.staging import Progress
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import flat_boxes
from wattmesh.reconfig.universal.index.index import Column, Index, TensorEntry
from wattmesh.reconfig.universal.index.planner import Planner

_Bytes = NDArray[np.uint8]


class Filler:
    """Fills segments of `target`, which are flat ranges of entries that `source` also has."""

    def __init__(self, source: Index, files: Files, target: Index, into: Path) -> None:
        """Read through `files`; write to existing files below `into`."""
        self._source = source
        self._reader = Reader(source, files)
        self._number = -1
        self._target = target
        self._into = into
        self._buffer = np.empty(BUFFER, dtype=np.uint8)

    def fill(self, rows: Iterable[int], progress: Progress) -> Column:
        """Write these segments; return their digests, n x 2.

        Raises:
            CheckpointDamaged: the source ends before its bytes.
            OSError: the target cannot be written.
        """
        digests = []
        with self._opened() as descriptors:
            for row in rows:
                digests.append(self._segment(row, descriptors, progress))
        return np.array(digests, dtype=np.int64).reshape(-1, 2)

    @contextmanager
    def _opened(self) -> Iterator[list[int]]:
        descriptors: list[int] = []
        try:
            for name in self._target.files:
                descriptors.append(os.open(self._into / name, os.O_WRONLY | os.O_CLOEXEC))
            yield descriptors
        finally:
            for each in descriptors:
                os.close(each)

    def _segment(self, row: int, descriptors: list[int], progress: Progress) -> tuple[int, int]:
        segments = self._target.segments
        number, at = int(segments.entry[row]), int(segments.offset[row])
        if number != self._number:
            # Segments come tensor by tensor, so the plans for the last tensor are dropped.
            self._reader.planner, self._number = Planner(self._source), number
        entry = self._target.entries[number]
        begin = int(segments.start[row, 0])
        end = begin + int(segments.shape[row, 0])
        descriptor = descriptors[int(segments.file[row])]
        step = BUFFER // dtypes.size_of(entry.dtype)
        hasher = xxhash.xxh3_128()
        for low in range(begin, end, step):
            part = self._gather(number, entry, low, min(low + step, end))
            hasher.update(part.data)
            write_all(descriptor, part.data, at)
            at += len(part)
            progress(len(part))
        # This starts write-back now instead of at the end; dirty pages stay in the cache.
        os.posix_fadvise(
            descriptor,
            int(segments.offset[row]),
            int(segments.nbytes[row]),
            os.POSIX_FADV_DONTNEED,
        )
        return halves(hasher.digest())

    def _gather(self, number: int, entry: TensorEntry, begin: int, end: int) -> _Bytes:
        """Read elements [begin, end) of an entry into the buffer."""
        view = dtypes.view_of(entry.dtype)
        used = self._buffer[: (end - begin) * view.itemsize]
        elements, at = used.view(view), 0
        for box in flat_boxes(entry.shape, begin, end):
            out = elements[at : at + box.count].reshape(box.shape)
            self._reader.read_into(number, box, out)
            at += box.count
        return used


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`."""
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)
