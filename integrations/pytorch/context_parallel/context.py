"""A rank's positions of every sequence, and how each layer attends to the whole sequence.

Invariant: what is computed does not depend on the method, the number of ranks, or which of them
holds which positions.

Shape suffixes: B batch, S this rank's positions, T all positions, H query heads, K key/value heads,
E head width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.context_parallel.attention import Attention
from wattmesh.integrations.pytorch.context_parallel.carried import Carried
from wattmesh.integrations.pytorch.context_parallel.gathered import Gathered
from wattmesh.integrations.pytorch.context_parallel.positions import head_tail
from wattmesh.integrations.pytorch.context_parallel.resharded import Ordered, Resharded
from wattmesh.integrations.pytorch.context_parallel.ring import Ring
from wattmesh.integrations.pytorch.context_parallel.ulysses import Ulysses
from wattmesh.reconfig.layout import CP_METHODS


@dataclass(frozen=True, slots=True)
class WholeSequences:
    """Attention on a rank that holds whole sequences."""

    causal: bool

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Attend on this rank alone."""
        return functional.scaled_dot_product_attention(
            q_BHSE, k_BKSE, v_BKSE, is_causal=self.causal, enable_gqa=True
        )


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The groups of a layer whose attention is over fewer ranks than the context group has.

    Attributes:
        exchange: neighbours in the context group, which deal samples among them.
        attend: one rank of each such group, in their order; None: a single rank.
    """

    exchange: ProcessGroup
    attend: ProcessGroup | None


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's positions of every sequence, and how it attends to the rest.

    Attributes:
        group: None when this rank holds whole sequences.
        positions_S: this rank's, in its order.
        attention: the method.
        by_layer: of each layer, where they differ; () when all have `attention`.
        carried: how layers that are recurrences go along the whole sequence, over all its ranks.
    """

    group: ProcessGroup | None
    positions_S: Tensor
    attention: Attention
    by_layer: tuple[Attention, ...] = ()
    carried: Carried = field(default_factory=Carried)

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
        parts = [head_tail(length, ranks, each).to(device) for each in range(ranks)]
        if group is None:
            return cls(None, parts[rank], WholeSequences(causal))
        attention = _attention(group, parts, causal, method)
        return cls(group, parts[rank], attention, carried=Carried(group))

    def narrowed(
        self,
        degrees: Sequence[int],
        groups: Mapping[int, Narrowed],
        *,
        length: int,
        causal: bool,
        method: str,
    ) -> "Context":
        """Give each layer a number of ranks that its attention is over.

        Args:
            degrees: by layer; each divides the ranks of the group.
            groups: by degree; none for that of the whole group.
            length: as in `deal`, like what follows.
            causal: likewise.
            method: likewise; of layers over more than one rank.
        """
        if self.group is None:
            return self
        ranks, device = self.group.size(), self.positions_S.device
        made: dict[int, Attention] = {ranks: self.attention}
        for degree, of in groups.items():
            dealt = [head_tail(length, ranks, each).to(device) for each in range(ranks)]
            near = ranks // degree
            parts = [torch.cat(dealt[at : at + near]) for at in range(0, ranks, near)]
            if of.attend is None:
                made[degree] = Resharded(of.exchange, Ordered(parts[0], causal))
            else:
                inner = _attention(of.attend, parts, causal, method)
                made[degree] = Resharded(of.exchange, inner)
        return replace(self, by_layer=tuple(made[each] for each in degrees))

    def attend(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor, layer: int = 0) -> Tensor:
        """Attend over the whole sequence, (B, H, S, E); H is a multiple of K. Collective."""
        attention = self.by_layer[layer] if self.by_layer else self.attention
        return attention(q_BHSE, k_BKSE, v_BKSE)


def _attention(
    group: ProcessGroup, parts: Sequence[Tensor], causal: bool, method: str
) -> Attention:
    """Make a method for ranks that hold these positions, in the order of the group."""
    if method not in CP_METHODS:
        raise InputInvalid(
            f"context parallel: no method {method!r}; one of {', '.join(CP_METHODS)}"
        )
    positions_T = torch.cat(list(parts))
    positions_S = parts[group.rank()]
    visible_ST = positions_S[:, None] >= positions_T if causal else None
    if method == "gather":
        return Gathered(group, visible_ST)
    if method == "ring":
        return Ring(group, visible_ST)
    return Ulysses(group, positions_T, causal)
