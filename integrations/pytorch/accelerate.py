"""Accelerate (1.15): what `Accelerator.prepare` gives, in layouts of dp_replicate and dp_shard.

    session = attach(name, prepare, checkpoint_dir=..., steps=..., boundary_every=...)
    for loss in train(session, micro_step): ...

`prepare` is the script's: it makes an Accelerator and gives it back with all that it prepared. It
is called for each layout, with Accelerate's own shared states emptied before; its data loader goes
on at the global sample.

Invariant: the samples of an optimizer step and the steps of a schedule are the same in every
layout; what Accelerate would derive from the number of processes is refused.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, RandomSampler, default_collate

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State, Stateful

try:
    from accelerate import Accelerator, DistributedType, skip_first_batches
    from accelerate.data_loader import DataLoaderShard, SeedableRandomSampler
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState, GradientState
except ImportError as error:
    raise ImportError(
        "wattmesh.integrations.pytorch.accelerate needs accelerate 1.15 in the training "
        f"environment ({error})."
    ) from error

Prepare = Callable[[], tuple[Any, ...]]
"""The script's: an Accelerator and what it prepared (model, optimizer, loader; a schedule)."""

MicroStep = Callable[..., Tensor]
"""The script's: called with what `prepare` gave, the loader left out, and a batch; its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a script's `prepare` gave, by kind."""

    given: tuple[Any, ...]
    accelerator: Any
    model: Any
    optimizer: Any
    loader: Any
    schedule: Any


def attach(
    name: str,
    prepare: Prepare,
    *,
    checkpoint_dir: str | Path,
    steps: int,
    boundary_every: int = 20,
    sample_tokens: int = 1,
    layout: Layout | None = None,
    ema_decay: float = 0.0,
    **settings: Any,
) -> Session:
    """Attach a script that trains through Accelerate; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        prepare: makes everything, from `Accelerator(...)` to `accelerator.prepare(...)`, and gives
            back the accelerator and what was prepared, in any order.
        checkpoint_dir: the run's folder.
        steps: the run is done after so many optimizer steps; 0 leaves it to `Session.finish`.
        boundary_every: optimizer steps between save steps.
        sample_tokens: tokens of a sample.
        layout: where to begin; None shards over all launched ranks.
        ema_decay: keeps an average of the parameters (`state.averages["ema"]`); 0: none.
        settings: passed on to `wattmesh.attach`, as `device` or `probe`. Without a probe the loss
            of two samples is taken from the model's output.

    Raises:
        InputInvalid: a layout that is not moved to, or `steps` that end between two save steps.
    """
    if steps % boundary_every:
        raise InputInvalid(
            f"accelerate: steps = {steps} is no multiple of boundary_every = {boundary_every}; a "
            "run ends at a save step."
        )
    layout = layout or Layout(dp_shard=int(os.environ.get("WORLD_SIZE", "1")))
    check_layout(layout)
    told = SimpleNamespace(tokens=sample_tokens, steps=steps)
    return hook.attach(
        name,
        build=partial(build_state, prepare, told, ema_decay),
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        boundary_every=boundary_every,
        **{"probe": probe, **settings},
    )


def train(session: Session, micro_step: MicroStep) -> Iterator[float]:
    """Train to the end; gives each optimizer step's loss, the mean over ranks and microbatches.

    `micro_step` does one batch inside `accelerator.accumulate(model)`; a step ends where Accelerate
    has synchronized gradients.
    """
    while not session.done:
        told = session.state.parts.told
        loss, samples = _one_step(session.state, micro_step)
        session.report(tokens=samples * told.tokens, samples=samples, loss=loss)
        yield loss
        if told.steps and session.position.step >= told.steps:
            session.finish()
        session.boundary()


def _one_step(state: State, micro_step: MicroStep) -> tuple[float, int]:
    """Do batches until an optimizer step is done; nothing of the model outlives this frame."""
    made: Prepared = state.parts.made
    losses = []
    while True:
        batch = next(state.batches)
        losses.append(micro_step(*made.given, batch).detach().double().mean().cpu())
        if made.accelerator.sync_gradients:
            break
    if "ema" in state.averages:
        move_average(state.modules, state.averages["ema"], state.parts.ema_decay)
    return mean_over_ranks(torch.stack(losses).mean()), len(losses) * made.loader.total_batch_size


def build_state(
    prepare: Prepare, told: SimpleNamespace, ema_decay: float, layout: Layout, ranks: Ranks
) -> State:
    """Call the script's `prepare` for a layout, and take what it gave. Collective.

    Raises:
        InputInvalid: this is not moved; the sentence says why.
    """
    del ranks
    check_layout(layout)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with _degrees(layout):
        made = _by_kind(prepare())
    if words := refusal(made, layout):
        raise InputInvalid(f"accelerate: {words}.")
    order = _Order(made.loader)
    extra: dict[str, Stateful] = {"order": order}
    if made.schedule is not None:
        extra["schedule"] = made.schedule
    if made.accelerator.scaler is not None:
        extra["scaler"] = made.accelerator.scaler
    state = State(
        modules=[_inner(made.model)],
        optimizers=[made.optimizer.optimizer],
        extra=extra,
        loader=order.batches,
        parts=SimpleNamespace(made=made, told=told, ema_decay=ema_decay),
    )
    if ema_decay:
        state.averages["ema"] = begin_average(state.modules)
    return state


def check_layout(layout: Layout) -> None:
    """Refuse what Accelerate's scripts are not moved to.

    Raises:
        InputInvalid: with the degree.
    """
    others = [name for name in ("pp", "cp", "tp", "ep") if getattr(layout, name) > 1]
    if others:
        raise InputInvalid(
            f"accelerate: the layout {layout} has {others[0]} = {getattr(layout, others[0])}; a "
            "script is moved over dp_replicate and dp_shard only."
        )
    if layout.micro_batch or layout.recompute:
        raise InputInvalid(
            "accelerate: micro_batch and recompute of a layout are not carried out; the script "
            "accumulates and checkpoints activations itself, the same in every layout."
        )


def refusal(made: Prepared, layout: Layout) -> str:
    """Return in one sentence why what was prepared cannot be moved; "" when it can."""
    return _refused_strategy(made.accelerator, layout) or _refused_data(made)


def _refused_strategy(accelerator: Any, layout: Layout) -> str:
    kind = accelerator.distributed_type
    sharding = accelerator.is_fsdp2
    whole = {DistributedType.MEGATRON_LM: "Megatron-LM", DistributedType.XLA: "XLA"}
    found = {
        f"its Accelerator has {accelerator.num_processes} processes and the layout {layout} has "
        f"{layout.world_size} ranks (on the CPU it wants cpu=True)": (
            accelerator.num_processes != layout.world_size
        ),
        "its DeepSpeed plugin is not moved; attach DeepSpeed's own engine": (
            kind == DistributedType.DEEPSPEED
        ),
        f"{whole.get(kind, kind)} is not moved, FSDP2 and DDP are": kind in whole,
        "FSDP1 is not moved; set fsdp_version=2": kind == DistributedType.FSDP and not sharding,
        "parameters that FSDP2 keeps on the CPU are not moved": (
            sharding and bool(getattr(accelerator.state.fsdp_plugin.cpu_offload, "pin_memory", 0))
        ),
        f"the layout {layout} shards, and the script's Accelerator has no FSDP2 plugin": (
            layout.dp_shard > 1 and not sharding
        ),
        f"the layout {layout} only replicates, which Accelerate does without its FSDP2 plugin": (
            layout.dp_replicate > 1 and layout.dp_shard == 1 and sharding
        ),
    }
    return next((words for words, holds in found.items() if holds), "")


def _refused_data(made: Prepared) -> str:
    loader, schedule = made.loader, made.schedule
    if not isinstance(loader, DataLoaderShard):
        return (
            f"its loader is a {type(loader).__name__}, which cannot begin at a sample; leave "
            "dispatch_batches and use_stateful_dataloader off"
        )
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is read one after the other and cannot begin at a sample"
    sampler = _sampler_of(loader)
    if isinstance(sampler, RandomSampler) and not isinstance(sampler, SeedableRandomSampler):
        return (
            "its data are shuffled in an order that cannot be made again; give Accelerator "
            "DataLoaderConfiguration(use_seedable_sampler=True, data_seed=...)"
        )
    follows = isinstance(schedule, AcceleratedScheduler) and schedule.step_with_optimizer
    if follows and not schedule.split_batches:
        return (
            "its schedule would step once for every process, another number in every layout; give "
            "Accelerator DataLoaderConfiguration(split_batches=True), or "
            "step_scheduler_with_optimizer=False"
        )
    return ""


def _by_kind(given: Any) -> Prepared:
    """Sort what a script gave.

    Raises:
        InputInvalid: one is missing, or there is more than one.
    """
    things = given if isinstance(given, tuple) else (given,)
    model = _only(things, nn.Module, "model")
    loader = _only(things, torch.utils.data.DataLoader, "data loader")
    schedules = (AcceleratedScheduler, torch.optim.lr_scheduler.LRScheduler)
    return Prepared(
        given=tuple(each for each in things if each is not loader),
        accelerator=_only(things, Accelerator, "Accelerator"),
        model=model,
        optimizer=_only(things, AcceleratedOptimizer, "prepared optimizer"),
        loader=loader,
        schedule=next((each for each in things if isinstance(each, schedules)), None),
    )


def _only(things: tuple[Any, ...], kind: type[Any], what: str) -> Any:
    found = [each for each in things if isinstance(each, kind)]
    if len(found) != 1:
        raise InputInvalid(
            f"accelerate: prepare gave {len(found)} of the kind {what}; it shall give one "
            "Accelerator, and one model, optimizer and data loader that this has prepared."
        )
    return found[0]


def _inner(model: Any) -> nn.Module:
    """Return the model under DDP, or the model: its parameters have their own names there."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
    inner: nn.Module = model.module if wrapped else model
    return inner


def _sampler_of(loader: Any) -> Any:
    """Return the sampler that orders the data set, beneath Accelerate's own."""
    found = loader.batch_sampler
    while hasattr(found, "batch_sampler"):
        found = found.batch_sampler
    return getattr(found, "sampler", None)


class _Order:
    """The order of a run's samples: makes the loader from a position on, and knows its own data."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        if loader.base_dataloader.generator is None:
            # Else each beginning draws a seed from torch's stream, and dropout goes on otherwise.
            loader.base_dataloader.generator = torch.Generator()

    def batches(self, position: Position) -> Any:
        """Give the rest of the epoch in which a position lies."""
        epoch, batch = divmod(position.samples // self._loader.total_batch_size, len(self._loader))
        rest = skip_first_batches(self._loader, batch)
        rest.iteration = epoch
        sampler = _sampler_of(rest)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        return rest

    def state_dict(self) -> dict[str, Any]:
        """Say which data these are."""
        seed = getattr(_sampler_of(self._loader), "initial_seed", -1)
        return {
            "samples": len(self._loader.dataset),
            "batch": self._loader.total_batch_size,
            "seed": int(seed),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Compare with what the run has read so far.

        Raises:
            InputInvalid: it is another data set, batch or order.
        """
        mine = self.state_dict()
        for what, before in state_dict.items():
            if mine[what] != before:
                raise InputInvalid(
                    f"accelerate: the run's data had {what} = {before}, now it is {mine[what]}; "
                    "it goes on with the same samples in the same order, or as another run."
                )


@contextmanager
def _degrees(layout: Layout) -> Iterator[None]:
    """Tell the script's Accelerator how to replicate, as `accelerate launch` does."""
    if layout.dp_replicate == 1 or layout.dp_shard == 1:
        yield
        return
    told = {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": str(layout.dp_replicate),
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": str(layout.dp_shard),
    }
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def probe(state: State) -> float:
    """Return the loss of the first two samples of the data set, the same on every rank. Collective.

    Raises:
        InputInvalid: the model's output has no `loss`; give `attach` a probe.
    """
    made: Prepared = state.parts.made
    data, collate = made.loader.dataset, made.loader.collate_fn or default_collate
    batch = collate([data[0], data[min(1, len(data) - 1)]])
    was_training = made.model.training
    made.model.eval()
    with torch.no_grad():
        batch = {name: each.to(made.accelerator.device) for name, each in dict(batch).items()}
        loss = getattr(made.model(**batch), "loss", None)
    made.model.train(was_training)
    if loss is None:
        raise InputInvalid(
            "accelerate: the model's output has no loss; give attach a probe=, the loss of a fixed "
            "batch."
        )
    return mean_over_ranks(loss.double())
