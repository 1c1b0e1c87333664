"""The folder that an export writes: complete under its name, or not there at all.

Everything goes into a staging folder beside the target; all files and folders are synced, and the
folder gets its name last. What fails on the way is removed.

Invariant: nobody sees the target before every byte of it is on the disk.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from wattmesh import durable
from wattmesh.errors import InputInvalid

Progress = Callable[[int], None]
"""Told the number of bytes just written, after each piece."""

_LARGE = 4 << 20
_SYNCS = 16


def silent(count: int) -> None:
    """Progress that nobody watches."""


class Sink:
    """A file of the export: what it is given is counted."""

    def __init__(self, file: BinaryIO, progress: Progress) -> None:
        """Write to `file`."""
        self._file = file
        self._progress = progress

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`."""
        count = self._file.write(data)
        self._progress(count)
        return count

    def seek(self, offset: int) -> int:
        """Go to a byte of the file."""
        return self._file.seek(offset)

    def tell(self) -> int:
        """Byte of the file that is written next."""
        return self._file.tell()


class Staging:
    """The folder while it is being written."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        """Write files below `folder`, which exists."""
        self.folder = folder
        self._progress = progress
        self._unsynced: list[Path] = []

    @contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Write one new file, given by its path below the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            yield Sink(file, self._progress)
            file.flush()
            if file.tell() >= _LARGE:
                os.fsync(file.fileno())
            else:
                self._unsynced.append(path)

    def sync(self) -> None:
        """Sync what is not yet; small files together, since a journal takes many at once."""
        with ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(durable.fsync_file, self._unsynced))
        for folder in sorted({path.parent for path in self.folder.rglob("*")}):
            durable.fsync_folder(folder)

    def write(self, name: str, data: bytes) -> None:
        """Write one small file."""
        with self.file(name) as sink:
            sink.write(data)


@contextmanager
def staged(target: Path, progress: Progress = silent) -> Iterator[Staging]:
    """Write a folder that appears as `target` at the end of the block.

    Raises:
        InputInvalid: `target` exists, its parent does not, the disk is full or not writable;
            nothing is left behind.
    """
    folder = target.with_name(f".{target.name}.{secrets.token_hex(6)}.staging")
    with clear_errors(target):
        try:
            if os.path.lexists(target):
                raise InputInvalid(f"export: {target} exists already; name a folder that does not.")
            folder.mkdir()
            staging = Staging(folder, progress)
            yield staging
            staging.sync()
            durable.publish_folder(folder, target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


@contextmanager
def clear_errors(target: Path) -> Iterator[None]:
    """Say in one sentence what the system refused.

    Raises:
        InputInvalid: instead of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise InputInvalid(_sentence(target, error)) from error


def _sentence(target: Path, error: OSError) -> str:
    """What went wrong, and what to do next."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        advice = "make room there, or export elsewhere"
    elif error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
        advice = "export to a folder that you may write"
    elif error.errno in {errno.ENOENT, errno.ENOTDIR}:
        advice = "make the folder that it shall lie in first"
    else:
        advice = "look at the disk"
    return f"export: {target} was not written ({error.strerror}); {advice}."
