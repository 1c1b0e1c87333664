"""The one door: a checkpoint folder, exported to another system's format."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.declared import Rename
from wattmesh.reconfig.universal.exports import dcp, deepspeed, huggingface
from wattmesh.reconfig.universal.exports.values import from_trainer
from wattmesh.reconfig.universal.folder import Checkpoint, open_checkpoint
from wattmesh.reconfig.universal.index import PARAM
from wattmesh.reconfig.universal.names import HOOK, Names
from wattmesh.reconfig.universal.reader import Files
from wattmesh.reconfig.universal.staging import Progress, silent


class Format(StrEnum):
    """What a checkpoint can be exported to."""

    HUGGING_FACE = "hf"
    DCP = "dcp"
    DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may choose.

    Attributes:
        dtype, renames, max_shard_bytes: Hugging Face; see `huggingface.export`.
        names: DCP; the prefixes of the trainer that shall load it.
        groups: DeepSpeed; how many parameter groups the loading optimizer has. 0: as many as the
            checkpoint's parameters have different settings.
    """

    dtype: str = "float32"
    renames: Sequence[Rename] = ()
    max_shard_bytes: int = huggingface.SHARD_BYTES
    names: Names = HOOK
    groups: int = 0


DEFAULTS = Options()


def export(
    source: Path,
    to: Format,
    target: Path,
    *,
    options: Options = DEFAULTS,
    progress: Progress = silent,
) -> None:
    """Export the checkpoint in `source` to the new folder `target`.

    Raises:
        CheckpointDamaged: the source is no whole checkpoint.
        InputInvalid: see the exports.
    """
    checkpoint = open_checkpoint(source)
    index = checkpoint.index
    with Files(source) as files:
        if to is Format.HUGGING_FACE:
            huggingface.export(
                index,
                files,
                target,
                dtype=options.dtype,
                renames=options.renames,
                max_shard_bytes=options.max_shard_bytes,
                progress=progress,
            )
        elif to is Format.DCP:
            values = from_trainer(checkpoint.trainer)
            names = options.names
            dcp.export(index, files, target, values=values, names=names, progress=progress)
        else:
            deepspeed.export(
                index,
                files,
                target,
                engine=_engine(checkpoint, options.groups),
                numbers=from_trainer(checkpoint.trainer).numbers,
                progress=progress,
            )


def _engine(checkpoint: Checkpoint, count: int) -> deepspeed.Engine:
    """The engine's facts, as far as the checkpoint has them."""
    values = from_trainer(checkpoint.trainer)
    parameters = (entry.name for entry in checkpoint.index.entries if entry.state == PARAM)
    groups: list[dict[str, Any]] = values.groups(parameters) or [{}]
    if 0 < count < len(groups):
        raise InputInvalid(
            f"export: the parameters have {len(groups)} different groups of settings; {count} "
            "parameter groups cannot hold them."
        )
    # Groups beyond those that differ keep the loading optimizer's own settings.
    groups += [{}] * (count - len(groups))
    header = checkpoint.trainer.get("header") or {}
    # What DeepSpeed's engine and its caller kept goes back to them; other trainers' is not theirs.
    own = checkpoint.manifest.source.get("kind") == "deepspeed"
    client = dict(values.other) if own else {}
    schedule = client.pop("lr_scheduler", None)
    return deepspeed.Engine(
        global_steps=int(header.get("step", 0)),
        global_samples=header.get("samples"),
        groups=groups,
        lr_scheduler=schedule,
        client=client,
    )
