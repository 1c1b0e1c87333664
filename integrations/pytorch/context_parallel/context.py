"""A rank's positions of every sequence, and how they attend to the whole sequence.

Invariant: what is computed does not depend on the method, the number of ranks, or which of them
holds which positions.

Shape suffixes: B batch, S this rank's positions, T all positions, H query heads, K key/value heads,
E head width.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.context_parallel.gathered import Gathered
from wattmesh.integrations.pytorch.context_parallel.positions import dealt, head_tail
from wattmesh.integrations.pytorch.context_parallel.ring import Ring
from wattmesh.integrations.pytorch.context_parallel.ulysses import Ulysses


class Attention(Protocol):
    """Attends from this rank's positions to the whole sequence."""

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Return (B, H, S, E); H is a multiple of K. Collective."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """Attention on a rank that holds whole sequences."""

    causal: bool

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Attend on this rank alone."""
        return functional.scaled_dot_product_attention(
            q_BHSE, k_BKSE, v_BKSE, is_causal=self.causal, enable_gqa=True
        )


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's positions of every sequence, and how it attends to the rest.

    Attributes:
        group: None when this rank holds whole sequences.
        positions_S: this rank's, in its order.
        attention: the method.
    """

    group: ProcessGroup | None
    positions_S: Tensor
    attention: Attention

    @classmethod
    def deal(
        cls,
        length: int,
        ranks: int,
        rank: int,
        group: ProcessGroup | None,
        device: str = "cpu",
        *,
        causal: bool = True,
        method: str = "gather",
    ) -> "Context":
        """Split a sequence of `length` positions over the ranks of `group`.

        Args:
            length: divisible by 2 * ranks, unless there is one rank.
            ranks: of the group.
            rank: of this process in the group.
            group: None for one rank.
            device: of what is attended to.
            causal: whether a position sees only itself and those before it; else all.
            method: one of `Layout.cp_method`.

        Raises:
            InputInvalid: there is no such method.
        """
        positions_S = head_tail(length, ranks, rank).to(device)
        if group is None:
            return cls(None, positions_S, Whole(causal))
        positions_T = dealt(length, ranks).to(device)
        visible_ST = positions_S[:, None] >= positions_T if causal else None
        attention: Attention
        if method == "gather":
            attention = Gathered(group, visible_ST)
        elif method == "ring":
            attention = Ring(group, visible_ST)
        elif method == "ulysses":
            attention = Ulysses(group, positions_T, causal)
        else:
            raise InputInvalid(f"context parallel: no method {method!r}; gather, ring or ulysses")
        return cls(group, positions_S, attention)

    def attend(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Attend over the whole sequence, (B, H, S, E); H is a multiple of K. Collective."""
        return self.attention(q_BHSE, k_BKSE, v_BKSE)
