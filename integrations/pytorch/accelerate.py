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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.accelerate_runtime import (
    SameData,
    begun_anew,
    check_layout,
    first_samples,
    inner,
    refused_loader,
    refused_strategy,
    set_epoch,
)
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.reconfig import torch_compat
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State, Stateful

try:
    from accelerate import Accelerator, skip_first_batches
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.scheduler import AcceleratedScheduler
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
    """What a script's `prepare` gave, by kind.

    `schedules` and `registered` (`Accelerator.register_for_checkpointing`) hold also what it kept.
    """

    given: tuple[Any, ...]
    accelerator: Any
    model: Any
    optimizer: Any
    loader: Any
    schedules: tuple[Any, ...]
    registered: tuple[Any, ...]


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
    check_layout(layout, "accelerate")
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
    check_layout(layout, "accelerate")
    with begun_anew(layout):
        made = _by_kind(prepare())
    if words := refusal(made, layout):
        raise InputInvalid(f"accelerate: {words}.")
    order = _Order(made.loader)
    extra: dict[str, Stateful] = {"order": order}
    for what, each in ("schedule", made.schedules), ("registered", made.registered):
        extra |= {f"{what}.{at}" if at else what: one for at, one in enumerate(each)}
    if made.accelerator.scaler is not None:
        extra["scaler"] = made.accelerator.scaler
    state = State(
        modules=[inner(made.model)],
        optimizers=[made.optimizer.optimizer],
        extra=extra,
        loader=order.batches,
        parts=SimpleNamespace(made=made, told=told, ema_decay=ema_decay),
    )
    if ema_decay:
        state.averages["ema"] = begin_average(state.modules)
    return state


def refusal(made: Prepared, layout: Layout) -> str:
    """Return in one sentence why what was prepared cannot be moved; "" when it can."""
    seedable = "Accelerator DataLoaderConfiguration(use_seedable_sampler=True, data_seed=...)"
    return (
        refused_strategy(made.accelerator, layout)
        or refused_loader(made.loader, seedable)
        or _refused_optimizers(made.accelerator)
        or next(filter(None, map(_refused_schedule, made.schedules)), "")
    )


def _refused_optimizers(accelerator: Any) -> str:
    count = len({id(each) for each in torch_compat.part_of(accelerator, "_optimizers")})
    return f"its Accelerator has prepared {count} optimizers, and one is moved" if count > 1 else ""


def _refused_schedule(schedule: Any) -> str:
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
    accelerator = _only(things, Accelerator, "Accelerator")
    kinds = (AcceleratedScheduler, torch.optim.lr_scheduler.LRScheduler)
    own = [each for each in things if isinstance(each, kinds)]
    schedules = _once([*own, *torch_compat.part_of(accelerator, "_schedulers")])
    return Prepared(
        given=tuple(each for each in things if each is not loader),
        accelerator=accelerator,
        model=model,
        optimizer=_only(things, AcceleratedOptimizer, "prepared optimizer"),
        loader=loader,
        schedules=schedules,
        registered=tuple(
            each
            for each in _once(torch_compat.part_of(accelerator, "_custom_objects"))
            if all(each is not known for known in schedules)
        ),
    )


def _once(things: list[Any]) -> tuple[Any, ...]:
    return tuple({id(each): each for each in things}.values())


def _only(things: tuple[Any, ...], kind: type[Any], what: str) -> Any:
    found = [each for each in things if isinstance(each, kind)]
    if len(found) != 1:
        raise InputInvalid(
            f"accelerate: prepare gave {len(found)} of the kind {what}; it shall give one "
            "Accelerator, and one model, optimizer and data loader that this has prepared."
        )
    return found[0]


class _Order(SameData):
    """The order of a run's samples: makes the loader from a position on, and knows its own data."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        if loader.base_dataloader.generator is None:
            # Else each beginning draws a seed from torch's stream, and dropout goes on otherwise.
            loader.base_dataloader.generator = torch.Generator()

    def batches(self, position: Position) -> Any:
        """Give the rest of the epoch in which a position lies."""
        epoch, batch = divmod(position.samples // self._loader.total_batch_size, len(self._loader))
        rest = skip_first_batches(self._loader, batch)
        set_epoch(rest, epoch)
        return rest


def probe(state: State) -> float:
    """Return the loss of the first two samples of the data set, the same on every rank. Collective.

    Raises:
        InputInvalid: the model's output has no `loss`; give `attach` a probe.
    """
    made: Prepared = state.parts.made
    batch = first_samples(made.loader)
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
