"""Why a training of Lightning is not moved, each in one sentence, before it trains."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from wattmesh.errors import InputInvalid
from wattmesh.integrations.lightning.processes import root_of
from wattmesh.reconfig.layout import Layout

STRATEGY = "ModelParallelStrategy"

OTHERS = {
    "DDPStrategy": "DDP",
    "FSDPStrategy": "FSDP1",
    "DeepSpeedStrategy": "DeepSpeed",
    "SingleDeviceStrategy": "one device",
}
"""Names that people know for Lightning's other strategies."""

PRECISIONS = ("32-true", "bf16-true", "bf16-mixed")

CALLBACKS = {
    "BatchSizeFinder": "changes the samples of a step",
    "EMAWeightAveraging": "copies the sharded model, which torch forbids",
    "GradientAccumulationScheduler": "changes the samples of a step",
    "LearningRateFinder": "trains a run of its own before this one",
    "ModelPruning": "changes the parameters' names",
    "OnExceptionCheckpoint": "has Lightning resume from its own file",
    "StochasticWeightAveraging": "copies the sharded model, which torch forbids",
    "Timer": "ends a run by the clock, at another step in every layout",
    "WeightAveraging": "copies the sharded model, which torch forbids",
    "BaseFinetuning": "changes which parameters the optimizer has",
}
"""Callbacks that are not moved, with their subclasses, and what each does."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "": ("_run_stage", "_run_sanity_check", "_teardown", "_checkpoint_connector"),
    "fit_loop": ("setup_data", "on_run_start", "on_advance_start", "_combined_loader"),
    "fit_loop.epoch_loop": ("reset", "advance", "on_advance_end", "_results"),
    "fit_loop.epoch_loop.automatic_optimization": ("run",),
}
"""What a trainer of 2.6 has, and its loops, without which the session cannot enter and leave."""


def check_layout(layout: Layout) -> None:
    """Refuse what no training of Lightning is moved to.

    Raises:
        InputInvalid: with the degree.
    """
    others = [name for name in ("pp", "cp", "ep", "dp_replicate") if getattr(layout, name) > 1]
    if others:
        raise InputInvalid(
            f"Lightning: the layout {layout} has {others[0]} = {getattr(layout, others[0])}; "
            f"{STRATEGY} has a mesh of dp_shard and tp only."
        )
    if layout.micro_batch or layout.recompute:
        raise InputInvalid(
            "Lightning: micro_batch and recompute of a layout are not carried out; the script "
            "accumulates and checkpoints activations itself, the same in every layout."
        )


def refused_trainer(trainer: Any, layout: Layout, global_batch_size: int, device: str) -> str:
    """Say why a trainer that was just made cannot be moved; "" when nothing is known against it.

    Args:
        trainer: has prepared nothing yet.
        layout: to be trained.
        global_batch_size: samples of an optimizer step.
        device: "cpu" or "cuda".
    """
    if not root_of(trainer):
        return f"the script gives a {type(trainer).__name__}, which is no Trainer of Lightning"
    return (
        _refused_parts(trainer)
        or _refused_strategy(trainer, device)
        or _refused_settings(trainer)
        or _refused_callbacks(trainer)
        or _refused_batch(trainer, layout, global_batch_size)
    )


def refused_ranks(trainer: Any, layout: Layout) -> str:
    """Say why a trainer does not find the session's ranks; "" when it does.

    Args:
        trainer: has been told of the process group.
        layout: to be trained.
    """
    environment, devices = trainer.strategy.cluster_environment, trainer.strategy.parallel_devices
    if environment.world_size() != layout.world_size:
        return f"{environment.world_size()} ranks train, and the layout {layout} has others"
    if environment.local_rank() >= len(devices):
        return (
            f"its Trainer has {len(devices)} devices on a node where {environment.local_rank()} is "
            "the number of one; set devices= to the ranks of a node"
        )
    return ""


def refused_module(module: Any, fitted: int) -> str:
    """Say why a module cannot be moved; "" when nothing is known against it.

    Args:
        module: that will be trained.
        fitted: positional arguments of `fit`.
    """
    step = getattr(module, "training_step", None)
    if step is None:
        return f"the script gives a {type(module).__name__}, which is no LightningModule"
    steps_itself = inspect.signature(step).parameters
    norms = [name for name, each in module.named_modules() if _sees_one_batch(each)]
    found = {
        "its module optimizes by itself (automatic_optimization=False), and nobody else knows "
        "where one of its steps ends": not module.automatic_optimization,
        "its training_step reads the loader by itself (dataloader_iter)": (
            "dataloader_iter" in steps_itself
        ),
        f"{norms[0] if norms else ''} norms by the batch of one device, which follows the layout; "
        "take torch.nn.SyncBatchNorm or another norm": bool(norms),
        "its `fit` has a checkpoint to resume from, and the session resumes from its own": (
            fitted > 4
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


def refused_preparation(trainer: Any) -> str:
    """Say why what a trainer has prepared cannot be moved; "" when it can."""
    # Where Slurm has requeued it, Lightning finds one by itself.
    if resumed := trainer._checkpoint_connector._ckpt_path:
        return f"Lightning has resumed from {resumed}, and the session resumes from its own"
    # The module may have brought some of its own.
    return _refused_callbacks(trainer)


def _sees_one_batch(module: nn.Module) -> bool:
    # Its class has no public name.
    is_norm = any(kind.__name__ == "_BatchNorm" for kind in type(module).__mro__)
    return is_norm and not isinstance(module, nn.SyncBatchNorm)


def _refused_parts(trainer: Any) -> str:
    for path, names in PARTS.items():
        found = trainer
        for each in filter(None, path.split(".")):
            found = getattr(found, each, None)
        lost = [name for name in names if not hasattr(found, name)]
        if lost:
            where = ".".join(filter(None, ("Trainer", path, lost[0])))
            return f"this Lightning has no {where}; it is moved as 2.6 has it"
    return ""


def _refused_strategy(trainer: Any, device: str) -> str:
    strategy = trainer.strategy
    names = [kind.__name__ for kind in type(strategy).__mro__]
    if STRATEGY not in names:
        known = next((OTHERS[name] for name in names if name in OTHERS), names[0])
        return f"its strategy is {known}, which is not moved; set strategy={STRATEGY}()"
    # Not its root_device: that asks for this rank's, which may not be there.
    kind = strategy.parallel_devices[0].type
    if kind != device:
        return f"it trains on {kind}, and the session on {device}"
    return ""


def _refused_settings(trainer: Any) -> str:
    found = {
        "max_time ends a run by the clock, at another step in every layout; give max_steps or "
        "max_epochs": any(type(each).__name__ == "Timer" for each in trainer.callbacks),
        "it validates by the clock (val_check_interval), at other steps in every layout; give a "
        "number": getattr(trainer, "_val_check_time_interval", None) is not None,
        "overfit_batches takes other samples in every layout": bool(trainer.overfit_batches),
        "reload_dataloaders_every_n_epochs would change the data": (
            bool(trainer.reload_dataloaders_every_n_epochs)
        ),
        "fast_dev_run is no training": bool(trainer.fast_dev_run),
        f"precision={trainer.precision!r} was never tried; tried are {', '.join(PRECISIONS)}": (
            trainer.precision not in PRECISIONS
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


def _refused_callbacks(trainer: Any) -> str:
    for callback in trainer.callbacks:
        names = [kind.__name__ for kind in type(callback).__mro__]
        known = next((name for name in names if name in CALLBACKS), "")
        if known:
            return f"its callback {names[0]} {CALLBACKS[known]}"
    return ""


def _refused_batch(trainer: Any, layout: Layout, global_batch_size: int) -> str:
    steps, ranks = trainer.accumulate_grad_batches, layout.data_parallel
    if global_batch_size < 1 or global_batch_size % (steps * ranks):
        return (
            f"global_batch_size = {global_batch_size} is no multiple of accumulate_grad_batches = "
            f"{steps} times the {ranks} data parallel ranks of {layout}"
        )
    return ""
