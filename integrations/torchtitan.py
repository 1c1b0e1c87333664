"""torchtitan (0.3): its trainer under a session, by its own extension points.

    parallelism, layout_of      a Layout as torchtitan's ParallelismConfig, and back
    configured                  a trainer's configuration for one layout
    SessionCheckpoints          a checkpoint manager that leaves saving and loading to the session
    own_saves                   or: torchtitan's own manager writes and the session indexes
    under_session               a Trainer class that takes the process group as it finds it
    state_of                    a built trainer as a session's State
    attach, train               all of it together

A trainer is built anew for every layout. Its data loader keeps a place for each data parallel rank
and cannot seek, so the data parallel degree stays (`seekable=False`).

Invariant: the global batch is the same in every layout; what torchtitan would derive from the
degrees is refused.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.checkpoint.foreign import Save, Written
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State, Stateful
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

Probe = Callable[[State], float]


class Trainer(Protocol):
    """The part of torchtitan's Trainer that the adapter uses."""

    config: Any
    parallel_dims: Any
    model_parts: list[torch.nn.Module]
    optimizers: Any
    lr_schedulers: Any
    dataloader: Any
    gc_handler: Any
    step: int
    ntokens_seen: int

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        """Yield batches for ever."""
        ...

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Do one optimizer step."""
        ...


def parallelism(layout: Layout, base: ParallelismConfig) -> ParallelismConfig:
    """Return `base` with the parallel degrees of `layout`.

    Raises:
        InputInvalid: stages are named one by one, which fits one pipeline degree only.
    """
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
        InputInvalid: the global batch is not given, or cannot be divided in this layout.
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
    checkpoint = config.checkpoint
    if not own_saves:
        checkpoint = SessionCheckpoints.Config(enable=True, interval=checkpoint.interval)
    degrees = parallelism(layout, config.parallelism)
    return replace(config, parallelism=degrees, checkpoint=checkpoint)


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


def under_session(trainer: type[Any]) -> type[Any]:
    """Return a Trainer class that neither makes nor destroys the process group."""

    class UnderSession(trainer):  # type: ignore[misc]
        def init_distributed(self) -> ParallelDims:
            return ParallelDims.from_config(self.config.parallelism, dist.get_world_size())

    UnderSession.__name__ = UnderSession.__qualname__ = f"{trainer.__name__}UnderSession"
    return UnderSession


class _Steps:
    """torchtitan's own counters; tokens over all ranks, which do not depend on the layout."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def _shares(self) -> int:
        dims = self._trainer.parallel_dims
        return int(dims.dp_replicate * dims.dp_shard * dims.cp)

    def state_dict(self) -> dict[str, Any]:
        seen = self._trainer.ntokens_seen * self._shares
        return {"step": self._trainer.step, "ntokens_seen_by_all": seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._trainer.step = state_dict["step"]
        self._trainer.ntokens_seen = state_dict["ntokens_seen_by_all"] // self._shares


def state_of(trainer: Trainer) -> State:
    """Return the state that a built trainer trains with."""
    extra: dict[str, Stateful] = {
        "lr_schedulers": trainer.lr_schedulers,
        "train_state": _Steps(trainer),
    }
    return State(
        modules=list(trainer.model_parts),
        optimizers=list(trainer.optimizers),
        extra=extra,
        by_data_rank={"dataloader": trainer.dataloader},
        parts=SimpleNamespace(trainer=trainer),
    )


def attach(
    name: str,
    trainer: type[Any],
    config: Any,
    *,
    probe: Probe,
    layout: Layout | None = None,
    checkpoint_dir: str | Path,
    save: Save | None = None,
    **settings: Any,
) -> Session:
    """Attach a torchtitan training; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        trainer: torchtitan's Trainer, or a class of yours that is one.
        config: its configuration, `training.global_batch_size` given.
        probe: loss of a fixed batch, forward only; `state.parts.trainer` is the trainer.
        layout: where to begin; None takes what the configuration means on the launched ranks.
        checkpoint_dir: the run's folder.
        save: `own_saves` where torchtitan's checkpoint manager shall write.
        settings: passed on to `wattmesh.attach`.
    """
    kind = under_session(trainer)

    def build(layout: Layout, ranks: Ranks) -> State:
        return state_of(kind(configured(config, layout, own_saves=save is not None)))

    training = config.training
    tokens_total = training.steps * training.global_batch_size * training.seq_len
    chosen = {
        "boundary_every": config.checkpoint.interval,
        "tokens_total": tokens_total,
        "seekable": False,
        **settings,
    }
    if layout is None:
        # No process group stands yet: this is how many ranks were launched.
        layout = layout_of(config.parallelism, int(os.environ["WORLD_SIZE"]))
    return hook.attach(
        name,
        build=build,
        probe=probe,
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        save=save,
        **chosen,
    )


def train(session: Session) -> None:
    """Train to the end, as torchtitan's own loop does.

    Raises:
        DataloaderExhaustedError: torchtitan's: the data ended before `training.steps`.
    """
    while not session.done:
        trainer: Trainer = session.state.parts.trainer
        training = trainer.config.training
        if not hasattr(session.state.parts, "batches"):
            session.state.parts.batches = trainer.batch_generator(trainer.dataloader)
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        trainer.train_step(session.state.parts.batches)
        # torchtitan clears gradients before a step; a boundary needs them cleared after it.
        trainer.optimizers.zero_grad()
        samples = training.global_batch_size
        session.report(tokens=samples * training.seq_len, samples=samples)
        del trainer
        session.boundary()
