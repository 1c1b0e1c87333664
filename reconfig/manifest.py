"""The seal on a checkpoint folder: every file's size and hash, and a COMMIT over the list.

    manifest.json   {"version", "files": {name: {"size", "xxh3_128"}}}, canonical JSON
    COMMIT          sha256 of manifest.json, written last

Invariant: a folder without a COMMIT that matches its manifest is not a checkpoint, and a file that
differs from its line in any byte is named before anything is loaded from it.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged

MANIFEST = "manifest.json"
COMMIT = "COMMIT"
VERSION = 1
_BLOCK = 1 << 22

Entries = dict[str, dict[str, Any]]


def entry(path: Path) -> dict[str, Any]:
    """Size and hash of one finished file, read back from the file system."""
    digest = xxhash.xxh3_128()
    size = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return {"size": size, "xxh3_128": digest.hexdigest()}


def seal(folder: Path, entries: Entries) -> None:
    """Write the manifest, then the COMMIT over it."""
    document = {"version": VERSION, "files": entries}
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    durable.write_bytes(folder / MANIFEST, text)
    durable.write_bytes(folder / COMMIT, hashlib.sha256(text).hexdigest().encode() + b"\n")


def read(folder: Path) -> Entries:
    """Read the list of files, after its COMMIT has been checked.

    Raises:
        CheckpointDamaged: no COMMIT, no manifest, or they do not belong together.
    """
    try:
        text = (folder / MANIFEST).read_bytes()
        commit = (folder / COMMIT).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {Path(str(error.filename)).name} cannot be read "
            f"({error.strerror}); it was never finished or has been tampered with."
        ) from error
    if hashlib.sha256(text).hexdigest() != commit:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {MANIFEST} differs from what {COMMIT} was written for."
        )
    document = json.loads(text)
    if document.get("version") != VERSION:
        raise CheckpointDamaged(
            f"checkpoint {folder.name}: {MANIFEST} has version {document.get('version')!r}, this "
            f"wattmesh reads {VERSION}; use the wattmesh that wrote it."
        )
    files: Entries = document["files"]
    return files


def check_files(folder: Path, entries: Entries, names: Iterable[str]) -> None:
    """Compare files with their lines in the manifest, byte for byte (by hash).

    Raises:
        CheckpointDamaged: a file is missing, truncated, longer, or has a changed byte.
    """
    for name in names:
        expected = entries[name]
        try:
            found = entry(folder / name)
        except OSError as error:
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {name} cannot be read ({error.strerror})."
            ) from error
        if found["size"] != expected["size"]:
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {name} has {found['size']} bytes, not the "
                f"{expected['size']} that were written."
            )
        if found != expected:
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {name} has {found['size']} bytes as written, but "
                "their hash differs: at least one byte has changed."
            )


def check(folder: Path) -> None:
    """Check a whole checkpoint folder from one process.

    Raises:
        CheckpointDamaged: see `read` and `check_files`.
    """
    entries = read(folder)
    check_files(folder, entries, entries)
