"""The provenance of a converted checkpoint, and the check that its source did not change.

Invariant: a source that passes `check_unchanged` after the last read was read in one state.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal import folder
from wattmesh.reconfig.universal.folder import Checkpoint, CheckpointKind, DataFile, Manifest
from wattmesh.reconfig.universal.sources.source import FileFingerprint, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source's part of manifest.json and trainer.json.

    Attributes:
        source: {"kind", "folder", ...}.
        trainer: {"header", "values", "extra"}.
        run, attempt, logical_digest: of the training, where known.
    """

    source: Mapping[str, Any]
    trainer: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    attempt: int = 0
    logical_digest: str = ""

    def manifest(self, kind: CheckpointKind, data: dict[str, DataFile]) -> Manifest:
        """Build the manifest of a checkpoint converted from it."""
        return Manifest(
            kind=kind,
            data=data,
            run=self.run,
            attempt=self.attempt,
            source=dict(self.source),
            logical_digest=self.logical_digest,
        )


def origin_of(source: Source) -> Origin:
    """Return a source's provenance; a universal checkpoint passes its own on.

    Raises:
        CheckpointDamaged: a universal checkpoint's small files differ from their seal.
    """
    told = {"kind": source.kind, "folder": str(source.folder.absolute())}
    if source.kind == "universal":
        return _inherited(folder.open_sealed(source.folder), told)
    trainer = {"header": dict(source.position), "values": source.values, "extra": {}}
    return Origin(source=told, trainer=trainer)


def _inherited(checkpoint: Checkpoint, told: Mapping[str, Any]) -> Origin:
    manifest = checkpoint.manifest
    return Origin(
        # The first origin of the data says more than the copy in between.
        source=manifest.source or told,
        trainer=checkpoint.trainer,
        run=manifest.run,
        attempt=manifest.attempt,
        logical_digest=manifest.logical_digest,
    )


def check_unchanged(source: Source) -> None:
    """Compare every file of a source with its fingerprint.

    Raises:
        InputInvalid: a file was changed, replaced or deleted since it was read.
    """
    for name, before in source.files.items():
        if look(source.folder / name, f"{source.folder}: {name}") != before:
            raise InputInvalid(
                f"{source.folder}: {name} was changed while it was read; convert again when nobody "
                "writes to it."
            )


def look(path: Path, words: str) -> FileFingerprint:
    """Fingerprint a file by its path; `words`: its name in errors.

    Raises:
        InputInvalid: it is gone.
    """
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError as error:
        raise InputInvalid(
            f"{words} can no longer be read ({error.strerror}); it was deleted while it was read."
        ) from error
    return FileFingerprint(found.st_size, found.st_mtime_ns, found.st_ino)
