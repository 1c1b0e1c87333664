"""torchtitan's Trainer under a session: built anew for each layout, and its loop.

    under_session   a Trainer class that takes the process group as it finds it
    state_of        a built trainer as a session's State
    attach, train   all of it together

Its data loader keeps a place for each data parallel rank and cannot seek, so the data parallel
degree stays (`seekable=False`).

Invariant: nothing of a trainer outlives a boundary, so that a teardown frees its model.
"""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.dataloader import DataloaderExhaustedError
from torchtitan.distributed.parallel_dims import ParallelDims

from wattmesh.errors import InputInvalid
from wattmesh.integrations.torchtitan import on_cpu
from wattmesh.integrations.torchtitan.configuration import (
    configured,
    layout_of,
    refuse_other_beginning,
)
from wattmesh.integrations.torchtitan.fixed_batch import fixed_batch_loss
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.checkpoint.foreign import Save
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State, Stateful

log = logging.getLogger(__name__)

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
    metrics_processor: Any
    checkpointer: Any
    validator: Any
    model_config: Any
    loss_fn: Any
    device: torch.device
    step: int
    ntokens_seen: int

    def batch_generator(self, data_iterable: Any) -> Iterator[Any]:
        """Yield batches for ever."""
        ...

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """Do one optimizer step."""
        ...

    def should_continue_training(self) -> bool:
        """Return whether another step follows."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, and what else a class of yours keeps."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them back."""
        ...


def under_session(trainer: type[Any], device: str = "") -> type[Any]:
    """Return a Trainer class that neither makes nor destroys the process group.

    `device`: "cpu" has its gradients summed as gloo can.
    """

    class UnderSession(trainer):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            if not isinstance(self.checkpointer, CheckpointManager):
                for part in self.model_parts:
                    name_as_held(part)
            if device == "cpu":
                on_cpu.sum_by_gloo(self.model_parts)

        def init_distributed(self) -> ParallelDims:
            # As torchtitan's own does: its meshes are known to the thread that runs forward only.
            torch.autograd.set_multithreading_enabled(False)
            return ParallelDims.from_config(self.config.parallelism, dist.get_world_size())

    UnderSession.__name__ = UnderSession.__qualname__ = f"{trainer.__name__}UnderSession"
    return UnderSession


def refuse_own_loop(trainer: type[Any]) -> None:
    """Refuse a Trainer whose `train` is not torchtitan's: the loop here is in its place.

    Raises:
        InputInvalid: it has one.
    """
    owner = next((each for each in trainer.__mro__ if "train" in vars(each)), trainer)
    if "train" in vars(owner) and owner.__module__ != "torchtitan.trainer":
        raise InputInvalid(
            f"torchtitan: {owner.__name__} has a train of its own, which would not be called: "
            "override train_step, batch_generator or should_continue_training."
        )


def name_as_held(part: torch.nn.Module) -> None:
    """Have fused projections named and loaded as they are held, as their optimizer's slots are.

    torchtitan's hooks split them in three in a state dict, which torch cannot match to parameters.
    """
    for module in part.modules():
        for name in ("_state_dict_hooks", "_load_state_dict_pre_hooks"):
            hooks = torch_compat.part_of(module, name)
            for key, each in list(hooks.items()):
                # By name: importing the class would ask for Triton.
                if getattr(getattr(each, "hook", each), "__qualname__", "") in SPLITTING:
                    del hooks[key]


SPLITTING = ("FusedQKVLinear._split_qkv_on_save", "FusedQKVLinear._merge_qkv_on_load")
"""torchtitan's hooks, which only exist to name three projections where there is one."""


class _Loss:
    """Hears the loss that torchtitan logs, the mean over all ranks."""

    def __init__(self, metrics: Any) -> None:
        self._log = metrics.log
        self.newest: float | None = None
        metrics.log = self

    def __call__(self, step: int, global_avg_loss: float, *args: Any, **named: Any) -> None:
        self.newest = global_avg_loss
        self._log(step, global_avg_loss, *args, **named)

    def take(self) -> float | None:
        """Return it once; None at steps that are not logged."""
        newest, self.newest = self.newest, None
        return newest


COUNTERS = ("step", "ntokens_seen")
"""What torchtitan's Trainer keeps in its `state_dict`."""


class _Steps:
    """torchtitan's own counters, and what else its Trainer's `state_dict` gives.

    Tokens are counted over all ranks, which do not depend on the layout.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def _shares(self) -> int:
        dims = self._trainer.parallel_dims
        return int(dims.dp_replicate * dims.dp_shard * dims.cp)

    def state_dict(self) -> dict[str, Any]:
        seen = self._trainer.ntokens_seen * self._shares
        counted = {"step": self._trainer.step, "ntokens_seen_by_all": seen}
        kept = self._trainer.state_dict()
        own = {key: value for key, value in kept.items() if key not in COUNTERS}
        return {**counted, "own": own} if own else counted

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        seen = state_dict["ntokens_seen_by_all"] // self._shares
        if own := state_dict.get("own"):
            self._trainer.load_state_dict({"step": state_dict["step"], "ntokens_seen": seen, **own})
        self._trainer.step, self._trainer.ntokens_seen = state_dict["step"], seen


def state_of(trainer: Trainer) -> State:
    """Return the state that a built trainer trains with.

    Averages of parameters that a Trainer class of yours keeps go with it, as `averages`: by slot
    ("ema"), then by the parameter's name, sharded as it is.
    """
    extra: dict[str, Stateful] = {
        "lr_schedulers": trainer.lr_schedulers,
        "train_state": _Steps(trainer),
    }
    return State(
        modules=list(trainer.model_parts),
        optimizers=list(trainer.optimizers),
        extra=extra,
        averages=dict(getattr(trainer, "averages", {})),
        by_data_rank={"dataloader": trainer.dataloader},
        parts=SimpleNamespace(trainer=trainer),
    )


def attach(
    name: str,
    trainer: type[Any],
    config: Any,
    *,
    checkpoint_dir: str | Path,
    probe: Probe = fixed_batch_loss,
    layout: Layout | None = None,
    save: Save | None = None,
    device: str = "",
    **settings: Any,
) -> Session:
    """Attach a torchtitan training; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        trainer: torchtitan's Trainer, or a class of yours that is one.
        config: its configuration, `training.global_batch_size` given.
        checkpoint_dir: the run's folder.
        probe: loss of a fixed batch, forward only; `state.parts.trainer` is the trainer. Left out:
            the loss of fixed tokens, for language models.
        layout: where to begin; None takes what the configuration means on the launched ranks.
        save: `own_saves` where torchtitan's checkpoint manager shall write.
        device: "cpu" or "cuda"; "" takes CUDA where it is there.
        settings: passed on to `wattmesh.attach`.

    Raises:
        InputInvalid: the trainer has a loop of its own, or begins with weights from elsewhere.
    """
    refuse_own_loop(trainer)
    refuse_other_beginning(config, own_saves=save is not None)
    if (device := on_cpu.device_of(device)) == "cpu":
        on_cpu.use_cpu()
    kind = under_session(trainer, device)

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
    configured(config, layout)
    if getattr(getattr(config, "profiler", None), "enable_profiling", False):
        log.warning("torchtitan: its profiler is not run under a session; torch's own may be.")
    return hook.attach(
        name,
        build=build,
        probe=probe,
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        save=save,
        device=device,
        **chosen,
    )


def train(session: Session) -> None:
    """Train to the end, as torchtitan's own loop does, its validation included.

    Where the data end before `training.steps`, the run ends, as torchtitan's.
    """
    while not session.done:
        parts = session.state.parts
        if not hasattr(parts, "batches"):
            parts.batches = parts.trainer.batch_generator(parts.trainer.dataloader)
            parts.loss = _Loss(parts.trainer.metrics_processor)
        training = parts.trainer.config.training
        samples = training.global_batch_size
        try:
            loss = _one_step(parts)
        except DataloaderExhaustedError:
            last = True
        else:
            session.report(tokens=samples * training.seq_len, samples=samples, loss=loss)
            last = not parts.trainer.should_continue_training()
        writer = getattr(parts.trainer.metrics_processor, "logger", None)
        number = session.generation.number
        del parts
        session.boundary(last=last)
        if writer is not None and (session.done or session.generation.number != number):
            writer.close()


def _one_step(parts: SimpleNamespace) -> float | None:
    """Do a step, and what torchtitan does after it; nothing of the trainer outlives this frame."""
    trainer: Any = parts.trainer
    trainer.step += 1
    trainer.gc_handler.run(trainer.step)
    try:
        trainer.train_step(parts.batches)
    except DataloaderExhaustedError:
        log.warning("torchtitan: the data have ended; step %d is not trained.", trainer.step)
        trainer.step -= 1
        trainer.optimizers.zero_grad()
        raise
    # torchtitan clears gradients before a step; a boundary needs them cleared after it.
    trainer.optimizers.zero_grad()
    validator = trainer.config.validator
    if validator.enable and trainer.validator.should_validate(trainer.step):
        trainer.validator.validate(trainer.model_parts, trainer.step)
    # A stage before the last one knows no loss.
    loss: float | None = parts.loss.take()
    return None if trainer.parallel_dims.pp_enabled else loss
