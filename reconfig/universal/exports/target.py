"""The target folder of an export: files are counted while written, and synced before the rename."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from wattmesh import durable
from wattmesh.reconfig.universal.files.staging import Progress, silent, staged

_LARGE = 4 << 20
_SYNCS = 16


class Sink:
    """A file of the export that reports the bytes written."""

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
        """Move to a byte of the file."""
        return self._file.seek(offset)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


class Target:
    """The folder of an export while it is written."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        """Write files below `folder`, which exists."""
        self._folder = folder
        self._progress = progress
        self._unsynced: list[Path] = []

    @contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Create and write one file, by its path below the folder."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            yield Sink(file, self._progress)
            file.flush()
            if file.tell() >= _LARGE:
                os.fsync(file.fileno())
            else:
                self._unsynced.append(path)

    def write(self, name: str, data: bytes) -> None:
        """Write one small file."""
        with self.file(name) as sink:
            sink.write(data)

    def sync(self) -> None:
        """Fsync the small files together, which is faster than one by one, and then the folders."""
        with ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(durable.fsync_file, self._unsynced))
        for folder in sorted({path.parent for path in self._folder.rglob("*")}):
            durable.fsync_folder(folder)


@contextmanager
def exported(target: Path, progress: Progress = silent) -> Iterator[Target]:
    """Write a folder that appears as `target`, synced, at the end of the block.

    Args:
        target: must not exist; its parent must.
        progress: called with the bytes just written, after each piece.

    Raises:
        InputInvalid: the target exists, or cannot be written; nothing is left behind.
    """
    with staged(target) as folder:
        writing = Target(folder, progress)
        yield writing
        writing.sync()
