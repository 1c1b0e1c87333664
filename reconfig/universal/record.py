"""Digests that make a virtual checkpoint verified, recorded after it was made.

    hashes.safetensors   "digest": xxh3_128 of every segment, n x 2, as in index.safetensors
    verified.json        {"version", "manifest_sha256", "hashes": {"size", "xxh3_128"}}

Both are in the checkpoint's folder. verified.json is written last and contains the hashes of the
other one and of the manifest, so a record is either complete or absent.

Invariant: a record belongs to one manifest, and so to one index.
"""

import hashlib
import json
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load, save

from wattmesh import durable
from wattmesh.errors import CheckpointDamaged, InputInvalid
from wattmesh.reconfig.universal import folder
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files import documents
from wattmesh.reconfig.universal.files.regular_files import RegularFiles
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.index import Column

HASHES = "hashes.safetensors"
VERIFIED = "verified.json"
VERSION = 1
_MOST = 64 << 10
"""Most bytes of verified.json, and of hashes.safetensors without its digests."""


def is_verified(checkpoint: Checkpoint) -> bool:
    """Tell whether every byte of its tensors has a digest, from the writer or recorded later.

    Raises:
        CheckpointDamaged: its record does not match it.
    """
    return digests(checkpoint) is not None


def digests(checkpoint: Checkpoint) -> Column | None:
    """Return the digests of all segments, n x 2; None for one that was never hashed.

    Raises:
        CheckpointDamaged: its record does not match it.
    """
    own = checkpoint.index.segments.digest
    if own is not None:
        return own
    rows = len(checkpoint.index.segments)
    allowance = Allowance()
    try:
        with RegularFiles(checkpoint.folder) as files:
            try:
                document = documents.load(files.read(VERIFIED, _MOST, allowance))
            except FileNotFoundError:
                return None
            data = files.read(HASHES, 16 * rows + _MOST, allowance)
        if document != _document(checkpoint, data):
            raise _damaged(checkpoint, f"{VERIFIED} does not match its manifest and {HASHES}")
        found: Column = load(data)["digest"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise _damaged(checkpoint, f"{VERIFIED} or {HASHES} cannot be read ({error})") from error
    if found.shape != (len(checkpoint.index.segments), 2) or found.dtype != np.int64:
        raise _damaged(checkpoint, f"{HASHES} has not one digest for every segment")
    return found


def write(checkpoint: Checkpoint, digest: Column) -> None:
    """Record the digests of all segments, which makes the checkpoint verified.

    Raises:
        InputInvalid: the folder cannot be written; it stays unverified.
    """
    data = save({"digest": np.ascontiguousarray(digest, dtype=np.int64)})
    text = json.dumps(_document(checkpoint, data), sort_keys=True).encode() + b"\n"
    try:
        durable.write_bytes(checkpoint.folder / HASHES, data)
        durable.write_bytes(checkpoint.folder / VERIFIED, text)
    except OSError as error:
        raise InputInvalid(
            f"{checkpoint.folder}: the digests could not be recorded ({error.strerror}); it stays "
            "unverified until they are."
        ) from error


def _document(checkpoint: Checkpoint, hashes: bytes) -> dict[str, Any]:
    manifest = folder.manifest_bytes(checkpoint.folder)
    return {
        "version": VERSION,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "hashes": {"size": len(hashes), "xxh3_128": xxhash.xxh3_128_hexdigest(hashes)},
    }


def _damaged(checkpoint: Checkpoint, problem: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"checkpoint {checkpoint.folder.name}: {problem}; delete {VERIFIED} and verify it with "
        "--record again."
    )
