"""State of DeepSpeed's engine besides tensors, derived from any trainer's checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.universal.exports.values import from_trainer
from wattmesh.reconfig.universal.folder import Checkpoint
from wattmesh.reconfig.universal.index.index import PARAM


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """Counters, settings and plain data of the engine.

    Attributes:
        global_steps, global_samples, skipped_steps: its counters; if `global_samples` is None,
            DeepSpeed derives it from the steps.
        groups: settings of the optimizer's parameter groups, in its order. There must be as many
            as the loading optimizer has; an empty mapping keeps that group's own settings.
        lr_scheduler: state of the schedule; required where the engine has one.
        client: plain data that `load_checkpoint` returns to its caller.
    """

    global_steps: int
    global_samples: int | None = None
    skipped_steps: int = 0
    groups: Sequence[Mapping[str, Any]] = ({},)
    lr_scheduler: dict[str, Any] | None = None
    client: Mapping[str, Any] = field(default_factory=dict)


def engine_of(checkpoint: Checkpoint, groups: int = 0) -> EngineState:
    """Derive it from a checkpoint's trainer.json.

    Args:
        checkpoint: of any origin.
        groups: number of parameter groups of the loading optimizer; 0: as many as there are
            different settings, at least one.

    Raises:
        InputInvalid: it has no step, or more different settings than groups.
    """
    header = checkpoint.trainer.get("header") or {}
    if type(header.get("step")) is not int:
        raise InputInvalid(
            f"checkpoint {checkpoint.folder.name} does not say at which step it was taken, which "
            "DeepSpeed needs; export it to dcp or hf."
        )
    values = from_trainer(checkpoint.trainer)
    parameters = (entry.name for entry in checkpoint.index.entries if entry.state == PARAM)
    found: list[Mapping[str, Any]] = [*values.groups(parameters)]
    if 0 < groups < len(found):
        raise InputInvalid(
            f"export: the parameters have {len(found)} different groups of settings; {groups} "
            "parameter groups cannot hold them."
        )
    # State of DeepSpeed's engine and its caller is returned to them; another trainer's is not.
    own = checkpoint.manifest.source.get("kind") == "deepspeed"
    client = dict(values.other) if own else {}
    return EngineState(
        global_steps=header["step"],
        global_samples=header.get("samples"),
        # Further groups keep the loading optimizer's own settings.
        groups=found + [{}] * (max(groups, 1) - len(found)),
        lr_scheduler=client.pop("lr_scheduler", None),
        client=client,
    )
