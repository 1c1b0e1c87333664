"""A rank's staging area: memory of its own that the other ranks of its host map and read.

It is a memfd. It has no name in any file system, so no other user and no other run can meet it; a
small /dev/shm does not limit it; and the kernel frees it with the last process that holds it, so a
killed job leaves nothing behind. Others open it through /proc, which the kernel allows to processes
of the same user only.

Invariant: the area is reserved before it is written, so memory that runs short is an error here and
never a SIGBUS; what others map is the very area that was named, or an error.
"""

import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import CheckpointDamaged

Bytes = NDArray[np.uint8]

SLACK = 2
"""An area of more than so many times what is needed is cut back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaName:
    """Where other processes of this host find an area.

    `device`, `inode`: of the memfd, because pids and descriptors are used again.
    """

    pid: int
    descriptor: int
    device: int
    inode: int
    nbytes: int


class StagingArea:
    """This rank's area, reused from one switch to the next. Not thread safe."""

    def __init__(self) -> None:
        """Reserve nothing yet."""
        self._descriptor = -1
        self._bytes: Bytes = np.empty(0, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the area holds."""
        return len(self._bytes)

    @property
    def name(self) -> AreaName:
        """Where others find it, once it is reserved."""
        told = os.fstat(self._descriptor)
        return AreaName(
            pid=os.getpid(),
            descriptor=self._descriptor,
            device=told.st_dev,
            inode=told.st_ino,
            nbytes=self.nbytes,
        )

    def reserve(self, nbytes: int) -> Bytes:
        """Return the area, of at least `nbytes`; pages it had are kept, which spares their faults.

        Raises:
            OSError: the memory is not there, or the kernel has no memfd.
        """
        if self._descriptor < 0:
            self._descriptor = os.memfd_create("wattmesh-staging", os.MFD_CLOEXEC)
        whole = max(mmap.PAGESIZE, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if whole <= self.nbytes <= SLACK * whole:
            return self._bytes
        had, self._bytes = self.nbytes, np.empty(0, dtype=np.uint8)
        if whole < had:
            os.ftruncate(self._descriptor, whole)
        else:
            # Not ftruncate: a page that cannot be had later would end the process (SIGBUS).
            os.posix_fallocate(self._descriptor, 0, whole)
        self._bytes = np.frombuffer(mmap.mmap(self._descriptor, whole), dtype=np.uint8)
        return self._bytes

    def release(self) -> None:
        """Give the memory back; peers that still map it keep it alive."""
        self._bytes = np.empty(0, dtype=np.uint8)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PeerAreas:
    """Areas of this host's ranks, mapped for reading and kept mapped for the next switch."""

    def __init__(self) -> None:
        """Map nothing yet."""
        self._mapped: dict[tuple[int, int], Bytes] = {}

    def map(self, area: AreaName) -> Bytes:
        """Return the bytes of an area.

        Raises:
            CheckpointDamaged: it cannot be opened, or is not the one that was named.
        """
        key = area.device, area.inode
        known = self._mapped.get(key)
        if known is None or len(known) != area.nbytes:
            self._mapped.pop(key, None)
            self._mapped[key] = _opened(area)
        return self._mapped[key]

    def keep_only(self, areas: Iterable[AreaName]) -> None:
        """Unmap every area that is not among `areas`, which lets its memory go."""
        named = {(each.device, each.inode) for each in areas}
        for key in self._mapped.keys() - named:
            del self._mapped[key]


def _opened(area: AreaName) -> Bytes:
    where = f"/proc/{area.pid}/fd/{area.descriptor}"
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointDamaged(
            f"the staging area of process {area.pid} cannot be opened ({error.strerror})."
        ) from error
    try:
        told = os.fstat(descriptor)
        if (told.st_dev, told.st_ino) != (area.device, area.inode) or told.st_size < area.nbytes:
            raise CheckpointDamaged(f"{where} is not the staging area that was named.")
        mapped = mmap.mmap(descriptor, area.nbytes, prot=mmap.PROT_READ)
    except OSError as error:
        raise CheckpointDamaged(
            f"the staging area of process {area.pid} cannot be mapped ({error.strerror})."
        ) from error
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, dtype=np.uint8)
