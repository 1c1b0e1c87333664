"""Causal language models of transformers under FSDP2 and their own tensor-parallel plans.

    attach          a run, made of the script's own functions
    train           its loop: one loss per optimizer step
    build_state     a State for one layout
    sharded         a model, cut by its `tp_plan` and sharded by FSDP2
    clip_grad_norm  the norm over parameters that lie on different meshes
    in_order        a loader over a data set, that begins at any sample in any layout

The model is made whole on every rank, then cut by transformers' own styles.

Invariant: the global batch is the same in every layout. A layout, or a plan, in which the model
would compute something else is refused before the model is changed.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.pytorch.gradients import (
    clip,
    local_gradients,
    squared_norm_share,
    sum_over_ranks,
)
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.integrations.pytorch.ordered_data import NumberedBatch, RankLoader, in_order
from wattmesh.reconfig.hook import session as hook
from wattmesh.reconfig.hook.session import Session
from wattmesh.reconfig.launch.group import mean_over_ranks
from wattmesh.reconfig.layout import Layout, Ranks
from wattmesh.reconfig.position import Position
from wattmesh.reconfig.state.state import State

try:
    from transformers import PreTrainedModel
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism
except ImportError as error:
    raise ImportError(
        "wattmesh.integrations.huggingface needs transformers 5.24 in the training environment "
        f"({error})."
    ) from error

LINEAR = frozenset({"colwise", "rowwise", "colwise_gather_output"})
EMBEDDING = "embedding_rowwise"
SUMMED = "replicated_with_grad_allreduce"
"""Style of what is whole on every rank, and sees only this rank's heads (Qwen3's q_norm)."""

__all__ = [
    "NumberedBatch",
    "attach",
    "build_state",
    "clip_grad_norm",
    "in_order",
    "sharded",
    "train",
]

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
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Any], Any]
    loader: RankLoader
    global_batch: int
    seq_len: int
    device: str = "cpu"
    mp_policy: MixedPrecisionPolicy | None = None
    ema_decay: float = 0.0


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

    state = State(modules=[model], optimizers=[optimizer], loader=loader)
    if schedule is not None:
        state.extra["schedule"] = schedule
    if recipe.ema_decay:
        state.averages["ema"] = begin_average(state.modules)
    state.parts.recipe = recipe
    return state


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


def sharded(model: nn.Module, meshes: Meshes, mp_policy: MixedPrecisionPolicy | None) -> nn.Module:
    """Cut a whole model by its `tp_plan` where tp > 1, and shard it by FSDP2; in place.

    Blocks are sharded by the `*` rules of the model's `fsdp_plan`, all else with its root.

    Raises:
        InputInvalid: this is no model of transformers, or its plan does not fit the layout.
    """
    if not isinstance(model, PreTrainedModel):
        raise InputInvalid(
            f"transformers: the script makes a {type(model).__name__}, which is no PreTrainedModel "
            "and has no tensor-parallel plan; attach it by a `build` of your own."
        )
    empty = next((name for name, each in model.named_parameters() if each.is_meta), "")
    if empty:
        raise InputInvalid(
            f"transformers: {empty} is on the meta device and has no values; make the model with "
            "its weights on the CPU."
        )
    if meshes.layout.tp > 1:
        _cut(model, meshes)
    policy = mp_policy or MixedPrecisionPolicy()
    plan = model.fsdp_plan or {}
    blocks = [
        module
        for name, module in model.named_modules()
        if "*" in (key := _rule(name)) and key in plan
    ]
    for each in reversed(blocks):
        fully_shard(each, mesh=meshes.data, mp_policy=policy)
    fully_shard(model, mesh=meshes.data, mp_policy=policy)
    return model


def _cut(model: Any, meshes: Meshes) -> None:
    tp = meshes.layout.tp
    mesh = meshes.parameters["tp"]
    plan: dict[str, str] = model._expand_parallel_plan(model.tp_plan or {})
    modules = dict(model.named_modules())
    _check_plan(model, plan, modules, tp)
    tied = _tied(model)
    for names in tied:
        _untie(modules, names)
    summed = [name for name, style in plan.items() if style == SUMMED]
    apply_tensor_parallelism(
        model, mesh, {name: style for name, style in plan.items() if style != SUMMED}
    )
    for name in summed:
        if name in modules:
            modules[name].register_forward_pre_hook(_SumGradients(mesh.get_group()))
    for names in tied:
        _tie_again(modules, names)


def _check_plan(model: Any, plan: dict[str, str], modules: dict[str, nn.Module], tp: int) -> None:
    """Refuse what transformers would cut wrongly, or in a way that no test of ours has seen."""
    if not plan:
        raise InputInvalid(
            f"transformers: {type(model).__name__} has no tensor-parallel plan, so tp = {tp} is "
            "not possible; set `model.tp_plan` where the model is made."
        )
    config = model.config.get_text_config()
    for what in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, what, None) or 0
        for count in heads if isinstance(heads, list) else [heads]:
            if count % tp:
                raise InputInvalid(
                    f"transformers: {what} = {count} cannot be shared by tp = {tp} ranks: a head "
                    "would be cut in two."
                )
    for name, style in plan.items():
        kind = {EMBEDDING: nn.Embedding} | dict.fromkeys(LINEAR, nn.Linear)
        if style != SUMMED and style not in kind:
            raise InputInvalid(
                f"transformers: {name} has the tensor-parallel style {style}; tested are "
                f"{', '.join(sorted(LINEAR | {EMBEDDING, SUMMED}))}."
            )
        # A parameter's own entry is held by its module's.
        if style in kind and name in modules and type(modules[name]) is not kind[style]:
            raise InputInvalid(
                f"transformers: {name} is a {type(modules[name]).__name__}, and its style {style} "
                f"cuts a {kind[style].__name__}; adapters and quantized layers are not cut."
            )


def _tied(model: nn.Module) -> list[list[str]]:
    """List the names of each parameter that has more than one."""
    names: dict[int, list[str]] = {}
    for name, each in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(each), []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _place(modules: dict[str, nn.Module], name: str) -> tuple[nn.Module, str]:
    module, _, own = name.rpartition(".")
    return modules[module], own


def _untie(modules: dict[str, nn.Module], names: list[str]) -> None:
    """Give each name a parameter of its own: transformers finds only the first name of one."""
    for module, own in (_place(modules, name) for name in names[1:]):
        tied: Any = module._parameters[own]
        module._parameters[own] = nn.Parameter(tied.detach(), requires_grad=tied.requires_grad)


def _tie_again(modules: dict[str, nn.Module], names: list[str]) -> None:
    """Make one parameter of those that were one before each was cut by its own rule."""
    places = [_place(modules, name) for name in names]
    first: Any = places[0][0]._parameters[places[0][1]]
    for (module, own), name in zip(places, names, strict=True):
        found: Any = module._parameters[own]
        if getattr(found, "placements", None) != getattr(first, "placements", None):
            raise InputInvalid(
                f"transformers: {names[0]} and {name} are one tensor, and the tensor-parallel plan "
                "cuts them in two ways; give both a rule that cuts the vocabulary."
            )
        module._parameters[own] = first


class _SumGradients:
    """Sums the gradients of a module's own parameters over ranks that each saw a part of the heads.

    On the gradient that comes, not on what has been accumulated: transformers' own hook would sum
    the first microbatch again where FSDP2 synchronizes only the last.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._hooked: dict[str, nn.Parameter] = {}

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not torch.is_grad_enabled():
            return
        for name, each in module.named_parameters(recurse=False):
            if each.requires_grad and self._hooked.get(name) is not each:
                each.register_hook(self._sum)  # type: ignore[no-untyped-call]
                self._hooked[name] = each

    def _sum(self, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total, group=self._group)
        return total


def clip_grad_norm(model: nn.Module, max_norm: float) -> float:
    """Scale gradients down to a global norm of at most `max_norm`; gives the norm. Collective.

    The numbers of torch's `clip_grad_norm_`, which takes no gradients on different meshes (tp).
    """
    gradients = local_gradients([model])
    (squares,) = sum_over_ranks(squared_norm_share(gradients, dist.get_world_size()))
    norm = float(squares.sqrt())
    clip(gradients, norm + 1e-6, max_norm)  # torch adds as much
    return norm


def _rule(name: str) -> str:
    """Return a module's name as plans have it, with `*` for the number of a layer."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)
