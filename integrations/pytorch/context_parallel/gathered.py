"""Attention with keys and values gathered over the context group; queries stay.

Simple, and any number of heads will do. Every rank holds keys and values of whole sequences.

Shape suffixes: B batch, S this rank's positions, T all positions, H query heads, K key/value heads,
E head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.integrations.pytorch.collectives import gather


@dataclass(frozen=True, slots=True)
class Gathered:
    """Attends to keys and values of all ranks at once.

    Attributes:
        visible_ST: which keys, in the order of the gathered ones, each position may see; None: all.
    """

    group: ProcessGroup
    visible_ST: Tensor | None

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Return (B, H, S, E). Collective."""
        both_B2KSE = torch.cat((k_BKSE, v_BKSE), dim=1)
        both_B2KTE = gather(both_B2KSE, self.group).movedim(0, 2).flatten(2, 3)
        k_BKTE, v_BKTE = both_B2KTE.chunk(2, dim=1)
        return functional.scaled_dot_product_attention(
            q_BHSE, k_BKTE, v_BKTE, attn_mask=self.visible_ST, enable_gqa=True
        )
