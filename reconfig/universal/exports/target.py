"""The files of an export: counted while they are written, and synced before they get their name."""

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


class Target:
    """The folder while it is being written."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        """Write files below `folder`, which exists."""
        self._folder = folder
        self._progress = progress
        self._unsynced: list[Path] = []

    @contextmanager
    def file(self, name: str) -> Iterator[Sink]:
        """Write one new file, given by its path below the folder."""
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
        """Sync what is not yet; small files together, since a journal takes many at once."""
        with ThreadPoolExecutor(_SYNCS) as pool:
            list(pool.map(durable.fsync_file, self._unsynced))
        for folder in sorted({path.parent for path in self._folder.rglob("*")}):
            durable.fsync_folder(folder)


@contextmanager
def exported(target: Path, progress: Progress = silent) -> Iterator[Target]:
    """Write a folder that appears as `target`, synced, at the end of the block.

    Args:
        target: must not exist; its parent must.
        progress: told the bytes just written, after each piece.

    Raises:
        InputInvalid: the target exists, or cannot be written; nothing is left behind.
    """
    with staged(target) as folder:
        writing = Target(folder, progress)
        yield writing
        writing.sync()
