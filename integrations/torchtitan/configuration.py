"""What torchtitan's configuration says of a layout, and checkpoint managers for a session.

Invariant: the global batch is the same in every layout; what torchtitan would derive from the
degrees is refused.
"""

import inspect
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.foreign import Written
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.universal.index.names import TORCHTITAN

try:
    from torchtitan.components.checkpointer.base import BaseCheckpointManager
    from torchtitan.config.configs import ParallelismConfig
    from torchtitan.distributed.parallel_dims import ParallelDims
except ImportError as error:
    raise ImportError(
        f"wattmesh.integrations.torchtitan needs torchtitan 0.3 in the training environment "
        f"({error})."
    ) from error


def parallelism(layout: Layout, base: ParallelismConfig) -> ParallelismConfig:
    """Return `base` with the parallel degrees of `layout`.

    Raises:
        InputInvalid: stages are named one by one, which fits one pipeline degree only; or the
            layout says how ranks of a context group attend, which is torchtitan's own business, or
            has a bottleneck.
    """
    if layout.cp > 1 and (layout.cp_method != "gather" or layout.cp_layers):
        told = "cp_layers" if layout.cp_layers else f"cp_method = {layout.cp_method}"
        raise InputInvalid(
            f"torchtitan: the layout {layout} has {told}; torchtitan attends over all of cp in "
            "its own way: leave it out."
        )
    if layout.ep_bottleneck > 1:
        raise InputInvalid(
            f"torchtitan: the layout {layout} has ep_bottleneck = {layout.ep_bottleneck}; "
            "torchtitan's models have no maps for that: leave it out."
        )
    if layout.pp > 1 and base.module_fqns_per_model_part is not None:
        raise InputInvalid(
            "torchtitan: parallelism.module_fqns_per_model_part fixes the stages; leave it out, so "
            f"that they can be cut for pp = {layout.pp}."
        )
    return replace(
        base,
        data_parallel_replicate_degree=layout.dp_replicate,
        data_parallel_shard_degree=layout.dp_shard,
        context_parallel_degree=layout.cp,
        tensor_parallel_degree=layout.tp,
        pipeline_parallel_degree=layout.pp,
        expert_parallel_degree=layout.ep,
        pipeline_parallel_schedule=layout.schedule,
        pipeline_parallel_microbatch_size=(
            layout.micro_batch or base.pipeline_parallel_microbatch_size
        ),
    )


def layout_of(config: ParallelismConfig, world_size: int) -> Layout:
    """Return the layout of a configuration on so many ranks.

    Raises:
        InputInvalid: it means none.
    """
    try:
        dims = ParallelDims.from_config(config, world_size)
    except AssertionError as error:
        raise InputInvalid(f"torchtitan: {error}") from error
    return Layout(
        pp=dims.pp,
        dp_replicate=dims.dp_replicate,
        dp_shard=dims.dp_shard,
        cp=dims.cp,
        tp=dims.tp,
        ep=dims.ep,
        schedule=config.pipeline_parallel_schedule,
    )


def configured(config: Any, layout: Layout, *, own_saves: bool = False) -> Any:
    """Return a trainer's configuration for `layout`; without `own_saves` the session saves.

    Raises:
        InputInvalid: the global batch is not given, or cannot be divided in this layout; or this
            torch has not what torchtitan's pipelines need.
    """
    training = config.training
    if training.global_batch_size <= 0:
        raise InputInvalid(
            "torchtitan: training.global_batch_size is left to the data parallel degree, so it "
            "would change with the layout; set it."
        )
    at_once = training.local_batch_size * layout.data_parallel
    if training.global_batch_size % at_once:
        raise InputInvalid(
            f"torchtitan: training.global_batch_size = {training.global_batch_size} cannot be made "
            f"of {at_once} samples at a time (local_batch_size = {training.local_batch_size}, data "
            f"parallel degree {layout.data_parallel})."
        )
    if layout.pp > 1 and not takes_microbatches():
        raise InputInvalid(
            f"torchtitan: the layout {layout} has pp = {layout.pp}, and torchtitan 0.3 gives its "
            f"pipelines microbatches (arg_mbs) that torch {torch.__version__} does not take."
        )
    checkpoint = config.checkpoint
    if not own_saves:
        checkpoint = SessionCheckpoints.Config(enable=True, interval=checkpoint.interval)
    degrees = parallelism(layout, config.parallelism)
    return replace(config, parallelism=degrees, checkpoint=checkpoint)


def refuse_other_beginning(config: Any, *, own_saves: bool) -> None:
    """Refuse to begin anew where torchtitan itself would begin with what it loads.

    Raises:
        InputInvalid: an initial checkpoint is named, or earlier ones of torchtitan's lie where the
            configuration has them (unless it goes on to save there: they may be this run's).
    """
    checkpoint = config.checkpoint
    if not checkpoint.enable:
        return
    if checkpoint.initial_load_path:
        raise InputInvalid(
            f"torchtitan: checkpoint.initial_load_path = {checkpoint.initial_load_path} is not "
            "read: leave it out, and load the weights in a Trainer class of yours, at the end of "
            "its __init__."
        )
    folder = Path(config.dump_folder) / checkpoint.folder
    if not own_saves and any(folder.glob("step-*")):
        raise InputInvalid(
            f"torchtitan: {folder} holds checkpoints of torchtitan's, which the session does not "
            "read: the run would begin anew. If it shall, name another checkpoint.folder."
        )


def takes_microbatches() -> bool:
    """Return whether torch's pipeline schedules take microbatches that were cut before."""
    return "arg_mbs" in inspect.signature(PipelineScheduleSingle.step).parameters


class SessionCheckpoints(BaseCheckpointManager):  # type: ignore[misc]
    """A checkpoint manager that neither saves nor loads: the session does both."""

    save_future: Future[Any] | None = None

    @dataclass(kw_only=True, slots=True)
    class Config(BaseCheckpointManager.Config):  # type: ignore[misc]
        """No settings of its own; the data loader takes its snapshots every `interval` steps."""

    def __init__(self, config: Config, **parts: Any) -> None:
        """Ignore the arguments of a checkpoint manager; the trainer holds them as well."""
        del parts
        self.enable = config.enable

    def _load(self, step: int = -1) -> bool:
        return False

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        return False

    def _maybe_wait_for_staging(self) -> None:
        """Nothing is ever staged."""

    def _wait_for_saving(self) -> None:
        """Nothing is ever written."""

    def _close(self) -> None:
        """Nothing was opened."""


def own_saves(state: State, step: int) -> Written:
    """`attach(..., save=own_saves)`: torchtitan's own manager writes, at once or in the background.

    Raises:
        InputInvalid: its interval left this step out.
    """
    manager = state.parts.trainer.checkpointer
    if not manager.save(step):
        raise InputInvalid(
            f"torchtitan: its checkpoint manager does not save at step {step} (interval "
            f"{manager.interval}); let checkpoint.interval divide boundary_every."
        )
    # The manager forgets a future once it has waited for it, which is before its next save.
    folder = manager._create_checkpoint_id(step)
    return Written(folder=folder, future=manager.save_future, names=TORCHTITAN)
