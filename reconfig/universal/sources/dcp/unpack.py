"""Writes a compressed DCP folder's archives as plain ones, into a folder of the caller's choice.

torch's `FileSystemWriter(_extensions=[ZStandard()])` compresses every archive by itself. Elements
of a compressed archive cannot be read where they lie, so all are decompressed once.

Invariant: no archive may become larger than its tensor needs; a file that would is refused, and
what was written is removed.
"""

import importlib
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattmesh import durable
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.sources.contents import ArchivePlace, Contents
from wattmesh.reconfig.universal.sources.source import Choices

_ZSTD = ("stream.zstd/1",)
_PIECE = 1 << 20
_HEADERS = 1 << 16
"""Bytes of an archive beside its elements; torch's are some hundreds."""

_MOST_VALUE = 64 << 20


def is_packed(contents: Contents) -> bool:
    """Tell whether any archive was transformed."""
    return any(place.transforms for place in _places(contents))


def target_of(choices: Choices) -> Path:
    """The folder that was unpacked to."""
    assert choices.unpack is not None
    return choices.unpack


def unpack(files: Files, contents: Contents, target: Path | None) -> Contents:
    """Decompress every archive.

    Args:
        files: the compressed folder.
        contents: what it holds.
        target: the folder to make; None refuses.

    Returns:
        The same contents, with places below `target`.

    Raises:
        InputInvalid: another transform, no zstandard, no target, or an archive that is damaged or
            too large.
    """
    where = files.folder.name
    known = {place.transforms for place in _places(contents)} - {()}
    if other := sorted(known - {_ZSTD}):
        raise InputInvalid(
            f"{where}: its archives were transformed by {', '.join(other[0])!r:.80}; only zstd is "
            "read."
        )
    if target is None:
        size = sum(place.length for place in _places(contents))
        raise InputInvalid(
            f"{where}: its archives are compressed ({size} bytes); say with --unpack FOLDER where "
            "they may be decompressed to."
        )
    decompressor = _zstandard(where)
    try:
        target.mkdir()
    except OSError as error:
        raise InputInvalid(f"{target}: cannot be made to unpack to ({error.strerror}).") from error
    try:
        return _Writer(files, target, decompressor).contents(contents)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _places(contents: Contents) -> list[ArchivePlace]:
    chunks = (place for each in contents.tensors.values() for _, place in each.chunks)
    every = (*chunks, *contents.values.values())
    return [each for each in every if isinstance(each, ArchivePlace)]


def _zstandard(where: str) -> Callable[[], Any]:
    try:
        # Optional, and only here: few folders are compressed.
        module: Any = importlib.import_module("zstandard")
    except ImportError as error:
        raise InputInvalid(
            f"{where}: its archives are compressed by zstd; install the package zstandard to read "
            "them."
        ) from error

    def make() -> Any:
        return module.ZstdDecompressor().decompressobj(read_across_frames=False)

    return make


class _Writer:
    """Writes plain files of the same names."""

    def __init__(self, files: Files, target: Path, decompressor: Callable[[], Any]) -> None:
        self._files = files
        self._target = target
        self._decompressor = decompressor
        self._ends: dict[str, int] = {}

    def contents(self, contents: Contents) -> Contents:
        tensors = {}
        for fqn, tensor in contents.tensors.items():
            size, chunks = dtypes.size_of(tensor.dtype), []
            for box, place in tensor.chunks:
                most = 2 * math.prod(box.shape) * size + _HEADERS
                chunks.append((box, self._written(place, most)))
            tensors[fqn] = replace(tensor, chunks=tuple(chunks))
        values = {key: self._written(each, _MOST_VALUE) for key, each in contents.values.items()}
        for name in self._ends:
            durable.fsync_file(self._target / name)
        for folder in {self._target, *((self._target / name).parent for name in self._ends)}:
            durable.fsync_folder(folder)
        return replace(contents, tensors=tensors, values=values)

    def _written(self, place: Any, most: int) -> Any:
        """Decompress one archive to the end of its file."""
        if not isinstance(place, ArchivePlace):
            return place
        _, size = self._files.opened(place.file)
        if place.offset + place.length > size:
            raise self._bad(place, "the file ends before")
        path = self._target / place.file
        path.parent.mkdir(parents=True, exist_ok=True)
        begin = self._ends.get(place.file, 0)
        decompressor = self._decompressor() if place.transforms else None
        count = 0
        with path.open("ab") as out:
            for at in range(0, place.length, _PIECE):
                data = bytearray(min(_PIECE, place.length - at))
                self._files.read_into(place.file, place.offset + at, memoryview(data))
                count += self._put(out, bytes(data), decompressor, place, most - count)
        if decompressor is not None and (not decompressor.eof or decompressor.unused_data):
            raise self._bad(place, "it is cut off, or longer than one compressed archive")
        self._ends[place.file] = begin + count
        return ArchivePlace(place.file, begin, count)

    def _put(self, out: Any, data: bytes, decompressor: Any, place: ArchivePlace, most: int) -> int:
        try:
            plain = data if decompressor is None else decompressor.decompress(data)
        except Exception as error:
            raise self._bad(place, f"it cannot be decompressed ({error!s:.80})") from error
        if len(plain) > most:
            raise self._bad(place, f"it becomes more than {most} bytes")
        out.write(plain)
        return len(plain)

    def _bad(self, place: ArchivePlace, sentence: str) -> InputInvalid:
        where = f"{self._files.folder.name}/{place.file} at {place.offset}"
        return InputInvalid(f"{where} ({place.length} bytes): {sentence}.")
