"""A causal language model's training under a session: a State for any layout, and the loop.

Invariant: the global batch is the same in every layout.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.optim import Optimizer

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.pytorch.gradients import (
    clip,
    local_gradients,
    squared_norm_share,
    sum_over_ranks,
)
from wattmesh.integrations.pytorch.huggingface.sharding import sharded
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.integrations.pytorch.ordered_data import NumberedBatch, RankLoader
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State, Stateful

TrainStep = Callable[[Any, Optimizer, Any, Any], Tensor]
"""The script's `train_step(model, optimizer, schedule, batch)`: one optimizer step, its loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a script gives, the same for every layout.

    Attributes:
        model: makes the model, the same on every rank, on the CPU.
        optimizer: makes the optimizer of a sharded model, or (optimizer, schedule).
        loader: gives the batches of one data parallel rank: `loader(first, rank, ranks)` begins at
            the global sample `first` and gives `global_batch / ranks` samples at a time, without
            end; as NumberedBatch where the session shall see which. `in_order` makes one.
        global_batch: samples of an optimizer step, over all ranks.
        seq_len: tokens of a sample, and of the probe's.
        device: "cpu" or "cuda".
        mp_policy: FSDP2's mixed precision: parameters and optimizer stay as the model has them.
        ema_decay: keeps an average of the parameters (`state.averages["ema"]`); 0: none.
        extra: makes what else the script keeps, by name, equal on every rank: a GradScaler, counts
            (`state.extra[name]`).
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], Any]
    loader: RankLoader
    global_batch: int
    seq_len: int
    device: str = "cpu"
    mp_policy: MixedPrecisionPolicy | None = None
    ema_decay: float = 0.0
    extra: Callable[[], Mapping[str, Stateful]] = dict


def attach(
    name: str,
    model: Callable[[], nn.Module],
    optimizer: Callable[[Any], Any],
    loader: RankLoader,
    *,
    global_batch: int,
    seq_len: int,
    checkpoint_dir: str | Path,
    layout: Layout | None = None,
    steps: int = 0,
    device: str = "cpu",
    mp_policy: MixedPrecisionPolicy | None = None,
    ema_decay: float = 0.0,
    extra: Callable[[], Mapping[str, Stateful]] = dict,
    **settings: Any,
) -> Session:
    """Attach the training of a causal language model; see `wattmesh.attach`.

    Args:
        name: what people call the run.
        model: makes the whole model; all of these as in Recipe.
        optimizer: makes its optimizer, or (optimizer, schedule).
        loader: gives a data parallel rank's batches from a global sample on.
        global_batch: samples of an optimizer step, over all ranks.
        seq_len: tokens of a sample.
        checkpoint_dir: the run's folder.
        layout: where to begin; None shards over all launched ranks.
        steps: the run is done after so many; 0 leaves it to `Session.finish`.
        device: "cpu" or "cuda".
        mp_policy: FSDP2's mixed precision.
        ema_decay: of an average of the parameters; 0: none.
        extra: makes what else the script keeps, by name.
        settings: passed on to `wattmesh.attach`, as `probe` or `boundary_every`.
    """
    recipe = Recipe(
        model=model,
        optimizer=optimizer,
        loader=loader,
        global_batch=global_batch,
        seq_len=seq_len,
        device=device,
        mp_policy=mp_policy,
        ema_decay=ema_decay,
        extra=extra,
    )
    # No process group stands yet: this is how many ranks were launched.
    layout = layout or Layout(dp_shard=int(os.environ.get("WORLD_SIZE", "1")))
    check_layout(layout, global_batch)
    given = {"probe": partial(probe, seq_len=seq_len), **settings}
    return hook.attach(
        name,
        build=partial(build_state, recipe),
        layout=layout,
        checkpoint_dir=checkpoint_dir,
        tokens_total=steps * global_batch * seq_len,
        device=device,
        **given,
    )


def train(session: Session, train_step: TrainStep) -> Iterator[float]:
    """Train to the end; gives each step's loss, the mean over ranks, before its boundary."""
    while not session.done:
        recipe: Recipe = session.state.parts.recipe
        loss, numbers = _one_step(session.state, train_step)
        samples = recipe.global_batch
        session.report(tokens=samples * recipe.seq_len, samples=samples, loss=loss, data=numbers)
        yield loss
        session.boundary()


def _one_step(state: State, train_step: TrainStep) -> tuple[float, Any]:
    """Do a step; nothing of the model outlives this frame."""
    batch = next(state.batches)
    numbers: Any = ()
    if isinstance(batch, NumberedBatch):
        numbers, batch = batch
    (model,), (optimizer,) = state.modules, state.optimizers
    loss = mean_over_ranks(train_step(model, optimizer, state.extra.get("schedule"), batch))
    if "ema" in state.averages:
        move_average(state.modules, state.averages["ema"], state.parts.recipe.ema_decay)
    return loss, numbers


def build_state(recipe: Recipe, layout: Layout, ranks: Ranks) -> State:
    """Build what this rank trains with, over the default process group. Collective.

    Raises:
        InputInvalid: this model cannot be trained in this layout; the sentence says why.
    """
    del ranks
    check_layout(layout, recipe.global_batch)
    meshes = Meshes.make(layout, recipe.device)
    model = sharded(recipe.model(), meshes, recipe.mp_policy)
    made = recipe.optimizer(model)
    optimizer, schedule = made if isinstance(made, tuple) else (made, None)
    mine, of = meshes.place.data_rank(layout), layout.data_parallel

    def loader(position: Position) -> Iterable[Any]:
        return recipe.loader(position.samples, mine, of)

    extra = dict(recipe.extra())
    _refuse_scalers(extra, layout)
    if schedule is not None:
        if "schedule" in extra:
            raise InputInvalid(
                "transformers: `extra` names a 'schedule', as `optimizer` gives one; rename it."
            )
        extra["schedule"] = schedule
    state = State(modules=[model], optimizers=[optimizer], loader=loader, extra=extra)
    if recipe.ema_decay:
        state.averages["ema"] = begin_average(state.modules)
    state.parts.recipe = recipe
    return state


def _refuse_scalers(extra: Mapping[str, Stateful], layout: Layout) -> None:
    """Refuse a GradScaler under tp: some ranks would skip a step that the others do."""
    named = [name for name, each in extra.items() if isinstance(each, torch.amp.GradScaler)]
    if named and layout.tp > 1:
        raise InputInvalid(
            f"transformers: the GradScaler {named[0]!r} is not moved to {layout}: torch tells "
            "infinite gradients only to the ranks that share the first parameter, and not all tp "
            "ranks do. Use bf16, or layouts without tp."
        )


def check_layout(layout: Layout, global_batch: int) -> None:
    """Refuse what no model of transformers is moved to here.

    Raises:
        InputInvalid: with the degree, or the numbers that do not divide.
    """
    others = [name for name in ("pp", "cp", "ep") if getattr(layout, name) > 1]
    if others:
        raise InputInvalid(
            f"transformers: the layout {layout} has {others[0]} = {getattr(layout, others[0])}; a "
            "model is moved over dp_replicate, dp_shard and tp only."
        )
    if layout.micro_batch or layout.recompute:
        raise InputInvalid(
            "transformers: micro_batch and recompute of a layout are not carried out; the script "
            "accumulates and checkpoints activations itself, the same in every layout."
        )
    if global_batch < 1 or global_batch % layout.data_parallel:
        raise InputInvalid(
            f"transformers: a global batch of {global_batch} samples cannot be shared by "
            f"{layout.data_parallel} data parallel ranks (layout {layout})."
        )


def probe(state: State, *, seq_len: int) -> float:
    """Return the loss of two fixed sequences, the same ones on every rank. Collective."""
    model: Any = state.modules[0]
    was_training = model.training
    words = model.config.get_text_config().vocab_size
    drawn = torch.Generator().manual_seed(1)
    tokens_BS = torch.randint(words, (2, max(2, min(seq_len, 512))), generator=drawn)
    tokens_BS = tokens_BS.to(next(model.parameters()).device)
    model.eval()
    with torch.no_grad():
        logits_BSV = model(input_ids=tokens_BS, use_cache=False).logits
    model.train(was_training)
    # Not by `labels=`: transformers' own loss rounds to fp32 first.
    logits_NV = logits_BSV[:, :-1].flatten(0, 1).double()
    return mean_over_ranks(nn.functional.cross_entropy(logits_NV, tokens_BS[:, 1:].flatten()))


def clip_grad_norm(model: nn.Module, max_norm: float) -> float:
    """Scale gradients down to a global norm of at most `max_norm`; gives the norm. Collective.

    The numbers of torch's `clip_grad_norm_`, which takes no gradients on different meshes (tp).
    """
    gradients = local_gradients([model])
    (squares,) = sum_over_ranks(squared_norm_share(gradients, dist.get_world_size()))
    norm = float(squares.sqrt())
    clip(gradients, norm + 1e-6, max_norm)  # torch adds as much
    return norm
