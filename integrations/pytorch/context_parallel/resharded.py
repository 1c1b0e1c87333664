"""Attention of a layer over fewer ranks than hold a sequence: they deal the samples instead.

Of n ranks that hold parts of the same sequences, every k = n / degree neighbours exchange: each
gets the k parts of one k-th of the samples, attends with the `degree` ranks that hold the rest of
those, and gives back. At degree 1 every rank attends to whole sequences of its samples alone.

Shape suffixes: B batch, S this rank's positions, U = k * S, T all positions, H query heads, K
key/value heads, E head width, A all heads, N ranks that exchange, C = B / k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.integrations.pytorch.collectives import swap
from wattmesh.integrations.pytorch.context_parallel.attention import Attention


@dataclass(frozen=True, slots=True)
class Resharded:
    """Attends to more positions of fewer samples.

    Attributes:
        group: of the ranks that exchange; their number divides the samples of every call.
        inner: attends from the positions of all of them.
    """

    group: ProcessGroup
    inner: Attention

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Return (B, H, S, E). Collective."""
        count = self.group.size()
        heads = [each.shape[1] for each in (q_BHSE, k_BKSE, v_BKSE)]
        all_BASE = torch.cat((q_BHSE, k_BKSE, v_BKSE), dim=1)
        sent_NCASE = torch.unflatten(all_BASE, 0, (count, -1))
        got_CAUE = swap(sent_NCASE, self.group).movedim(0, 2).flatten(2, 3)
        q_CHUE, k_CKUE, v_CKUE = torch.split(got_CAUE, heads, dim=1)
        mixed_CHUE = self.inner(q_CHUE, k_CKUE, v_CKUE)
        back_NCHSE = torch.unflatten(mixed_CHUE, 2, (count, -1)).movedim(2, 0)
        return swap(back_NCHSE, self.group).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Attention on a rank that holds whole sequences, in an order of its own.

    Attributes:
        positions_T: of the sequence, in that order.
    """

    positions_T: Tensor
    causal: bool

    def __call__(self, q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor) -> Tensor:
        """Return (B, H, T, E), in the same order."""
        order = torch.argsort(self.positions_T)
        mixed_BHTE = functional.scaled_dot_product_attention(
            q_BHTE.index_select(2, order),
            k_BKTE.index_select(2, order),
            v_BKTE.index_select(2, order),
            is_causal=self.causal,
            enable_gqa=True,
        )
        return mixed_BHTE.index_select(2, self.positions_T)
