"""A universal checkpoint as a source: to make a virtual one physical, or to convert it again.

Invariant: its seal held when it was opened; nothing is looked at before that.
"""

from pathlib import Path

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import folder as own_folder
from wattmesh.reconfig.universal.allowance import Allowance
from wattmesh.reconfig.universal.files.documents import LARGEST
from wattmesh.reconfig.universal.sources.source import Source, Watched, check_amount, fingerprints

_POSITION = ("step", "samples", "tokens")


def is_universal(folder: Path) -> bool:
    """Whether the folder is, or was to be, a universal checkpoint."""
    # Any of the two: one without the other is damaged, and is told so when it is opened.
    return any((folder / name).is_file() for name in (own_folder.MANIFEST, own_folder.COMMIT))


def open_own(folder: Path, allowance: Allowance | None = None) -> Source:
    """Open one of our own checkpoints; the allowance says what reading may cost.

    Raises:
        CheckpointDamaged: its seal is broken, or a file differs from what the manifest says.
        InputInvalid: the allowance is spent.
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
    with Watched(folder, allowance) as files:
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
