"""A checkpoint folder: its seal, its manifest, and how it is opened.

    manifest.json   what the checkpoint is; size and xxh3_128 of index.json, index.safetensors and
                    trainer.json; size of every data file and how a change of it is detected
    COMMIT          sha256 of manifest.json

Order of writing: data files and these small files into a staging folder, each fsynced; fsync of the
folder; rename; fsync of the parent. So a folder with its final name is complete.

Invariant: a folder without a matching COMMIT is no checkpoint, and a difference from the manifest
is reported before any data is read. The seal detects damage, not forgery: every number, name and
list in a sealed document is checked like any other input.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import columns
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.reader import BUFFER, Files
from wattmesh.reconfig.universal.files.regular_files import RegularFiles, check_relative
from wattmesh.reconfig.universal.index.index import Index

FORMAT = "wattmesh universal checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
COMMIT = "COMMIT"
TRAINER = "trainer.json"


class CheckpointKind(StrEnum):
    """Whether a checkpoint owns its data."""

    VIRTUAL = "virtual"
    PHYSICAL = "physical"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """How a change of a data file is detected, besides the digests of its segments.

    Attributes:
        size: bytes.
        header_nbytes, header_xxh3_128: physical: the safetensors header, which no segment covers.
        mtime_ns, inode: virtual: of the foreign file when it was indexed.
    """

    size: int
    header_nbytes: int = 0
    header_xxh3_128: str = ""
    mtime_ns: int = 0
    inode: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
        kind: virtual or physical.
        data: by relative path, every file that the index names.
        files: size and xxh3_128 of the small files.
        run, attempt: the run and attempt that wrote it; empty for a conversion.
        source: what it was made from: {"kind": "dcp" | "huggingface" | "deepspeed" | "universal" |
            "run", ...}.
        hashed: whether the index has a digest of every segment.
        logical_digest: digest of the whole state in memory; "" when the writer did not know it.
    """

    kind: CheckpointKind
    data: dict[str, DataFile]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    run: str = ""
    attempt: int = 0
    source: dict[str, Any] = field(default_factory=dict)
    hashed: bool = False
    logical_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened checkpoint: its seal matches, its data files exist with the right sizes."""

    folder: Path
    manifest: Manifest
    index: Index
    trainer: dict[str, Any]


def seal(
    staging: Path,
    manifest: Manifest,
    index: Index,
    trainer: Mapping[str, Any],
    *,
    sync: bool = True,
) -> None:
    """Write everything but the data files into a staging folder.

    Args:
        staging: already contains the data files, fsynced.
        manifest: without `files` and `hashed`, which are filled in here.
        index: with its cover proven (`cover.prove`).
        trainer: JSON: {"header": ..., "values": ..., "extra": ...}.
        sync: fsync the files before returning; else the caller does, before it renames the folder.

    Raises:
        OSError: the disk is full.
    """
    small = {
        columns.NAMES: columns.names_to_bytes(index),
        columns.NUMBERS: columns.numbers_to_bytes(index),
        TRAINER: json.dumps(trainer, sort_keys=True).encode() + b"\n",
    }
    document = {
        "format": FORMAT,
        "version": VERSION,
        **asdict(manifest),
        "files": {name: _line(data) for name, data in small.items()},
        "hashed": index.segments.digest is not None,
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    small[MANIFEST] = text
    small[COMMIT] = hashlib.sha256(text).hexdigest().encode() + b"\n"
    # Only the rename that follows makes them a checkpoint, so their order does not matter.
    if not sync:
        for name, data in small.items():
            durable.write_new(staging / name, data, sync=False)
        return
    with ThreadPoolExecutor(len(small)) as pool:
        list(pool.map(lambda name: durable.write_new(staging / name, small[name]), small))


def read_manifest(folder: Path, allowance: Allowance | None = None) -> Manifest:
    """Read the manifest of a checkpoint, and check it against COMMIT.

    Args:
        folder: the checkpoint's.
        allowance: the limits on reading; None for a new one.

    Raises:
        CheckpointDamaged: COMMIT or the manifest is missing, or they do not match.
        InputInvalid: the allowance is used up.
    """
    allowance = allowance or Allowance()
    text, commit = _read(folder, MANIFEST, allowance), _read(folder, COMMIT, allowance)
    if hashlib.sha256(text).hexdigest().encode() != commit.removesuffix(b"\n"):
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {MANIFEST} does not match its {COMMIT}."
        )
    try:
        document = documents.mapping(documents.load(text), "it")
        told = document.pop("format"), document.pop("version")
        if told != (FORMAT, VERSION):
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {MANIFEST} is of {told[0]!r:.80} version "
                f"{told[1]!r:.80}, this wattmesh reads {FORMAT!r} version {VERSION}; use the "
                "wattmesh that wrote it."
            )
        return _manifest(document)
    except (ValueError, KeyError, TypeError, InputInvalid) as error:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {MANIFEST} is no manifest ({error!s:.300}); use another "
            "checkpoint."
        ) from error


def _manifest(document: dict[str, Any]) -> Manifest:
    """Decode a manifest, and check the type of each part.

    Raises:
        ValueError, KeyError, TypeError, InputInvalid: a part is missing, unknown, of another type.
    """
    files = {
        name: {
            "size": documents.whole(documents.mapping(line, name)["size"], name),
            "xxh3_128": documents.text(line["xxh3_128"], name, _DIGEST),
        }
        for name, line in documents.mapping(document.pop("files", {}), "files").items()
    }
    if type(document.get("hashed", False)) is not bool:
        raise ValueError("hashed is not true or false")
    return Manifest(
        kind=CheckpointKind(document.pop("kind")),
        data={
            name: _data_file(name, documents.mapping(line, name))
            for name, line in documents.mapping(document.pop("data"), "data").items()
        },
        files=files,
        run=documents.text(document.pop("run", ""), "run"),
        attempt=documents.whole(document.pop("attempt", 0), "attempt"),
        source=documents.mapping(document.pop("source", {}), "source"),
        logical_digest=documents.text(
            document.pop("logical_digest", ""), "logical_digest", _DIGEST
        ),
        **document,
    )


def _data_file(name: str, line: dict[str, Any]) -> DataFile:
    """Decode the manifest's line of one data file.

    Raises:
        ValueError, TypeError, InputInvalid: the path or a number is malformed.
    """
    check_relative(name)
    header = documents.text(line.pop("header_xxh3_128", ""), name, _DIGEST)
    numbers = {key: documents.whole(value, f"{key} of {name}") for key, value in line.items()}
    found = DataFile(**numbers, header_xxh3_128=header)
    if found.header_nbytes > min(found.size, _HEADER):
        raise ValueError(f"the header of {name} is longer than the file, or than any header")
    return found


def open_checkpoint(folder: Path, allowance: Allowance | None = None) -> Checkpoint:
    """Open a checkpoint. Its data files are checked by size, but not read.

    Args:
        folder: the checkpoint's.
        allowance: the limits on reading; None for a new one.

    Raises:
        CheckpointDamaged: the seal is broken, a small file differs, a data file is missing, has
            another size or (virtual) was changed since it was indexed, or the index reaches
            outside of them.
        InputInvalid: the allowance is spent.
    """
    checkpoint = open_sealed(folder, allowance)
    _check_data(folder, checkpoint.manifest, checkpoint.index)
    return checkpoint


def open_sealed(folder: Path, allowance: Allowance | None = None) -> Checkpoint:
    """Open a checkpoint without checking its data files, which the caller checks one by one.

    Raises:
        CheckpointDamaged: the seal is broken, or a small file differs.
        InputInvalid: the allowance is spent.
    """
    allowance = allowance or Allowance()
    manifest = read_manifest(folder, allowance)
    small = {name: _checked(folder, name, manifest, allowance) for name in _SMALL}
    where = f"checkpoint {folder.name}"
    index = columns.read(small[columns.NAMES], small[columns.NUMBERS], where, allowance)
    try:
        trainer = _trainer(documents.load(small[TRAINER]))
    except ValueError as error:
        raise CheckpointDamaged(f"{where}: {TRAINER}: {error!s:.300}.") from error
    return Checkpoint(folder=folder, manifest=manifest, index=index, trainer=trainer)


def _trainer(document: Any) -> dict[str, Any]:
    """Check that trainer.json has objects where readers expect them.

    Raises:
        ValueError: a part is of another type.
    """
    trainer = documents.mapping(document, "it")
    for part in ("header", "values", "extra"):
        documents.mapping(trainer.get(part, {}), part)
    values = trainer.get("values", {})
    if type(values.get("param_groups")) is dict:
        documents.mapping(values.get("other", {}), "other")
        for part in ("param_groups", "slots"):
            for name, told in documents.mapping(values.get(part, {}), part).items():
                documents.mapping(told, f"{part} of {name:.80}")
    return trainer


_SMALL = (columns.NAMES, columns.NUMBERS, TRAINER)

_MOST = {
    MANIFEST: 128 << 20,
    COMMIT: 128,
    TRAINER: 512 << 20,
    columns.NAMES: 1 << 30,
    columns.NUMBERS: 4 << 30,
}
"""Most bytes of each file: more than a job of 10^5 ranks and 10^7 segments writes."""

_DIGEST = 32
_HEADER = 128 << 20
"""Most bytes of a data file's header; safetensors itself accepts 100,000,000."""


def _checked(folder: Path, name: str, manifest: Manifest, allowance: Allowance) -> bytes:
    """Read a small file and compare it with its line in the manifest."""
    line = manifest.files.get(name)
    data = _read(folder, name, allowance, line["size"] if line else None)
    if line != _line(data):
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {name} differs from its line in {MANIFEST}."
        )
    return data


def _check_data(folder: Path, manifest: Manifest, index: Index) -> None:
    for name in index.files:
        if name not in manifest.data:
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: the index names {name!r}, {MANIFEST} does not."
            )
    for name, expected in manifest.data.items():
        check_file(folder, name, expected, foreign=manifest.kind is CheckpointKind.VIRTUAL)
    if len(index.segments):
        sizes = np.array([manifest.data[name].size for name in index.files], dtype=np.int64)
        ends = index.segments.offset + index.segments.nbytes
        over = np.flatnonzero((ends > sizes[index.segments.file]) | (ends < 0))
        if len(over):
            row = int(over[0])
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {index.entries[index.segments.entry[row]]} reaches to "
                f"byte {ends[row]} of {index.files[index.segments.file[row]]}, which ends before."
            )


def check_file(folder: Path, name: str, expected: DataFile, *, foreign: bool) -> None:
    """Check one data file without reading it.

    Args:
        folder: the checkpoint's.
        name: relative path.
        expected: its line in the manifest.
        foreign: whether another system wrote it; then mtime and inode must match too.

    Raises:
        CheckpointDamaged: it is missing, not a regular file, of another size, or changed.
    """
    try:
        with RegularFiles(folder) as files:
            found = files.look(name)
    except InputInvalid as error:
        raise CheckpointDamaged(f"checkpoint {folder.name}: {error}") from error
    except OSError as error:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {name} cannot be read ({error.strerror})."
        ) from error
    if found.st_size != expected.size:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {name} has {found.st_size} bytes, not the {expected.size} "
            "that were written."
        )
    if foreign and (found.st_mtime_ns, found.st_ino) != (expected.mtime_ns, expected.inode):
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {name} was changed or replaced since it was indexed; "
            "convert its source again."
        )


def check_header(checkpoint: Checkpoint, name: str) -> None:
    """Compare the header of a data file with its digest; no segment covers it.

    Raises:
        CheckpointDamaged: it differs, or cannot be read.
    """
    expected = checkpoint.manifest.data[name]
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(BUFFER, expected.header_nbytes)))
    with Files(checkpoint.folder) as files:
        for at in range(0, expected.header_nbytes, BUFFER):
            part = buffer[: min(BUFFER, expected.header_nbytes - at)]
            files.read_into(name, at, part)
            hasher.update(part)
    if hasher.hexdigest() != expected.header_xxh3_128:
        raise CheckpointDamaged(
            f"checkpoint {checkpoint.folder.name}: the header of {name} differs from what was "
            "written."
        )


def manifest_bytes(folder: Path) -> bytes:
    """Return the manifest's bytes, unchecked.

    Raises:
        CheckpointDamaged: it cannot be read, is no regular file, or is too large.
    """
    return _read(folder, MANIFEST, Allowance())


def _line(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}


def _read(folder: Path, name: str, allowance: Allowance, expected: int | None = None) -> bytes:
    try:
        with RegularFiles(folder) as files:
            return files.read(name, _MOST[name], allowance, expected)
    except OSError as error:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {name} cannot be read ({error.strerror}); the checkpoint "
            "was never finished, or somebody changed it."
        ) from error
