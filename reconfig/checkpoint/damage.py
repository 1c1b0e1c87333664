"""Compares every byte of a checkpoint with the digests of its writer.

It stops at the first fault; `universal.verify` lists all of them.

Invariant: the error names the damaged tensor and its file; nothing is changed.
"""

from collections.abc import Collection

import numpy as np

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.files.hashing import hash_segments
from wattmesh.reconfig.universal.folder import Checkpoint, check_header


def check(
    checkpoint: Checkpoint,
    *,
    only: Collection[str] | None = None,
    share: int = 0,
    shares: int = 1,
) -> None:
    """Read the data files (of `only` these names) and hash them, or one of several equal shares.

    Raises: CheckpointDamaged: bytes differ from their digest, or have none; the message names the
    tensor.
    """
    index, where = checkpoint.index, f"checkpoint {checkpoint.folder.name}"
    digest = record.digests(checkpoint)
    if digest is None and len(index.segments):
        raise CheckpointDamaged(
            f"{where} has no digests, so nothing can tell whether it is whole; let `wattmesh "
            "checkpoint verify --record` hash it once."
        )
    names = sorted(name for name in checkpoint.manifest.data if only is None or name in only)
    for name in names[share::shares]:
        if checkpoint.manifest.data[name].header_nbytes:
            check_header(checkpoint, name)
    rows = np.arange(len(index.segments))
    if only is not None:
        meant = [number for number, name in enumerate(index.files) if name in only]
        rows = rows[np.isin(index.segments.file, meant)]
    rows = rows[share::shares]
    part = index.segments.take(rows)
    found = hash_segments(checkpoint.folder, index.files, part)
    if found.unreadable:
        raise CheckpointDamaged(f"{where}: {found.unreadable[0][1]}")
    if digest is None:
        return
    for at in np.flatnonzero((found.digest != digest[rows]).any(axis=1)).tolist():
        entry = index.entries[int(part.entry[at])]
        raise CheckpointDamaged(
            f"{where}: {index.files[int(part.file[at])]} has changed: {entry} "
            f"{part.box(at, entry)} differs from the digest taken when it was written."
        )
