"""A universal checkpoint as a source: to make a virtual one physical, or to convert it again.

Invariant: its seal held when it was opened; nothing is looked at before that.
"""

from pathlib import Path

from wattmesh.reconfig.universal import folder as own_folder
from wattmesh.reconfig.universal.sources.source import Source, Watched, fingerprints

_POSITION = ("step", "samples", "tokens")


def is_universal(folder: Path) -> bool:
    """Whether the folder is, or was to be, a universal checkpoint."""
    # Any of the two: one without the other is damaged, and is told so when it is opened.
    return any((folder / name).is_file() for name in (own_folder.MANIFEST, own_folder.COMMIT))


def open_own(folder: Path) -> Source:
    """Open one of our own checkpoints.

    Raises:
        CheckpointDamaged: its seal is broken, or a file differs from what the manifest says.
    """
    checkpoint = own_folder.open_checkpoint(folder)
    header = checkpoint.trainer.get("header")
    known = header if isinstance(header, dict) else {}
    values = checkpoint.trainer.get("values")
    with Watched(folder) as files:
        seen = fingerprints(files, checkpoint.index.files)
    return Source(
        kind="universal",
        described=f"{checkpoint.manifest.kind} universal checkpoint",
        folder=folder,
        index=checkpoint.index,
        values=values if isinstance(values, dict) else {},
        position={key: known[key] for key in _POSITION if type(known.get(key)) is int},
        files=seen,
    )
