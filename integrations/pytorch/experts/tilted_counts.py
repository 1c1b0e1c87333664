"""Tilts the loss-free balancing that a model already has: torchtitan's MoE, and what is like it.

Such a block counts tokens by expert (`tokens_per_expert_E`), and its trainer moves a bias
(`expert_bias_E`) by the sign of mean count - count before each optimizer step. Counts of
`n - mean(n) * (f - 1)` make that the sign of `f * mean(n) - n`, so the bias steers loads to factors
f of the mean, without a change to router, trainer or checkpoint.

Invariant: without costs (f = 1) counts and bias are what they were, bit for bit. What is taken off
is linear in the counts, so each rank may do it before they are summed.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.experts.router import LOAD_CAP, load_factors, unusable


class TiltedCounts:
    """The blocks of a model, and the factors of their loads."""

    def __init__(self, parts: Iterable[nn.Module], load_cap: float = LOAD_CAP) -> None:
        """Find the blocks of a model, or of a pipeline stage's parts.

        Raises:
            InputInvalid: there is none with a balancing bias.
        """
        self._blocks: list[Any] = [
            each for part in parts for each in part.modules() if _is_balanced(each)
        ]
        self._cap = load_cap
        self._factors: dict[int, Tensor] = {}
        if not self._blocks:
            raise InputInvalid("no block of this model balances its experts by expert_bias_E")

    @property
    def tilted(self) -> tuple[tuple[Any, Tensor], ...]:
        """The blocks that lean now, by layer, and the factors of their loads."""
        return tuple((self._blocks[at], factors) for at, factors in self._factors.items())

    def set_costs(self, costs: Sequence[float], strength: float) -> str:
        """Take costs as `EnergyRouter.set_costs` does, one for each expert of every block."""
        experts = len(self._blocks[0].tokens_per_expert_E)
        if any(len(each.tokens_per_expert_E) != experts for each in self._blocks):
            reason = "blocks have different numbers of experts"
        else:
            reason = unusable(costs, strength, experts)
        self._factors = {}
        if not reason and any(costs) and strength:
            factors = load_factors([float(each) for each in costs], strength, self._cap)
            tensor = torch.tensor(factors)
            self._factors = {at: tensor for at in range(len(self._blocks))}
        return reason

    @torch.no_grad()
    def before_step(self) -> None:
        """Call once before each optimizer step, before the trainer moves the bias."""
        for at, factors in self._factors.items():
            counts = self._blocks[at].tokens_per_expert_E
            own = counts.to_local() if isinstance(counts, DTensor) else counts
            own -= own.mean() * (factors.to(own) - 1)


def _is_balanced(module: nn.Module) -> bool:
    counts = getattr(module, "tokens_per_expert_E", None)
    return isinstance(counts, Tensor) and isinstance(getattr(module, "expert_bias_E", None), Tensor)
