"""Context parallel: each rank holds a part of every sequence and attends to the whole.

Keys and values are gathered over the context group, queries stay. The sequence is dealt head-tail:
cut into 2 n pieces, rank r gets pieces r and 2 n - 1 - r, so that under a causal mask all ranks
attend to equally many keys.

Shape suffixes: B batch, S this rank's positions, T all positions, H query heads, K key/value heads,
E head width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.integrations.pytorch.collectives import gather


def head_tail(length: int, ranks: int, rank: int) -> Tensor:
    """Return the positions of a sequence that `rank` of `ranks` holds, (length / ranks,).

    `length` must be divisible by 2 * ranks, unless there is one rank.
    """
    if ranks == 1:
        return torch.arange(length)
    piece = length // (2 * ranks)
    head = torch.arange(rank * piece, (rank + 1) * piece)
    tail = torch.arange(length - (rank + 1) * piece, length - rank * piece)
    return torch.cat((head, tail))


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's positions of every sequence, and the group that holds the rest.

    Attributes:
        group: None when this rank holds whole sequences.
        visible_ST: which keys, in the order of the gathered ones, each of its positions may see.
    """

    group: ProcessGroup | None
    positions_S: Tensor
    visible_ST: Tensor | None

    @classmethod
    def deal(
        cls, length: int, ranks: int, rank: int, group: ProcessGroup | None, device: str = "cpu"
    ) -> "Context":
        """Split a sequence of `length` positions over the ranks of `group`."""
        positions_S = head_tail(length, ranks, rank).to(device)
        if group is None:
            return cls(None, positions_S, None)
        positions_T = torch.cat([head_tail(length, ranks, each) for each in range(ranks)])
        return cls(group, positions_S, positions_S[:, None] >= positions_T.to(device))

    def attend(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Attend causally over the whole sequence; H is a multiple of K. Collective."""
        if self.group is None:
            return functional.scaled_dot_product_attention(
                q_BHSE, k_BKSE, v_BKSE, is_causal=True, enable_gqa=True
            )
        both_B2KSE = torch.cat((k_BKSE, v_BKSE), dim=1)
        both_B2KTE = gather(both_B2KSE, self.group).movedim(0, 2).flatten(2, 3)
        k_BKTE, v_BKTE = both_B2KTE.chunk(2, dim=1)
        return functional.scaled_dot_product_attention(
            q_BHSE, k_BKTE, v_BKTE, attn_mask=self.visible_ST, enable_gqa=True
        )
