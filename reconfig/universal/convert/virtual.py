"""Writes a virtual checkpoint: an index over another tool's files, which hard links keep alive.

No data is read or written, so it takes milliseconds at any size; the links keep the bytes when the
source's folder is deleted. It starts unverified (see record.py).

Invariant: the files that were linked are those that the index was made from.
"""

import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from wattmesh import durable
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal import folder
from wattmesh.reconfig.universal.convert.origin import check_unchanged, look, origin_of
from wattmesh.reconfig.universal.files.regular_files import check_relative
from wattmesh.reconfig.universal.files.staging import Fence, staged, unfenced
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile
from wattmesh.reconfig.universal.sources.source import FileFingerprint, Source

FILES = "files"

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP}


def write_virtual(source: Source, target: Path, *, fence: Fence = unfenced) -> Path:
    """Publish a virtual checkpoint of a source.

    Raises: InputInvalid: the source cannot be hard-linked, or changed meanwhile; nothing is left
    behind.
    """
    origin = origin_of(source)
    with staged(target, fence) as staging:
        folders = link(source, staging / FILES)
        data = {
            f"{FILES}/{name}": DataFile(size=at.size, mtime_ns=at.mtime_ns, inode=at.inode)
            for name, at in source.files.items()
        }
        index = replace(
            source.index,
            files=tuple(f"{FILES}/{name}" for name in source.index.files),
            segments=replace(source.index.segments, digest=None),
        )
        # Both mostly wait for the disk, so they run concurrently.
        with ThreadPoolExecutor(1) as pool:
            synced = pool.submit(_fsync_folders, folders)
            folder.seal(
                staging, origin.manifest(CheckpointKind.VIRTUAL, data), index, origin.trainer
            )
            synced.result()
        check_unchanged(source)
    return target


def link(source: Source, into: Path) -> list[Path]:
    """Hard-link every file of a source below `into`; return the folders that hold the links.

    Raises:
        InputInvalid: the file system does not allow it, or a file was replaced since it was read.
    """
    into.mkdir()
    folders = {into}
    for name, expected in source.files.items():
        check_relative(name)
        path = into / name
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.update(_up_to(into, path.parent))
        _link_one(source, name, path, expected)
    return sorted(folders)


def _up_to(top: Path, below: Path) -> Iterable[Path]:
    """Yield `below` and its parents, up to but without `top`."""
    while below != top:
        yield below
        below = below.parent


def _link_one(source: Source, name: str, path: Path, expected: FileFingerprint) -> None:
    try:
        # The file was no symbolic link when it was read; one put there since fails the check below.
        os.link(source.folder / name, path, follow_symlinks=False)
    except OSError as error:
        if error.errno in _NO_LINK:
            raise InputInvalid(
                f"{source.folder / name} cannot be hard-linked into the virtual checkpoint "
                f"({error.strerror}); put it on the same file system as its source, or "
                "convert with --kind physical."
            ) from error
        if error.errno != errno.ENOENT:
            raise
        raise InputInvalid(
            f"{source.folder}: {name} was deleted while it was read; convert again when nobody "
            "writes to it."
        ) from error
    if look(path, str(path)) != expected:
        raise InputInvalid(
            f"{source.folder}: {name} was changed while it was read; convert again when nobody "
            "writes to it."
        )


def _fsync_folders(folders: Iterable[Path]) -> None:
    for each in folders:
        durable.fsync_folder(each)
