"""Writes one rank's data files of a universal checkpoint: safetensors, hashed on the way.

    8 bytes, little-endian: length of the header     header, padded with spaces to 4096     data

Wide elements come first, so that every tensor is aligned to its elements. Keys are
"<state>:<name>#<k>", where k numbers the pieces of a tensor in one file.

Invariant: a block is hashed from the tensor's memory before it is written; a returned file is on
the disk, unless the caller will sync it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash

from wattmesh.reconfig.state.memory import Staging
from wattmesh.reconfig.universal.folder import DataFile
from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape
from wattmesh.reconfig.universal.index.data_header import data_header

FILE_BYTES = 4 << 30
"""Largest data file, header included."""

_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class TensorPiece:
    """A part of a tensor on this rank.

    Attributes:
        fqn: the trainer's name.
        key: the logical (name, state).
        dtype: torch's name.
        whole: shape of the tensor in the trainer.
        box: of the piece, logical.
        local: its elements, of the box's shape, with any strides, on any device.
    """

    fqn: str
    key: tuple[str, str]
    dtype: str
    whole: Shape
    box: Box
    local: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.box.count * dtypes.size_of(self.dtype)


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """Where a piece was written, as reported to the coordinator; `file` "": not written."""

    fqn: str
    dtype: str
    whole: Shape
    box: Box
    digest: bytes
    file: str = ""
    offset: int = 0


def write_files(
    folder: Path,
    rank: int,
    pieces: Sequence[TensorPiece],
    limit: int = FILE_BYTES,
    *,
    durable: bool = True,
    first: int = 0,
) -> tuple[dict[str, DataFile], list[PlacedPiece]]:
    """Write a rank's pieces into `folder`.

    Args:
        folder: staging.
        rank: for the files' names.
        pieces: none larger than `limit`.
        limit: bytes of data per file.
        durable: fsync the files before returning; else the caller does later.
        first: number of the first file.

    Raises:
        OSError: the disk is full, or a file exists already.
    """
    files: dict[str, DataFile] = {}
    placed: list[PlacedPiece] = []
    staging = Staging()
    for number, group in enumerate(grouped(pieces, limit), first):
        name = f"data-{rank}-{number}.safetensors"
        files[name] = _write_file(folder / name, group, staging, placed, durable)
    return files, placed


def digest_of(piece: TensorPiece, staging: Staging) -> bytes:
    """Return the xxh3_128 of a piece's elements in row-major order."""
    digest = xxhash.xxh3_128()
    for block in staging.blocks(piece.local):
        digest.update(block)
    return digest.digest()


def report_of(piece: TensorPiece, digest: bytes, file: str = "", offset: int = 0) -> PlacedPiece:
    """Build the report of a piece to the coordinator."""
    return PlacedPiece(piece.fqn, piece.dtype, piece.whole, piece.box, digest, file, offset)


def report_in_json(files: Mapping[str, DataFile], placed: Sequence[PlacedPiece]) -> dict[str, Any]:
    """Encode what one rank wrote for the leader."""
    return {
        "files": {name: asdict(file) for name, file in files.items()},
        "placed": [
            [
                *(each.fqn, each.dtype, each.whole, each.box.start, each.box.shape),
                *(each.digest.hex(), each.file, each.offset),
            ]
            for each in placed
        ],
    }


def grouped(pieces: Sequence[TensorPiece], limit: int) -> Iterator[list[TensorPiece]]:
    """Assign pieces to files, wide elements first."""
    group: list[TensorPiece] = []
    size = 0
    for piece in sorted(pieces, key=lambda each: -dtypes.size_of(each.dtype)):
        if group and size + piece.nbytes > limit:
            yield group
            group, size = [], 0
        group.append(piece)
        size += piece.nbytes
    if group:
        yield group


def _write_file(
    path: Path,
    pieces: Sequence[TensorPiece],
    staging: Staging,
    placed: list[PlacedPiece],
    durable: bool,
) -> DataFile:
    """Write one file, and append the places of its pieces to `placed`."""
    header = safetensors_header(pieces)
    at = len(header)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb", buffering=_BUFFER) as file:
        file.write(header)
        for piece in pieces:
            digest = xxhash.xxh3_128()
            for block in staging.blocks(piece.local):
                digest.update(block)
                file.write(block)
            placed.append(report_of(piece, digest.digest(), path.name, at))
            at += piece.nbytes
        file.flush()
        if durable:
            os.fdatasync(descriptor)
    return DataFile(
        size=at, header_nbytes=len(header), header_xxh3_128=xxhash.xxh3_128_hexdigest(header)
    )


def safetensors_header(pieces: Sequence[TensorPiece]) -> bytes:
    """Return the header of a data file that holds `pieces`, one after the other."""
    numbers: dict[tuple[str, str], int] = {}
    named = []
    for piece in pieces:
        number = numbers[piece.key] = numbers.get(piece.key, -1) + 1
        name, state = piece.key
        named.append((f"{state}:{name}#{number}", piece.dtype, piece.box.shape))
    return data_header(named)[0]
