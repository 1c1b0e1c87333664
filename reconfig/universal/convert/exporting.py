"""Exports a checkpoint to another tool's format: `wattmesh checkpoint export`.

Invariant: a damaged checkpoint is not exported, and the target appears complete or not at all.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from wattmesh.errors import CheckpointDamaged
from wattmesh.reconfig.universal import record
from wattmesh.reconfig.universal.exports import dcp, deepspeed, huggingface
from wattmesh.reconfig.universal.exports.values import from_trainer
from wattmesh.reconfig.universal.files.reader import Files
from wattmesh.reconfig.universal.files.staging import Progress, silent
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.declared import Rename
from wattmesh.reconfig.universal.index.names import HOOK, TORCHTITAN
from wattmesh.reconfig.universal.verify import verify


class ExportFormat(StrEnum):
    """The formats that a checkpoint can be exported to."""

    HF = "hf"
    DCP = "dcp"
    DEEPSPEED = "deepspeed"


class TrainerNames(StrEnum):
    """The trainer whose tensor names a DCP folder uses."""

    WATTMESH = "wattmesh"
    TORCHTITAN = "torchtitan"


_NAMES = {TrainerNames.WATTMESH: HOOK, TrainerNames.TORCHTITAN: TORCHTITAN}


def export(
    checkpoint: Checkpoint,
    target: Path,
    to: ExportFormat,
    *,
    dtype: str = "float32",
    renames: Sequence[Rename] = (),
    trainer: TrainerNames = TrainerNames.WATTMESH,
    progress: Progress = silent,
) -> None:
    """Write a checkpoint in another format.

    Args:
        checkpoint: opened.
        target: must not exist.
        to: the format.
        dtype: of the parameters, Hugging Face only: "float32" or "bfloat16".
        renames: of the parameters, Hugging Face only.
        trainer: the trainer that will load a DCP folder.
        progress: called with the bytes written.

    Raises:
        InputInvalid: the format cannot represent it, or the target cannot be written.
        CheckpointDamaged: bytes are missing, or differ from their digests.
    """
    _refuse_damaged(checkpoint)
    index, values = checkpoint.index, from_trainer(checkpoint.trainer)
    with Files(checkpoint.folder) as files:
        if to is ExportFormat.HF:
            huggingface.export(
                index, files, target, dtype=dtype, renames=renames, progress=progress
            )
        elif to is ExportFormat.DCP:
            names = _NAMES[trainer]
            dcp.export(index, files, target, values=values, names=names, progress=progress)
        else:
            deepspeed.export(
                index,
                files,
                target,
                engine=deepspeed.engine_of(checkpoint),
                numbers=values.numbers,
                progress=progress,
            )


def _refuse_damaged(checkpoint: Checkpoint) -> None:
    """Compare every byte with its digest, so that damage does not spread to the export.

    A virtual checkpoint that was never hashed has no digests and is exported unchecked.
    """
    if record.digests(checkpoint) is not None:
        damage = verify(checkpoint.folder).damage
        if damage:
            raise CheckpointDamaged(f"checkpoint {checkpoint.folder.name}: {damage[0]}; nothing "
                                    "was exported.")  # fmt: skip
