"""One training step, the same in every layout, and the state it works on.

Invariant: everything that a step reads is in the `State` or follows from `state.position`; nothing
depends on which rank does the work.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

from examples.pretrain.config import TrainConfig
from examples.pretrain.data import Corpus
from examples.pretrain.gradients import local_gradients, squared_norm_share, sum_over_ranks
from examples.pretrain.parallel import lay_out, make_mesh
from examples.pretrain.runner import Runner
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.state import State
from wattmesh.reconfig.step_log import StepRow


class Warmup:
    """The learning rate rises linearly over the first steps, then stays. Carried whole."""

    def __init__(self, optimizer: Optimizer, learning_rate: float, warmup_steps: int) -> None:
        """Start before the first step."""
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self._warmup_steps = warmup_steps
        self._done = 0

    def advance(self) -> None:
        """Set the rate of the step that comes now."""
        self._done += 1
        share = min(1.0, self._done / self._warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate * share

    def state_dict(self) -> dict[str, Any]:
        """Give the steps done."""
        return {"done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the steps done."""
        self._done = int(state_dict["done"])


@dataclass(frozen=True, slots=True)
class Share:
    """Which samples of every global batch are this rank's: `count` from the `offset`-th on.

    `replicas`: ranks of one pipeline stage, the most that can hold copies of one tensor.
    """

    offset: int
    count: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What one step did, equal on every rank."""

    loss: float
    gradient_norm: float
    samples: int
    tokens: int


def build_state(config: TrainConfig, layout: Layout) -> State:
    """Build what this rank trains with, over the default process group. Collective.

    Raises:
        InputInvalid: the model cannot be laid out like that.
    """
    mesh = make_mesh(layout)
    model, runner = lay_out(config, layout, mesh)
    optimizer = AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )
    state = State(modules=[model], optimizers=[optimizer])
    state.extra["warmup"] = Warmup(optimizer, config.learning_rate, config.warmup_steps)
    data_rank = mesh.get_local_rank("dp_replicate") * layout.dp_shard
    data_rank += mesh.get_local_rank("dp_shard")
    count = config.global_batch // layout.data_parallel
    state.parts.config = config
    state.parts.layout = layout
    state.parts.runner = runner
    state.parts.share = Share(data_rank * count, count, layout.world_size // layout.pp)
    state.parts.corpus = Corpus.open(config.corpus_bytes, config.model.seq_len, config.seed)
    return state


def train_step(state: State) -> Metrics:
    """Do one optimizer step at `state.position`. Collective."""
    config: TrainConfig = state.parts.config
    runner: Runner = state.parts.runner
    share: Share = state.parts.share
    inputs_BS, targets_BS = state.parts.corpus.batch(
        state.position.samples + share.offset, share.count
    )
    loss_share = runner.train(inputs_BS, targets_BS)
    gradients = local_gradients(state.modules)
    loss, squared_norm = sum_over_ranks(loss_share, squared_norm_share(gradients, share.replicas))
    norm = math.sqrt(squared_norm)
    if norm > config.clip_norm:
        torch._foreach_mul_([each.shard for each in gradients], config.clip_norm / norm)
    warmup = state.extra["warmup"]
    assert isinstance(warmup, Warmup)
    warmup.advance()
    for optimizer in state.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return Metrics(
        loss=loss,
        gradient_norm=norm,
        samples=config.global_batch,
        tokens=config.tokens_per_step,
    )


def step_row(state: State, metrics: Metrics, elapsed_s: float, overrun_s: float = 0.0) -> StepRow:
    """Give the log's line for the step just done, before `state.position` moves on."""
    layout: Layout = state.parts.layout
    return StepRow(
        step=state.position.step + 1,
        tokens=state.position.tokens + metrics.tokens,
        loss=metrics.loss,
        layout=str(layout),
        gpus=layout.world_size,
        monotonic_s=time.monotonic(),
        elapsed_s=elapsed_s,
        overrun_s=overrun_s,
    )


def probe(state: State) -> float:
    """Give the loss of one fixed batch that is never trained on at that position. Collective."""
    share: Share = state.parts.share
    fixed = 1 << 60  # a sample number no run reaches
    inputs_BS, targets_BS = state.parts.corpus.batch(fixed + share.offset, share.count)
    return sum_over_ranks(state.parts.runner.evaluate(inputs_BS, targets_BS))[0]
