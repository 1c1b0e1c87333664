"""Hugging Face's Trainer (transformers 5.24), in layouts of dp_replicate and dp_shard.

    session = attach(name, make_trainer, global_batch_size=..., checkpoint_dir=...)
    train(session)

`make_trainer` is the script's: it gives a Trainer, of any class, that has not trained yet. It is
called for each layout, with Accelerate's shared states emptied before.

Invariant: the samples of an optimizer step are the same in every layout: accumulation stays as the
script has it, and the batch of a device follows.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.accelerate_runtime import (
    SameData,
    begun_anew,
    check_layout,
    first_samples,
    inner,
)
from wattmesh.integrations.pytorch.averages import begin_average
from wattmesh.integrations.pytorch.huggingface.trainer_refusals import (
    refused_arguments,
    refused_preparation,
)
from wattmesh.integrations.pytorch.huggingface.trainer_session import (
    LoopLeft,
    PreparedOnly,
    TrainerProgress,
    put_before,
)
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.state.state import State, Stateful

MakeTrainer = Callable[[], Any]
"""The script's: makes arguments, model, data and a Trainer of them."""

AfterTraining = Callable[[Any], object]
"""The script's: called with the trainer once it has trained, while all ranks are there."""


def attach(
    name: str,
    make_trainer: MakeTrainer,
    *,
    global_batch_size: int,
    checkpoint_dir: str | Path,
    boundary_every: int = 20,
    sample_tokens: int = 1,
    layout: Layout | None = None,
    device: str = "",
    ema_decay: float = 0.0,
    **settings: Any,
) -> Session:
    """Attach a script that trains with Hugging Face's Trainer; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        make_trainer: gives a Trainer that has not trained yet.
        global_batch_size: samples of an optimizer step, over all ranks; takes the place of
            `per_device_train_batch_size`.
        checkpoint_dir: the run's folder.
        boundary_every: optimizer steps between save steps; Trainer's own saves are its own matter.
        sample_tokens: tokens of a sample.
        layout: where to begin; None shards over all launched ranks.
        device: "cpu" or "cuda"; "" takes CUDA where it is there.
        ema_decay: keeps an average of the parameters (`state.averages["ema"]`); 0: none.
        settings: passed on to `wattmesh.attach`, as `probe`. Without a probe it is the loss of two
            samples.

    Raises:
        InputInvalid: a layout that is not moved to, or a training that is not moved.
    """
    layout = layout or Layout(dp_shard=int(os.environ.get("WORLD_SIZE", "1")))
    check_layout(layout, "Trainer")
    told = SimpleNamespace(
        global_batch_size=global_batch_size,
        sample_tokens=sample_tokens,
        boundary_every=boundary_every,
    )
    return hook.attach(
        name,
        build=partial(build_state, make_trainer, told, ema_decay),
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        boundary_every=boundary_every,
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
        **{"probe": probe, **settings},
    )


def train(session: Session, then: AfterTraining | None = None) -> Any:
    """Train to the end; the loop is Trainer's, and ends where Trainer ends.

    Args:
        session: from `attach`.
        then: called with the trainer after its last step, before the ranks part: for
            `trainer.save_model()` and its like.

    Returns:
        Trainer's TrainOutput; None where this rank was not in the last layout, or where the
        session ended before.
    """
    output = None
    while not session.done:
        trained, output = _until_left(session, then)
        session.boundary(last=trained)
    return output


def _until_left(session: Session, then: AfterTraining | None) -> tuple[bool, Any]:
    """Train until all is trained or a switch waits; nothing of the trainer outlives this frame."""
    trainer = session.state.parts.trainer
    if 0 < trainer.state.max_steps <= session.position.step:
        return True, None
    try:
        output = trainer.go_on_training(session)
    except LoopLeft:
        return False, None
    if then is not None:
        then(trainer)
    return True, output


def build_state(
    make_trainer: MakeTrainer,
    told: SimpleNamespace,
    ema_decay: float,
    layout: Layout,
    ranks: Ranks,
) -> State:
    """Call the script's `make_trainer` for a layout, and prepare its training. Collective.

    Raises:
        InputInvalid: this is not moved; the sentence says why.
    """
    del ranks
    check_layout(layout, "Trainer")
    with begun_anew(layout):
        trainer = prepared(make_trainer, layout, **vars(told))
    # Trainer empties the accelerator as it begins, and would take the prepared model from it.
    trainer.accelerator.free_memory = _keep
    extra: dict[str, Stateful] = {
        "data": SameData(trainer.progress.loader),
        "schedule": trainer.lr_scheduler,
        "trainer": trainer,
    }
    if trainer.accelerator.scaler is not None:
        extra["scaler"] = trainer.accelerator.scaler
    state = State(
        modules=[inner(trainer.model_wrapped)],
        optimizers=[trainer.optimizer.optimizer],
        extra=extra,
        parts=SimpleNamespace(trainer=trainer),
    )
    if ema_decay:
        trainer.progress.ema_decay = ema_decay
        state.averages["ema"] = begin_average(state.modules)
    return state


def prepared(
    make_trainer: MakeTrainer,
    layout: Layout,
    global_batch_size: int,
    sample_tokens: int,
    boundary_every: int,
) -> Any:
    """Make a trainer for a layout, and have it prepare model, optimizer, schedule and loader.

    Raises:
        InputInvalid: this is not moved; the sentence says why.
    """
    trainer = make_trainer()
    _refuse(refused_arguments(trainer, layout, global_batch_size))
    args = trainer.args
    window = global_batch_size // args.gradient_accumulation_steps
    # What callbacks hold goes with the run, whatever Trainer does at resumes of its own.
    args.restore_callback_states_from_checkpoint = True
    progress = TrainerProgress(
        window=window, sample_tokens=sample_tokens, boundary_every=boundary_every
    )
    put_before(trainer, progress)
    trainer.take_batch(window // layout.world_size)
    with suppress(PreparedOnly):
        trainer.train()
    _refuse(refused_preparation(trainer, window))
    return trainer


def _keep(*objects: Any) -> Any:
    return objects


def _refuse(words: str) -> None:
    if words:
        raise InputInvalid(f"Trainer: {words}.")


def probe(state: State) -> float:
    """Return the loss of the first two samples of the data set, the same on every rank. Collective.

    It is what the trainer's own `compute_loss` gives in evaluation.
    """
    trainer = state.parts.trainer
    return mean_over_ranks(trainer.loss_of(first_samples(trainer.progress.loader)).double())
