"""From a checkpoint to another tool's format: what `wattmesh checkpoint export` does.

Invariant: only a checkpoint that opens is exported, and the target appears whole or not at all.
"""

from enum import StrEnum
from pathlib import Path

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports import dcp, deepspeed, huggingface
from wattmesh.reconfig.universal.exports.values import Values, from_trainer
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index import PARAM
from wattmesh.reconfig.universal.names import HOOK, TORCHTITAN
from wattmesh.reconfig.universal.reader import Files
from wattmesh.reconfig.universal.staging import Progress, silent


class Format(StrEnum):
    """What a checkpoint can be exported to."""

    HF = "hf"
    DCP = "dcp"
    DEEPSPEED = "deepspeed"


class Trainer(StrEnum):
    """Whose names of tensors a DCP folder gets."""

    WATTMESH = "wattmesh"
    TORCHTITAN = "torchtitan"


_NAMES = {Trainer.WATTMESH: HOOK, Trainer.TORCHTITAN: TORCHTITAN}


def export(
    checkpoint: Checkpoint,
    target: Path,
    to: Format,
    *,
    dtype: str = "float32",
    trainer: Trainer = Trainer.WATTMESH,
    progress: Progress = silent,
) -> None:
    """Write a checkpoint in another format.

    Args:
        checkpoint: opened.
        target: must not exist.
        to: the format.
        dtype: of the parameters, Hugging Face only: "float32" or "bfloat16".
        trainer: who shall load a DCP folder.
        progress: told the bytes written.

    Raises:
        InputInvalid: the format cannot carry it, or the target cannot be written.
        CheckpointDamaged: bytes are missing.
    """
    index, values = checkpoint.index, from_trainer(checkpoint.trainer)
    with Files(checkpoint.folder) as files:
        if to is Format.HF:
            huggingface.export(index, files, target, dtype=dtype, progress=progress)
        elif to is Format.DCP:
            names = _NAMES[trainer]
            dcp.export(index, files, target, values=values, names=names, progress=progress)
        else:
            engine = _engine(checkpoint, values)
            numbers = values.numbers
            deepspeed.export(
                index, files, target, engine=engine, numbers=numbers, progress=progress
            )


def _engine(checkpoint: Checkpoint, values: Values) -> deepspeed.Engine:
    """DeepSpeed's counters, from where training stood."""
    header = checkpoint.trainer.get("header")
    position = header if isinstance(header, dict) else {}
    step, samples = position.get("step"), position.get("samples")
    if not isinstance(step, int):
        raise InputInvalid(
            f"checkpoint {checkpoint.folder.name} does not say at which step it was taken, which "
            "DeepSpeed needs; export it to dcp or hf."
        )
    parameters = [entry.name for entry in checkpoint.index.entries if entry.state == PARAM]
    return deepspeed.Engine(
        global_steps=step,
        global_samples=samples if isinstance(samples, int) else None,
        groups=values.groups(parameters) or ({},),
    )
