"""Opens a universal checkpoint as a source, e.g. to make a virtual one physical.

Invariant: its seal is checked before anything else is read.
"""

from pathlib import Path

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import folder as own_folder
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.documents import LARGEST
from wattmesh.reconfig.universal.sources.source import (
    Source,
    WatchedFiles,
    check_amount,
    fingerprints,
)

_POSITION = ("step", "samples", "tokens")


def is_universal(folder: Path) -> bool:
    """Tell whether the folder is a universal checkpoint, complete or not."""
    # One of the two is enough: one without the other is damage, which opening it reports.
    return any((folder / name).is_file() for name in (own_folder.MANIFEST, own_folder.COMMIT))


def open_own(folder: Path, allowance: Allowance | None = None) -> Source:
    """Open a universal checkpoint within an allowance.

    Raises:
        CheckpointDamaged: its seal is broken, or a file differs from the manifest.
        InputInvalid: the allowance is used up.
    """
    allowance = allowance or Allowance()
    checkpoint = own_folder.open_checkpoint(folder, allowance)
    known = checkpoint.trainer.get("header", {})
    for key in _POSITION:
        if type(known.get(key)) is int and not 0 <= known[key] < LARGEST:
            raise CheckpointDamaged(
                f"checkpoint {folder.name}: {own_folder.TRAINER} says {key} is out of range; use "
                "another checkpoint."
            )
    with WatchedFiles(folder, allowance) as files:
        seen = fingerprints(files, checkpoint.index.files)
    check_amount(folder, checkpoint.index, seen)
    return Source(
        kind="universal",
        described=f"{checkpoint.manifest.kind} universal checkpoint",
        folder=folder,
        index=checkpoint.index,
        values=checkpoint.trainer.get("values", {}),
        position={key: known[key] for key in _POSITION if type(known.get(key)) is int},
        files=seen,
    )
