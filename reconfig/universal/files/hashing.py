"""Hashes stored segments with several threads.

xxhash and pread both release the GIL, so threads are enough.

Invariant: memory is at most threads x BUFFER, whatever the sizes of the segments.
"""

import ctypes
import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal.files.reader import BUFFER, Files
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.index.index import Column, Segments

BATCH = 64 << 20
"""Bytes per task of a thread."""

# ioprio_set(2): class 3 is "idle", for the calling thread; syscall numbers by machine.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IDLE = 3 << 13


@dataclass(frozen=True, slots=True)
class SegmentDigests:
    """Digests of segments.

    Attributes:
        digest: n x 2, as `Segments.digest`.
        unreadable: (position, reason) of segments whose bytes could not be read.
    """

    digest: Column
    unreadable: tuple[tuple[int, str], ...]


def hash_segments(
    folder: Path,
    files: Sequence[str],
    segments: Segments,
    *,
    jobs: int = 0,
    progress: Progress = silent,
    gentle: bool = False,
) -> SegmentDigests:
    """Hash the stored bytes of every segment.

    Args:
        folder: the folder that `files` are relative to.
        files: file names by number.
        segments: the segments to hash.
        jobs: threads; 0 for as many as there are CPUs, at most 4.
        progress: called with the bytes hashed since its last call, from any of the threads.
        gentle: use idle CPU and disk priority.
    """
    digest = np.zeros((len(segments), 2), dtype=np.int64)
    unreadable: list[tuple[int, str]] = []

    def work(rows: Column) -> None:
        buffer = memoryview(bytearray(min(BUFFER, int(segments.nbytes[rows].max(initial=1)))))
        with Files(folder) as opened:
            for row in rows.tolist():
                name = files[int(segments.file[row])]
                at, nbytes = int(segments.offset[row]), int(segments.nbytes[row])
                try:
                    digest[row] = digest_of(opened, name, at, nbytes, buffer)
                except (CheckpointDamaged, InputInvalid) as error:
                    unreadable.append((row, str(error)))
                progress(nbytes)

    start = be_gentle if gentle else _nothing
    with ThreadPoolExecutor(jobs or default_jobs(), initializer=start) as pool:
        list(pool.map(work, _batches(segments)))
    return SegmentDigests(digest, tuple(sorted(unreadable)))


def digest_of(
    files: Files, name: str, offset: int, nbytes: int, buffer: memoryview
) -> tuple[int, int]:
    """Hash a range of a file, through `buffer`.

    Raises:
        CheckpointDamaged: the range cannot be read.
    """
    hasher = xxhash.xxh3_128()
    end = offset + nbytes
    while offset < end:
        part = buffer[: min(len(buffer), end - offset)]
        files.read_into(name, offset, part)
        hasher.update(part)
        offset += len(part)
    return halves(hasher.digest())


def halves(digest: bytes) -> tuple[int, int]:
    """Return 16 bytes as two signed 64-bit numbers, high half first."""
    return (
        int.from_bytes(digest[:8], "big", signed=True),
        int.from_bytes(digest[8:], "big", signed=True),
    )


def default_jobs() -> int:
    """The CPUs of this process, at most 4: disks are not faster than that."""
    return min(4, len(os.sched_getaffinity(0)))


def be_gentle() -> None:
    """Set idle CPU and disk priority for this thread (Linux)."""
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        # Disk schedulers without priority classes ignore this.
        ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IDLE)


def _nothing() -> None:
    """The thread initializer without `gentle`."""


def _batches(segments: Segments) -> Iterator[Column]:
    """Rows in file order, in batches of about BATCH bytes."""
    order = np.lexsort((segments.offset, segments.file))
    total = np.cumsum(segments.nbytes[order])
    cuts = np.flatnonzero(np.diff(total // BATCH)) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            yield rows.astype(np.int64)
