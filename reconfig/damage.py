"""Comparing every byte of a checkpoint with the digests taken from memory when it was written.

Invariant: damage is told by the tensor it hit and the file it lies in; nothing is changed.
"""

import numpy as np
import xxhash

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.reader import Files

_BLOCK = 8 << 20


def check(checkpoint: Checkpoint, *, share: int = 0, shares: int = 1) -> None:
    """Read the data files and hash them, or one of several equal shares of them.

    Raises:
        CheckpointDamaged: bytes differ from their digest, or there is none; the tensor is named.
    """
    segments, where = checkpoint.index.segments, f"checkpoint {checkpoint.folder.name}"
    if segments.digest is None and len(segments):
        raise CheckpointDamaged(f"{where} has no digests; it cannot be told whether it is whole.")
    buffer = np.empty(_BLOCK, dtype=np.uint8).data
    with Files(checkpoint.folder) as files:
        for name in sorted(checkpoint.manifest.data)[share::shares]:
            known = checkpoint.manifest.data[name]
            found = _hash(files, name, 0, known.header_nbytes, buffer)
            if known.header_nbytes and found.hex() != known.header_xxh3_128:
                raise CheckpointDamaged(f"{where}: the header of {name} has changed.")
        order = np.lexsort((segments.offset, segments.file))
        for row in order[share::shares].tolist():
            name = checkpoint.index.files[int(segments.file[row])]
            offset, nbytes = int(segments.offset[row]), int(segments.nbytes[row])
            found = _hash(files, name, offset, nbytes, buffer)
            assert segments.digest is not None
            if found != segments.digest[row].astype(">i8").tobytes():
                entry = checkpoint.index.entries[int(segments.entry[row])]
                raise CheckpointDamaged(
                    f"{where}: {name} has changed: {entry} {segments.box(row, entry)} differs "
                    "from the digest taken when it was written."
                )


def _hash(files: Files, name: str, offset: int, nbytes: int, buffer: memoryview) -> bytes:
    digest = xxhash.xxh3_128()
    for at in range(0, nbytes, len(buffer)):
        block = buffer[: min(len(buffer), nbytes - at)]
        files.read_into(name, offset + at, block)
        digest.update(block)
    return digest.digest()
