"""How one rank does its part of a global batch: all layers here, or one stage of a pipeline.

Invariant: losses are this rank's *share*, so that a plain sum over all ranks is the loss of the
global batch, and gradients are left summed over microbatches.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional


class Runner(Protocol):
    """How one rank does its part of a global batch. Losses are this rank's share of the sum."""

    def train(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Forward and backward; leaves summed gradients, gives the share of the loss."""
        ...

    def evaluate(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Forward only."""
        ...


@dataclass(slots=True)
class Whole:
    """All layers are on this rank: microbatches one after the other."""

    model: nn.Module
    micro_batch: int
    tokens_per_step: int
    tp: int

    def train(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Accumulate gradients over microbatches."""
        return self._sum(inputs_BS, targets_BS, backward=True)

    def evaluate(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Forward only."""
        with torch.no_grad():
            share = self._sum(inputs_BS, targets_BS, backward=False)
        shard_again(self.model)
        return share

    def _sum(self, inputs_BS: Tensor, targets_BS: Tensor, *, backward: bool) -> Tensor:
        """Sum the loss over microbatches."""
        total = torch.zeros((), dtype=torch.float64)
        size = self.micro_batch
        for x_BS, y_BS in zip(
            torch.split(inputs_BS, size), torch.split(targets_BS, size), strict=True
        ):
            loss = token_loss(self.model(x_BS), y_BS, self.tokens_per_step)
            if backward:
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            total += loss.detach().cpu()
        return total / self.tp


@dataclass(slots=True)
class Pipelined:
    """Layers are spread over stages: PyTorch's schedule moves microbatches through them."""

    model: nn.Module
    schedule: Any
    first: bool
    last: bool
    tp: int

    def train(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Run the schedule with backward."""
        return self._run(self.schedule.step, inputs_BS, targets_BS)

    def evaluate(self, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Run the schedule's forward half."""
        with torch.no_grad():
            share = self._run(self.schedule.eval, inputs_BS, targets_BS)
        shard_again(self.model)
        return share

    def _run(self, run: Any, inputs_BS: Tensor, targets_BS: Tensor) -> Tensor:
        """Feed the first stage, collect losses at the last; other stages have none."""
        losses: list[Tensor] = []
        inputs = (inputs_BS,) if self.first else ()
        if self.last:
            run(*inputs, target=targets_BS, losses=losses, return_outputs=False)
        else:
            run(*inputs, return_outputs=False)
        total = torch.zeros((), dtype=torch.float64)
        for loss in losses:
            total += loss.detach().cpu()
        return total / self.tp


def token_loss(logits_BSV: Tensor, targets_BS: Tensor, tokens_per_step: int) -> Tensor:
    """Give the summed cross-entropy over the *global* token count.

    A mean of microbatch means would weigh tokens by how a layout happens to group them.
    """
    summed = functional.cross_entropy(
        logits_BSV.flatten(0, 1), targets_BS.flatten(), reduction="sum"
    )
    return summed / tokens_per_step


def shard_again(model: nn.Module) -> None:
    """Shard again what a forward without backward has left gathered: checkpoints read shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
