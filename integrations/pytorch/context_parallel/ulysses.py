"""Ulysses attention: an all-to-all turns parts of sequences into whole ones of some of the heads.

Each rank then attends on its own, by whatever kernel there is, and another all-to-all turns heads
back into parts of sequences (Jacobs et al. 2023). Where there are fewer key/value heads than ranks
they are repeated.

Shape suffixes: B batch, S this rank's positions, T all positions, H query heads, K key/value heads,
E head width, N ranks, A heads of one rank (its queries', keys' and values').
"""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.integrations.pytorch.collectives import swap


@dataclass(frozen=True, slots=True)
class Ulysses:
    """Attends over whole sequences, with an equal part of the heads.

    Attributes:
        positions_T: of the sequence, in the order of the ranks that hold them.
        causal: whether a position sees only itself and those before it.
    """

    group: ProcessGroup
    positions_T: Tensor
    causal: bool

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Return (B, H, S, E). `head_problem` must be empty. Collective."""
        ranks = dist.get_world_size(self.group)
        again = copies(k_BKSE.shape[1], ranks)
        shares = [q_BHSE.shape[1] // ranks] + [k_BKSE.shape[1] * again // ranks] * 2
        heads = (q_BHSE, *(each.repeat_interleave(again, dim=1) for each in (k_BKSE, v_BKSE)))
        sent_NBASE = torch.cat(
            [torch.unflatten(each, 1, (ranks, -1)) for each in heads], 2
        ).movedim(1, 0)
        got_BATE = swap(sent_NBASE, self.group).movedim(0, 2).flatten(2, 3)
        # In the order of the positions, so that kernels that know "causal" need no mask.
        got_BATE = got_BATE.index_select(2, torch.argsort(self.positions_T))
        q_BHTE, k_BKTE, v_BKTE = torch.split(got_BATE, shares, dim=1)
        mixed_BHTE = functional.scaled_dot_product_attention(
            q_BHTE, k_BKTE, v_BKTE, is_causal=self.causal, enable_gqa=True
        )
        back_BHTE = mixed_BHTE.index_select(2, self.positions_T)
        back_NBHSE = torch.unflatten(back_BHTE, 2, (ranks, -1)).movedim(2, 0)
        return swap(back_NBHSE, self.group).movedim(0, 1).flatten(1, 2)


def copies(kv_heads: int, ranks: int) -> int:
    """Return how often each key/value head is repeated, so that the ranks divide them."""
    return ranks // math.gcd(kv_heads, ranks)


def head_problem(heads: int, kv_heads: int, ranks: int) -> str:
    """Say why heads cannot be dealt over `ranks` ranks; "" when they can.

    Args:
        heads: query heads of one tensor-parallel rank.
        kv_heads: its key/value heads; they divide the query heads.
        ranks: of the context group.
    """
    if heads % ranks:
        return f"{heads} query heads of a tp rank cannot be dealt over cp = {ranks} ranks (ulysses)"
    repeated = kv_heads * copies(kv_heads, ranks)
    if heads % repeated:
        return (
            f"{kv_heads} key/value heads of a tp rank, repeated to {repeated} for cp = {ranks} "
            f"ranks (ulysses), do not divide its {heads} query heads"
        )
    return ""
