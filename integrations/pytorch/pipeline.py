"""Runs one rank's part of a global batch: all layers, or the rank's stages of a pipeline.

Schedules are PyTorch's. What is ours: which stages a rank has under each, and that losses and
gradients are sums, whatever the number of microbatches.

Invariant: losses are this rank's *share*, so that a plain sum over all ranks is the loss of the
global batch, and gradients are left summed over microbatches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from wattmesh.integrations.pytorch.data_parallel import shard_again
from wattmesh.reconfig.layout import Layout

STAGES_PER_RANK = {
    "1F1B": 1,
    "GPipe": 1,
    "Interleaved1F1B": 2,
    "InterleavedZeroBubble": 2,
    "ZBVZeroBubble": 2,
}
"""Stages that each rank has under a schedule of `Layout.schedule`."""

LossOf = Callable[[Tensor, Tensor], Tensor]
"""Gives the loss of (logits, targets) of one microbatch, over the global token count."""


@dataclass(frozen=True, slots=True)
class Batch:
    """This rank's samples of one global batch.

    Attributes:
        inputs_BS: of this rank's positions.
        targets_BS: likewise; may have more axes, if the loss wants them.
        samples_B: global sample numbers, int64.
    """

    inputs_BS: Tensor
    targets_BS: Tensor
    samples_B: Tensor


class Runner(Protocol):
    """Runs one rank's part of a global batch. Losses are this rank's share of the sum, fp64."""

    def train(self, batch: Batch) -> Tensor:
        """Forward and backward; sums gradients, returns this rank's share of the loss."""
        ...

    def evaluate(self, batch: Batch) -> Tensor:
        """Forward only."""
        ...


def stage_count(layout: Layout) -> int:
    """Return how many stages the layers are split into."""
    return layout.pp * STAGES_PER_RANK[layout.schedule] if layout.pp > 1 else 1


def stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """List the stages of pipeline rank `rank`: round-robin, or down and up again (V schedule)."""
    count = stage_count(layout)
    if layout.schedule == "ZBVZeroBubble" and layout.pp > 1:
        return (rank, count - 1 - rank)
    return tuple(range(rank, count, layout.pp))


def rank_of(layout: Layout, stage: int) -> int:
    """Return the pipeline rank of a stage."""
    return next(rank for rank in range(layout.pp) if stage in stages_of(layout, rank))


def layers_of(stage: int, stages: int, layers: int) -> range:
    """Return the global indices of a stage's layers; `stages` divides `layers`."""
    each = layers // stages
    return range(stage * each, (stage + 1) * each)


def schedule_problem(layout: Layout, microbatches: int) -> str:
    """Say why a schedule cannot run that many microbatches; "" when it can."""
    if layout.pp == 1:
        return ""
    if microbatches < layout.pp:
        return f"cannot fill pp = {layout.pp} stages"
    rounds = max(1, microbatches // layout.pp)
    if layout.schedule.startswith("Interleaved") and microbatches % rounds:
        return f"is not a whole number of rounds of {layout.pp} ({layout.schedule})"
    return ""


@dataclass(slots=True)
class SingleStage:
    """All layers on this rank: microbatches one after the other.

    Attributes:
        replicas: ranks that compute the same loss (tensor parallel).
    """

    model: nn.Module
    micro_batch: int
    loss_of: LossOf
    replicas: int

    def train(self, batch: Batch) -> Tensor:
        """Accumulate gradients over microbatches."""
        return self._sum(batch, backward=True)

    def evaluate(self, batch: Batch) -> Tensor:
        """Forward only."""
        with torch.no_grad():
            share = self._sum(batch, backward=False)
        shard_again([self.model])
        return share

    def _sum(self, batch: Batch, *, backward: bool) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=batch.inputs_BS.device)
        for x_BS, y_BS, samples_B in zip(
            torch.split(batch.inputs_BS, self.micro_batch),
            torch.split(batch.targets_BS, self.micro_batch),
            torch.split(batch.samples_B, self.micro_batch),
            strict=True,
        ):
            loss = self.loss_of(self.model(x_BS, samples_B=samples_B), y_BS)
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach()
        return total / self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Shapes:
    """Shapes of one microbatch on this rank, as meta tensors.

    Attributes:
        tokens_BS: into the first stage.
        hidden_BSD: between stages.
        logits_BSV: out of the last.
    """

    tokens_BS: Tensor
    hidden_BSD: Tensor
    logits_BSV: Tensor

    @classmethod
    def of(
        cls, *, samples: int, tokens: int, hidden: int, dim: int, vocab: int, dtype: torch.dtype
    ) -> "Shapes":
        """Describe `samples` samples with `tokens` positions on this rank.

        `hidden` of the positions are in its residual stream: fewer under sequence parallel.
        """
        empty = torch.empty(samples, tokens, dtype=torch.long, device="meta")
        stream = torch.empty(samples, hidden, dim, dtype=dtype, device="meta", requires_grad=True)
        logits = torch.empty(samples, tokens, vocab, dtype=dtype, device="meta", requires_grad=True)
        return cls(tokens_BS=empty, hidden_BSD=stream, logits_BSV=logits)


@dataclass(slots=True)
class Pipelined:
    """Layers split into stages: PyTorch's schedule moves microbatches through them.

    Attributes:
        stages: this rank's, by number. `count`: of all ranks.
    """

    stages: dict[int, nn.Module]
    count: int
    layout: Layout
    group: ProcessGroup
    schedule: Any
    shapes: Shapes
    loss_of: LossOf

    def train(self, batch: Batch) -> Tensor:
        """Run the schedule: feed the first stage, collect losses at the last."""
        losses: list[Tensor] = []
        inputs = (batch.inputs_BS,) if 0 in self.stages else ()
        last = self.count - 1 in self.stages
        ending = {"target": batch.targets_BS, "losses": losses} if last else {}
        self.schedule.step(*inputs, **ending, samples_B=batch.samples_B, return_outputs=False)
        return self._share(losses, batch)

    def evaluate(self, batch: Batch) -> Tensor:
        """Run every stage's forward, microbatch after microbatch.

        Not by the schedule's own `eval`: the zero-bubble ones have none that works.
        """
        size = self.shapes.tokens_BS.shape[0]
        samples = torch.split(batch.samples_B, size)
        moving = list(torch.split(batch.inputs_BS, size))
        sent: list[dist.Work] = []
        with torch.no_grad():
            for number, stage in sorted(self.stages.items()):
                for at, samples_B in enumerate(samples):
                    if number and number - 1 not in self.stages:
                        moving[at] = self._receive(number - 1, batch)
                    moving[at] = stage(moving[at], samples_B=samples_B)
                    if number + 1 < self.count and number + 1 not in self.stages:
                        sent.append(self._send(moving[at], number + 1))
            losses = []
            if self.count - 1 in self.stages:
                targets = torch.split(batch.targets_BS, size)
                losses = [self.loss_of(*each) for each in zip(moving, targets, strict=True)]
        for each in sent:
            each.wait()
        shard_again(self.stages.values())
        return self._share(losses, batch)

    def _share(self, losses: Sequence[Tensor], batch: Batch) -> Tensor:
        """Sum up; ranks that do not have the last stage have no losses."""
        total = torch.zeros((), dtype=torch.float64, device=batch.inputs_BS.device)
        for loss in losses:
            total += loss.detach()
        return total / self.layout.tp

    def _send(self, hidden_BSD: Tensor, stage: int) -> dist.Work:
        to = dist.get_global_rank(self.group, rank_of(self.layout, stage))
        work = dist.isend(hidden_BSD.contiguous(), to, group=self.group)
        assert work is not None
        return work

    def _receive(self, stage: int, batch: Batch) -> Tensor:
        hidden_BSD = torch.empty_like(self.shapes.hidden_BSD, device=batch.inputs_BS.device)
        source = dist.get_global_rank(self.group, rank_of(self.layout, stage))
        dist.recv(hidden_BSD, source, group=self.group)
        return hidden_BSD


def make_pipeline(
    modules: Sequence[nn.Module],
    layout: Layout,
    *,
    rank: int,
    group: ProcessGroup,
    device: torch.device,
    shapes: Shapes,
    microbatches: int,
    loss_of: LossOf,
) -> Pipelined:
    """Put this rank's stages into the layout's schedule. Shapes are given, not inferred.

    Args:
        modules: this rank's stages, in the order of `stages_of(layout, rank)`.
        layout: with pp > 1.
        rank: along the pp axis.
        group: of the pp axis.
        device: of the modules.
        shapes: of one microbatch.
        microbatches: of one step.
        loss_of: of one microbatch.
    """
    count, numbers = stage_count(layout), stages_of(layout, rank)
    parts = []
    for number, module in zip(numbers, modules, strict=True):
        part = PipelineStage(
            module,
            number,
            count,
            device,
            input_args=shapes.tokens_BS if number == 0 else shapes.hidden_BSD,
            output_args=shapes.logits_BSV if number == count - 1 else shapes.hidden_BSD,
            group=group,
        )
        parts.append(part)
    kind = get_schedule_class(layout.schedule)
    schedule = kind(
        parts if issubclass(kind, PipelineScheduleMulti) else parts[0],
        microbatches,
        loss_fn=loss_of,
        scale_grads=False,
    )
    stages = dict(zip(numbers, modules, strict=True))
    return Pipelined(stages, count, layout, group, schedule, shapes, loss_of)
