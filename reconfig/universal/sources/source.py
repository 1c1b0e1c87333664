"""The result of opening any source: an index over its files, plain values, and fingerprints.

Invariant: the index of a source is proven to cover every tensor (`cover.prove`).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.index.index import COLUMNS, Column, Index, Segments, from_table

BYTES = "pickle"
"""The state of a value that is not plain data: its archive's bytes as a uint8 tensor."""

REPEATED = 4
REPEATED_NBYTES = 64 << 20
"""Limits of how much tensors may repeat the files' bytes, as tied weights and expanded buffers
do."""


@dataclass(frozen=True, slots=True)
class FileFingerprint:
    """Status of a file when it was indexed, to detect any change."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a caller says where a folder leaves it open.

    Attributes:
        model, optim: prefixes of the keys, with their final dot; None to have them found.
        shards: number of files of a folder that does not tell it.
        unpack: a folder to make, for what a compressed source holds.
        weights_only: leave the optimizer out: its own file, or its keys.
    """

    model: str | None = None
    optim: str | None = None
    shards: int | None = None
    unpack: Path | None = None
    weights_only: bool = False


NO_CHOICES = Choices()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An opened checkpoint of any kind.

    Attributes:
        kind: "dcp", "huggingface", "deepspeed", "megatron" or "universal".
        described: a short description for the screen.
        folder: the folder that `index.files` are relative to.
        index: with its cover proven.
        values: JSON: {"param_groups": {parameter: {setting: value}}, "slots": {parameter: {slot:
            number}}, "other": {key: value}, "left_out": [keys without plain data], "without_slots":
            [parameters in a group that never had a gradient, where there are any]}; for a
            universal checkpoint, its trainer.json's `values`.
        position: "step" and "samples", where the source knows them.
        files: every file that was read, including all of `index.files`.
    """

    kind: str
    described: str
    folder: Path
    index: Index
    values: dict[str, Any]
    position: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, FileFingerprint] = field(default_factory=dict)


def fingerprints(files: Files, names: Iterable[str]) -> dict[str, FileFingerprint]:
    """Fingerprint files through their open descriptors.

    Raises:
        CheckpointDamaged: one is missing.
    """
    found = {}
    for name in names:
        status = os.fstat(files.opened(name)[0])
        found[name] = FileFingerprint(status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def check_amount(folder: Path, index: Index, files: Mapping[str, FileFingerprint]) -> None:
    """Refuse tensors that are far larger than the files that hold them.

    A tensor that repeats one element, or a thousand tensors over the same bytes, are small in a
    pickle but would fill the disk when they are copied.

    Raises:
        InputInvalid: they exceed REPEATED times the files' bytes plus REPEATED_NBYTES.
    """
    stored = sum(each.size for each in files.values())
    if index.nbytes > REPEATED * stored + REPEATED_NBYTES:
        raise InputInvalid(
            f"{folder}: its tensors make {index.nbytes} bytes of files that have {stored}; they "
            "repeat the same bytes over and over, which no job saves. Do not use it."
        )


class WatchedFiles(Files):
    """Files of a source that must not change between two opens."""

    def __init__(self, folder: Path, allowance: Allowance | None = None) -> None:
        """Open nothing yet."""
        super().__init__(folder, allowance)
        self.seen: dict[str, FileFingerprint] = {}

    def opened(self, name: str) -> tuple[int, int]:
        """See `Files.opened`.

        Raises:
            InputInvalid: the file changed since it was first opened.
        """
        if name in self._open:
            return self._open[name]
        found = super().opened(name)
        status = os.fstat(found[0])
        look = FileFingerprint(status.st_size, status.st_mtime_ns, status.st_ino)
        if self.seen.setdefault(name, look) != look:
            raise InputInvalid(
                f"{self.folder}: {name} was changed while it was read; try again when nobody "
                "writes to it."
            )
        return found


def joined(parts: Sequence[Segments]) -> Segments:
    """Concatenate segments with the dims of the widest, without digests."""
    dims = max([each.dims for each in parts], default=1)
    filled = [part for part in parts if len(part)]
    if not filled:
        return from_table(np.zeros((0, 5 + 3 * dims), dtype=np.int64), dims)
    columns = {}
    for name in COLUMNS:
        pieces = [getattr(part, name) for part in filled]
        if name in COLUMNS[5:]:
            unused = 1 if name == "shape" else 0
            pieces = [_widened(piece, dims, unused) for piece in pieces]
        columns[name] = np.concatenate(pieces)
    return Segments(**columns)


def _widened(column: Column, dims: int, unused: int) -> Column:
    """Extend a column to `dims` dims, filled with `unused`."""
    if column.shape[1] == dims:
        return column
    wide = np.full((len(column), dims), unused, dtype=np.int64)
    wide[:, : column.shape[1]] = column
    return wide
