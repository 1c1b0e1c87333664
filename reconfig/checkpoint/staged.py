"""The staged copy of a switch: the data files of its checkpoint, in the ranks' staging areas.

Every rank stages its share of the boxes once, in the bytes that its data files will have. The load
plan is the checkpoint's own index (which file holds which box) and `memory.json` beside it (which
rank's area holds which file): a rank copies what it needs from there into its new tensors. The
durable checkpoint is written from the same areas while training goes on.

Invariant: digests of segments are taken from the tensors, not from the areas; the durable files are
read back from the disk and compared with them before they get a name.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wattmesh import durable
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
from wattmesh.reconfig.checkpoint.shared_memory import AreaName, Bytes, PeerAreas, StagingArea
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.launch.folder import is_staging
from wattmesh.reconfig.state import copiers
from wattmesh.reconfig.state.memory import Staging
from wattmesh.reconfig.universal.files.hashing import halves
from wattmesh.reconfig.universal.files.reader import Files, Reader, contiguous_dims
from wattmesh.reconfig.universal.folder import Checkpoint, DataFile, open_checkpoint, open_sealed
from wattmesh.reconfig.universal.index.box import Shape
from wattmesh.reconfig.universal.index.index import Index

MEMORY = "memory.json"
"""In a staging folder: which area holds which data file. A published folder has none."""

BLOCK = 1 << 20
"""Bytes that are hashed and copied at a time: what was hashed is still in the core's cache."""

PIECE_BYTES = 64 << 20
"""The largest piece that is staged at once: threads take pieces in turn."""

WRITE = 64 << 20
"""Bytes that are written to the disk at a time, so that dirty pages stay few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """Where a data file lies in memory: from byte `at` of an area on."""

    area: AreaName
    at: int
    nbytes: int


class HostMemory:
    """What one rank has to do with shared memory: its own area, and its peers'.

    Attributes:
        refused: why the last reservation failed on some rank; "" when it did not.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.area = StagingArea()
        self.peers = PeerAreas()
        self.refused = ""

    def files(self, folder: Path) -> "MappedFiles | None":
        """Return the data files of a staged copy; None where they lie in the folder.

        Raises:
            CheckpointDamaged: an area cannot be mapped.
        """
        where = _where(folder)
        if where is None:
            return None
        return MappedFiles(folder, {name: self._bytes_of(each) for name, each in where})

    def reserve(self, nbytes: int) -> bool:
        """Reserve this rank's area and map all others'; a collective call.

        Returns:
            Whether every rank could; where one could not, every rank's `refused` says why, and none
            keeps its area.
        """
        problem, mine = "", {}
        try:
            self.area.reserve(nbytes)
            mine = asdict(self.area.name)
        except (OSError, ValueError) as error:
            problem = f"{nbytes / 1e6:.0f} MB of shared memory cannot be had ({error})"
        told = group.gather([problem, mine])
        problem = next((each for each, _ in told if each), "")
        if not problem:
            problem = group.agree_on_problem(self._mapped([AreaName(**each) for _, each in told]))
        self.refused = problem
        if problem:
            self.release()
        return not problem

    def release(self) -> None:
        """Give all memory back; only while no staged copy is needed."""
        self.area.release()
        self.peers.keep_only([])

    def _bytes_of(self, file: StagedFile) -> Bytes:
        own = self.area.nbytes and self.area.name == file.area
        area = self.area.reserve(self.area.nbytes) if own else self.peers.map(file.area)
        return area[file.at : file.at + file.nbytes]

    def _mapped(self, areas: Sequence[AreaName]) -> str:
        """Map every area; say what went wrong."""
        try:
            others = [each for each in areas if each != self.area.name]
            self.peers.keep_only(others)
            for each in others:
                self.peers.map(each)
        except CheckpointDamaged as error:
            return str(error)
        return ""


class MappedFiles:
    """The data files of a staged copy, as bytes in memory."""

    def __init__(self, folder: Path, files: Mapping[str, Bytes]) -> None:
        """Take the files by name; `folder`: of the checkpoint that they belong to."""
        self.folder = folder
        self._files = files

    def part(self, name: str, offset: int, nbytes: int) -> Bytes:
        """Return bytes of one file, uncopied.

        Raises:
            CheckpointDamaged: the file is missing, or ends before that.
        """
        found = self._files.get(name, _NO_BYTES)
        if offset < 0 or offset + nbytes > len(found):
            raise CheckpointDamaged(
                f"{self.folder.name}/{name} has {len(found)} bytes in shared memory; bytes "
                f"{offset} to {offset + nbytes} were expected."
            )
        return found[offset : offset + nbytes]

    def items(self) -> Iterator[tuple[str, Bytes]]:
        """Every file, by name."""
        yield from sorted(self._files.items())


class MappedReader(Reader):
    """Copies boxes straight from mapped files."""

    def __init__(self, index: Index, files: Files, mapped: MappedFiles) -> None:
        """Read what `index` describes from `mapped` alone."""
        super().__init__(index, files)
        self._mapped = mapped

    def _copy(
        self, name: str, offset: int, shape: Shape, strides: Shape, out: NDArray[np.generic]
    ) -> None:
        size = out.dtype.itemsize
        span = (sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1) * size
        stored = self._mapped.part(name, offset, span).view(out.dtype)
        if contiguous_dims(shape, strides) == len(shape):
            np.copyto(out, stored.reshape(shape))
            return
        steps = [each * size for each in strides]
        np.copyto(out, np.lib.stride_tricks.as_strided(stored, shape, steps))


def reader_of(index: Index, files: Files, mapped: MappedFiles | None) -> Reader:
    """Return a reader of mapped files where there are any, else of files in the folder."""
    return Reader(index, files) if mapped is None else MappedReader(index, files, mapped)


def opened(folder: Path) -> Checkpoint:
    """Open a checkpoint, whose data files are in the folder or in shared memory.

    Raises:
        CheckpointDamaged: see `open_checkpoint`.
    """
    return open_checkpoint(folder) if _where(folder) is None else open_sealed(folder)


def nbytes_of(pieces: Sequence[TensorPiece]) -> int:
    """Return how many bytes of an area a rank's pieces take, headers included."""
    return sum(
        _aligned(len(safetensors_header(each)) + sum(piece.nbytes for piece in each))
        for each in grouped(pieces, FILE_BYTES)
    )


def write(area: StagingArea, rank: int, pieces: Sequence[TensorPiece]) -> dict[str, Any]:
    """Copy a rank's pieces into its reserved area; return the report to the leader, as JSON.

    The report is that of `direct.write`, and says where in memory each file is. Pieces are copied
    side by side, so none should be much larger than `PIECE_BYTES`.
    """
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
        where[name] = StagedFile(area=area.name, at=begin, nbytes=at - begin)
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


def note(staging: Path, every: Sequence[Mapping[str, Any]]) -> None:
    """Write `memory.json`, where every rank's data files lie, if they lie in memory."""
    if not any("memory" in told for told in every):
        return
    where = {name: each for told in every for name, each in told["memory"].items()}
    durable.write_new(staging / MEMORY, json.dumps(where).encode(), mode=0o600, sync=False)


def damage(checkpoint: Checkpoint, files: MappedFiles, *, share: int = 0, shares: int = 1) -> None:
    """Compare a staged copy, or one of several equal shares of it, with its digests.

    Raises:
        CheckpointDamaged: bytes differ; the message names the tensor.
    """
    index, where = checkpoint.index, f"checkpoint {checkpoint.folder.name}"
    segments = index.segments
    assert segments.digest is not None
    for row in range(share, len(segments), shares):
        name = index.files[int(segments.file[row])]
        part = files.part(name, int(segments.offset[row]), int(segments.nbytes[row]))
        if halves(xxhash.xxh3_128_digest(part.data)) != tuple(segments.digest[row].tolist()):
            entry = index.entries[int(segments.entry[row])]
            raise CheckpointDamaged(
                f"{where}: {name} has changed: {entry} {segments.box(row, entry)} differs from "
                "the digest taken when it was staged."
            )


def make_durable(folder: Path, files: MappedFiles) -> None:
    """Write the data files of a staged copy to the disk, synced, and leave none in the page cache.

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
    (folder / MEMORY).unlink()


NO_MEMORY = HostMemory()
"""For callers outside of a switch. Nobody reserves its area."""

_NO_BYTES: Bytes = np.empty(0, dtype=np.uint8)


def _where(folder: Path) -> list[tuple[str, StagedFile]] | None:
    """Read `memory.json` of a staging folder; None where there is none.

    Raises:
        CheckpointDamaged: it is malformed.
    """
    if not is_staging(folder):
        return None  # a folder with a name has its files, whatever else lies in it
    try:
        told = json.loads((folder / MEMORY).read_bytes())
        return [
            (name, StagedFile(area=AreaName(**each["area"]), at=each["at"], nbytes=each["nbytes"]))
            for name, each in told.items()
        ]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(f"checkpoint {folder.name}: {MEMORY}: {error!s:.300}.") from error


def _aligned(nbytes: int) -> int:
    """Round up to a page, so that elements stay aligned."""
    return -(-nbytes // 4096) * 4096
