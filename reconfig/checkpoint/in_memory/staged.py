"""The staged copy of a switch: the data files of its checkpoint, in the ranks' staging areas.

Every rank stages its share of the boxes once, in the bytes that its data files will have. The load
plan is the checkpoint's own index (which file holds which box) and `memory.json` beside it (which
rank's area holds which file): a rank copies what it needs from there into its new tensors. The
durable checkpoint is written from the same areas, by each host its own, while training goes on.

Invariant: digests of segments are taken from the tensors, not from the areas; the durable files are
read back from the disk and compared with them before they get a name.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.checkpoint.dcp_storage.files import (
    FILE_BYTES,
    PlacedPiece,
    TensorPiece,
    grouped,
    report_in_json,
    report_of,
    safetensors_header,
)
from wattmesh.reconfig.checkpoint.in_memory.host_memory import (
    HostMemory,
    MappedFiles,
    StagedFile,
    where_of,
)
from wattmesh.reconfig.checkpoint.in_memory.shared_memory import Bytes
from wattmesh.reconfig.state import copiers
from wattmesh.reconfig.state.memory import Staging
from wattmesh.reconfig.universal.files.hashing import halves
from wattmesh.reconfig.universal.files.reader import Files, Reader, contiguous_dims
from wattmesh.reconfig.universal.folder import Checkpoint, DataFile, open_checkpoint, open_sealed
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.index import Index

BLOCK = 1 << 20
"""Bytes that are hashed and copied at a time: what was hashed is still in the core's cache."""

PIECE_BYTES = 64 << 20
"""The largest piece that is staged at once: threads take pieces in turn."""

WRITE = 64 << 20
"""Bytes that are written to the disk at a time, so that dirty pages stay few."""


class MappedReader(Reader):
    """Copies boxes straight from mapped files, and leaves out what is on another host."""

    def __init__(self, index: Index, files: Files, mapped: MappedFiles) -> None:
        """Read what `index` describes from `mapped`, and from `files` what is not in memory."""
        super().__init__(index, files)
        self._mapped = mapped

    def _copy(
        self, name: str, offset: int, shape: Shape, strides: Shape, out: NDArray[np.generic]
    ) -> None:
        if name in self._mapped:
            size = out.dtype.itemsize
            stored = self._mapped.part(name, offset, spanned(shape, strides, size))
            np.copyto(out, as_box(stored.view(out.dtype), shape, strides))
        elif name not in self._mapped.away:
            super()._copy(name, offset, shape, strides, out)


def spanned(shape: Shape, strides: Shape, size: int) -> int:
    """Return the bytes from the first to the last element, of `size` bytes, of a stored box."""
    return (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * size


def as_box(stored: NDArray[np.generic], shape: Shape, strides: Shape) -> NDArray[np.generic]:
    """View the elements of `stored` that are `strides` apart as a box of `shape`."""
    if contiguous_dims(shape, strides) == len(shape):
        return stored.reshape(shape)
    steps = [each * stored.itemsize for each in strides]
    return np.lib.stride_tricks.as_strided(stored, shape, steps)


def reader_of(index: Index, files: Files, mapped: MappedFiles | None) -> Reader:
    """Return a reader of mapped files where there are any, else of files in the folder."""
    return Reader(index, files) if mapped is None else MappedReader(index, files, mapped)


def opened(folder: Path) -> Checkpoint:
    """Open a checkpoint, whose data files are in the folder or in shared memory.

    Raises:
        CheckpointDamaged: see `open_checkpoint`.
    """
    return open_checkpoint(folder) if where_of(folder) is None else open_sealed(folder)


def nbytes_of(pieces: Sequence[TensorPiece]) -> int:
    """Return how many bytes of an area a rank's pieces take, headers included."""
    return sum(
        _aligned(len(safetensors_header(each)) + sum(piece.nbytes for piece in each))
        for each in grouped(pieces, FILE_BYTES)
    )


def write(memory: HostMemory, rank: int, pieces: Sequence[TensorPiece]) -> dict[str, Any]:
    """Copy a rank's pieces into its reserved area; return the report to the leader, as JSON.

    The report is that of `direct.write`, and says where in memory each file is. Pieces are copied
    side by side, so none should be much larger than `PIECE_BYTES`.
    """
    area = memory.area
    room, at = area.reserve(area.nbytes), 0
    files: dict[str, DataFile] = {}
    where: dict[str, StagedFile] = {}
    laid: list[_Laid] = []
    for number, each in enumerate(grouped(pieces, FILE_BYTES)):
        name, header = f"data-{rank}-{number}.safetensors", safetensors_header(each)
        begin, at = at, at + len(header)
        room[begin:at] = np.frombuffer(header, dtype=np.uint8)
        for piece in each:
            laid.append(_Laid(piece, name, at - begin, room[at : at + piece.nbytes]))
            at += piece.nbytes
        files[name] = DataFile(
            size=at - begin,
            header_nbytes=len(header),
            header_xxh3_128=xxhash.xxh3_128_hexdigest(header),
        )
        where[name] = StagedFile(host=memory.here, area=area.name, at=begin, nbytes=at - begin)
        at = begin + _aligned(at - begin)
    copiers.settle(each.local for each in pieces)
    threads = copiers.count(sum(each.nbytes for each in pieces))
    placed = copiers.in_turn([_Copier() for _ in range(threads)], laid)
    return {
        **report_in_json(files, placed),
        "memory": {name: asdict(each) for name, each in where.items()},
    }


@dataclass(frozen=True, slots=True)
class _Laid:
    """A piece, and where its bytes go: the file, the byte in it, and that memory."""

    piece: TensorPiece
    file: str
    offset: int
    room: Bytes


class _Copier:
    """Copies pieces into an area, through buffers of its own."""

    def __init__(self) -> None:
        self._on_host, self._on_device = Staging(BLOCK), Staging()

    def __call__(self, laid: _Laid) -> PlacedPiece:
        """Copy one, and take its digest on the way."""
        local, digest, at = laid.piece.local, xxhash.xxh3_128(), 0
        staging = self._on_host if local.device.type == "cpu" else self._on_device
        for block in staging.blocks(local):
            digest.update(block)
            np.copyto(laid.room[at : at + len(block)], np.frombuffer(block, dtype=np.uint8))
            at += len(block)
        return report_of(laid.piece, digest.digest(), laid.file, laid.offset)


def damage(checkpoint: Checkpoint, files: MappedFiles, *, share: int = 0, shares: int = 1) -> None:
    """Compare what this host has of a staged copy, or one of several equal shares of it.

    Raises:
        CheckpointDamaged: bytes differ from their digests; the message names the tensor.
    """
    index, where = checkpoint.index, f"checkpoint {checkpoint.folder.name}"
    segments = index.segments
    assert segments.digest is not None
    here = [row for row in range(len(segments)) if index.files[int(segments.file[row])] in files]
    for row in here[share::shares]:
        name = index.files[int(segments.file[row])]
        part = files.part(name, int(segments.offset[row]), int(segments.nbytes[row]))
        if halves(xxhash.xxh3_128_digest(part.data)) != tuple(segments.digest[row].tolist()):
            entry = index.entries[int(segments.entry[row])]
            raise CheckpointDamaged(
                f"{where}: {name} has changed: {entry} {segments.box(row, entry)} differs from "
                "the digest taken when it was staged."
            )


def make_durable(folder: Path, files: MappedFiles) -> None:
    """Write this host's data files to the disk, synced, and leave none in the page cache.

    Reading them afterwards then tells what the disk has.

    Raises:
        OSError: the disk is full or broken.
    """
    for name, data in files.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(folder / name, flags, 0o644)
        try:
            for at in range(0, len(data), WRITE):
                block = data[at : at + WRITE].data
                while len(block):
                    block = block[os.write(descriptor, block) :]
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, at, WRITE, os.POSIX_FADV_DONTNEED)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _aligned(nbytes: int) -> int:
    """Round up to a page, so that elements stay aligned."""
    return -(-nbytes // 4096) * 4096
