"""The folder that an export writes: complete under its name, or not there at all.

Everything goes into a staging folder beside the target; each file is synced when it is finished,
and the folder gets its name last. What fails on the way is removed.

Invariant: nobody sees the target before every byte of it is on the disk.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from wattmesh import durable
from wattmesh.errors import InputInvalid

Progress = Callable[[int], None]
"""Told the number of bytes just written, after each piece."""


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

    @contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Write one new file, given by its path below the folder; synced at the end."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            yield Sink(file, self._progress)
            file.flush()
            os.fsync(file.fileno())

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
    staging = target.with_name(f".{target.name}.{secrets.token_hex(6)}.staging")
    try:
        if os.path.lexists(target):
            raise InputInvalid(f"export: {target} exists already; name a folder that does not.")
        staging.mkdir()
        yield Staging(staging, progress)
        for folder in sorted({each.parent for each in staging.rglob("*")}):
            durable.fsync_folder(folder)
        durable.publish_folder(staging, target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise InputInvalid(_sentence(target, error)) from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


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
