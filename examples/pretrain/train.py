"""One training step, the same in every layout, and the state it works on.

Invariant: everything that a step reads is in the `State` or follows from `state.position`. Nothing
depends on which rank does the work.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from examples.pretrain.config import TrainConfig, check_layout
from examples.pretrain.data import Corpus
from examples.pretrain.experts import MixtureOfExperts
from examples.pretrain.model import Block, noise_of
from examples.pretrain.pace import Work
from examples.pretrain.parallel import lay_out, stacks_of
from wattmesh.integrations.pytorch.averages import begin_average, move_average
from wattmesh.integrations.pytorch.gradients import (
    clip,
    expert_squares,
    local_gradients,
    squared_norm_share,
    sum_over_ranks,
)
from wattmesh.integrations.pytorch.meshes import Meshes
from wattmesh.integrations.pytorch.optimizer import ShardAdamW
from wattmesh.integrations.pytorch.pipeline import Batch, Runner
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.step_log import StepRow


class Warmup:
    """A learning rate that rises linearly over the first steps, then stays; stored whole."""

    def __init__(
        self, optimizers: Sequence[Optimizer], learning_rate: float, warmup_steps: int
    ) -> None:
        """Start before the first step."""
        self._optimizers = optimizers
        self._learning_rate = learning_rate
        self._warmup_steps = warmup_steps
        self._done = 0

    def advance(self) -> None:
        """Set the learning rate of the next step."""
        self._done += 1
        share = min(1.0, self._done / self._warmup_steps)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._learning_rate * share

    def state_dict(self) -> dict[str, Any]:
        """Return the steps done."""
        return {"done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the steps done."""
        self._done = int(state_dict["done"])


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's part of every global batch: `count` samples from sample `offset` on.

    Attributes:
        positions_S: positions of each sample, in this rank's order.
        replicas: ranks of one pipeline stage, the most that can hold copies of one tensor.
    """

    offset: int
    count: int
    positions_S: Tensor
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The result of one step, equal on all ranks except `data`, the samples that this rank read."""

    loss: float
    gradient_norm: float
    samples: int
    tokens: int
    data: Tensor


def build_state(
    config: TrainConfig,
    layout: Layout,
    *,
    device: str = "cpu",
    fresh: bool = True,
    placement: Placement = (),
) -> State:
    """Build what this rank trains with, over the default process group. Collective.

    Args:
        config: what is trained.
        layout: for as many ranks as the group has.
        device: "cpu" or "cuda".
        fresh: whether to initialize parameters; False if a checkpoint follows.
        placement: by layer, the expert in each slot; () in the order of their numbers.

    Raises:
        InputInvalid: the model does not fit the layout.
    """
    check_layout(config, layout)
    meshes = Meshes.make(layout, device, experts=config.model.experts > 0)
    stages, runner = lay_out(config, meshes, fresh=fresh, placement=placement)
    optimizers: list[Optimizer] = [
        ShardAdamW(
            stage.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        for stage in stages
    ]
    state = State(modules=list(stages), optimizers=optimizers)
    state.experts = stacks_of(config, stages, placement)
    if config.ema_decay:
        state.averages["ema"] = begin_average(stages)
    state.extra["warmup"] = Warmup(optimizers, config.learning_rate, config.warmup_steps)
    count = config.global_batch // layout.data_parallel
    state.parts.config = config
    state.parts.layout = layout
    state.parts.runner = runner
    state.parts.share = Share(
        meshes.place.data_rank(layout) * count,
        count,
        stages[0].where.context.positions_S,
        layout.world_size // layout.pp,
    )
    state.parts.noise = noise_of(config)
    state.parts.corpus = Corpus.open(config.corpus_bytes, config.model.seq_len, config.seed)
    return state


def local_batch(state: State, first: int) -> Batch:
    """Read this rank's part of the global batch that begins at sample `first`."""
    share: Share = state.parts.share
    start = first + share.offset
    inputs_BS, targets_BS = state.parts.corpus.batch(start, share.count)
    positions_S = share.positions_S
    inputs_BS = inputs_BS.to(positions_S.device)[:, positions_S]
    targets_BS = targets_BS.to(positions_S.device)[:, positions_S]
    samples_B = torch.arange(start, start + share.count, device=positions_S.device)
    if state.parts.noise is not None:
        inputs_BS, targets_BS = state.parts.noise(inputs_BS, samples_B, positions_S)
    return Batch(inputs_BS, targets_BS, samples_B)


def train_step(state: State) -> Metrics:
    """Do one optimizer step at `state.position`. Collective."""
    config: TrainConfig = state.parts.config
    runner: Runner = state.parts.runner
    batch = local_batch(state, state.position.samples)
    loss_share = runner.train(batch)
    gradients = local_gradients(state.modules)
    counts = expert_counts(state.modules, config.model.layers)
    dense, squares = _squared_norms(state)
    loss, squared_norm, counts, squares = sum_over_ranks(loss_share, dense, counts, squares)
    norm = math.sqrt(squared_norm + squares.sum())
    clip(gradients, norm, config.clip_norm)
    warmup = state.extra["warmup"]
    assert isinstance(warmup, Warmup)
    warmup.advance()
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    rebalance(state.modules, counts, config.router_bias_rate)
    if config.ema_decay:
        move_average(state.modules, state.averages["ema"], config.ema_decay)
    return Metrics(
        loss=float(loss),
        gradient_norm=norm,
        samples=config.global_batch,
        tokens=config.tokens_per_step,
        data=batch.samples_B,
    )


def _squared_norms(state: State) -> tuple[Tensor, Tensor]:
    """Return this rank's shares of squared gradient norms: of the dense part, of each expert.

    Experts by (layer, number), so that a norm does not depend on where they lie.
    """
    config: TrainConfig = state.parts.config
    blocks = _mixtures(state.modules)
    stacks = [list(each.feed_forward.experts.parameters()) for each in blocks]
    own = [each for stack in stacks for each in stack]
    gradients = local_gradients(state.modules, without=own)
    placement = state.experts.placement if state.experts else ()
    rows = [placement[each.number] for each in blocks] if placement else []
    dense = squared_norm_share(gradients, state.parts.share.replicas)
    shape = (config.model.layers, config.model.experts)
    squares = torch.zeros(shape, dtype=torch.float64, device=dense.device)
    if blocks:
        numbers = [each.number for each in blocks]
        squares[numbers] = expert_squares(stacks, rows, config.model.experts)
    return dense, squares


def expert_counts(modules: Sequence[nn.Module], layers: int) -> Tensor:
    """Return the tokens that each expert got on this rank, (layers, experts); empty if dense."""
    found = {block.number: block.feed_forward.counts_X for block in _mixtures(modules)}
    if not found:
        return torch.zeros(0, device=next(modules[0].parameters()).device)
    empty = torch.zeros_like(next(iter(found.values())))
    return torch.stack([found.get(number, empty) for number in range(layers)])


def rebalance(modules: Sequence[nn.Module], counts: Tensor, rate: float) -> None:
    """Update every router's bias from the global batch's counts, (layers, experts)."""
    for block in _mixtures(modules):
        block.feed_forward.rebalance(counts[block.number], rate)


def _mixtures(modules: Sequence[nn.Module]) -> list[Any]:
    return [
        each
        for module in modules
        for each in module.modules()
        if isinstance(each, Block) and isinstance(each.feed_forward, MixtureOfExperts)
    ]


def step_row(state: State, metrics: Metrics, work: Work) -> StepRow:
    """Make the log line of the step just done; call it before `state.position` moves on."""
    layout: Layout = state.parts.layout
    return StepRow(
        step=state.position.step + 1,
        tokens=state.position.tokens + metrics.tokens,
        loss=metrics.loss,
        layout=str(layout),
        gpus=layout.world_size,
        monotonic_s=time.monotonic(),
        elapsed_s=work.elapsed_s,
        computed_s=work.computed_s,
        overrun_s=work.overrun_s,
    )


def probe(state: State) -> float:
    """Return the loss of one fixed batch that no training step uses. Collective."""
    fixed = 1 << 60  # a sample number that no run reaches
    for module in state.modules:
        module.eval()
    share = state.parts.runner.evaluate(local_batch(state, fixed))
    for module in state.modules:
        module.train()
    return float(sum_over_ranks(share)[0])
