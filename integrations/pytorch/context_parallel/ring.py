"""Ring attention: keys and values go round the ranks, one part at a time (Liu et al. 2023).

No rank ever holds keys and values of more than two parts. The softmax is summed up as the parts
come by, with a running maximum (Milakov and Gimelshein 2018); the backward pass goes round once
more, and the gradients of keys and values travel with them until they are home.

Scores of one part are made whole: plain matrix products, on any device and in any precision; sums
are in fp32 where inputs are shorter.

Shape suffixes: B batch, S this rank's positions, U positions of the part that is here (as many), H
query heads, K key/value heads, G query heads of each, E head width, M = G * S.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Ring:
    """Attends to each rank's keys and values as they come by.

    Attributes:
        visible_ST: which keys, in the order of the ranks, each position may see; None: all. Every
            position must see one of this rank's own.
    """

    group: ProcessGroup
    visible_ST: Tensor | None

    def __call__(self, q_BHSE: Tensor, k_BKSE: Tensor, v_BKSE: Tensor) -> Tensor:
        """Return (B, H, S, E). Collective."""
        mixed: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
            q_BHSE, k_BKSE, v_BKSE, _Part.of(q_BHSE, k_BKSE, self)
        )
        return mixed


class _Attention(torch.autograd.Function):
    """Both passes, each once round the ring."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHSE: Tensor,
        k_BKSE: Tensor,
        v_BKSE: Tensor,
        part: "_Part",
    ) -> Tensor:
        q_BKME = part.grouped(q_BHSE)
        top_BKM1 = torch.full_like(q_BKME[..., :1], -torch.inf)
        below_BKM1 = torch.zeros_like(top_BKM1)
        sum_BKME = torch.zeros_like(q_BKME)
        here = torch.stack((k_BKSE, v_BKSE))
        for hop in range(part.ranks):
            coming = _pass_on(here, part.group) if hop + 1 < part.ranks else None
            k_BKUE, v_BKUE = here.to(q_BKME.dtype)
            scores_BKMU = part.scores(q_BKME, k_BKUE, hop)
            # The first part is this rank's own, of which every position sees one: never -inf.
            new_BKM1 = torch.maximum(top_BKM1, scores_BKMU.amax(-1, keepdim=True))
            weights_BKMU = torch.exp(scores_BKMU - new_BKM1)
            less_BKM1 = torch.exp(top_BKM1 - new_BKM1)
            below_BKM1 = below_BKM1 * less_BKM1 + weights_BKMU.sum(-1, keepdim=True)
            sum_BKME = sum_BKME * less_BKM1 + weights_BKMU @ v_BKUE
            top_BKM1 = new_BKM1
            if coming is not None:
                here = coming.wait()
        mixed_BHSE = part.ungrouped(sum_BKME / below_BKM1).to(q_BHSE.dtype)
        ctx.part = part
        ctx.save_for_backward(q_BHSE, k_BKSE, v_BKSE, mixed_BHSE, top_BKM1 + torch.log(below_BKM1))
        return mixed_BHSE

    @staticmethod
    def backward(ctx: Any, gradient_BHSE: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        part: _Part = ctx.part
        q_BHSE, k_BKSE, v_BKSE, mixed_BHSE, logsum_BKM1 = ctx.saved_tensors
        q_BKME, dmixed_BKME = part.grouped(q_BHSE), part.grouped(gradient_BHSE)
        inner_BKM1 = (dmixed_BKME * part.grouped(mixed_BHSE)).sum(-1, keepdim=True)
        dq_BKME = torch.zeros_like(q_BKME)
        here = torch.stack((k_BKSE, v_BKSE))
        dhere = torch.zeros_like(here, dtype=q_BKME.dtype)
        for hop in range(part.ranks):
            coming = _pass_on(here, part.group) if hop + 1 < part.ranks else None
            k_BKUE, v_BKUE = here.to(q_BKME.dtype)
            weights_BKMU = torch.exp(part.scores(q_BKME, k_BKUE, hop) - logsum_BKM1)
            dweights_BKMU = dmixed_BKME @ v_BKUE.transpose(-1, -2)
            dscores_BKMU = weights_BKMU * (dweights_BKMU - inner_BKM1) * part.scale
            dq_BKME += dscores_BKMU @ k_BKUE
            dhere[0] += dscores_BKMU.transpose(-1, -2) @ q_BKME
            dhere[1] += weights_BKMU.transpose(-1, -2) @ dmixed_BKME
            # As many hops as ranks: the last one brings every gradient home.
            dhere = _pass_on(dhere, part.group).wait()
            if coming is not None:
                here = coming.wait()
        dk_BKSE, dv_BKSE = dhere.to(k_BKSE.dtype)
        return part.ungrouped(dq_BKME).to(q_BHSE.dtype), dk_BKSE, dv_BKSE, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What both passes need to know of one rank's part."""

    group: ProcessGroup
    rank: int
    ranks: int
    queries_per_key: int
    scale: float
    visible_ST: Tensor | None

    @classmethod
    def of(cls, q_BHSE: Tensor, k_BKSE: Tensor, ring: Ring) -> "_Part":
        return cls(
            group=ring.group,
            rank=dist.get_rank(ring.group),
            ranks=dist.get_world_size(ring.group),
            queries_per_key=q_BHSE.shape[1] // k_BKSE.shape[1],
            scale=float(q_BHSE.shape[-1] ** -0.5),
            visible_ST=ring.visible_ST,
        )

    def grouped(self, x_BHSE: Tensor) -> Tensor:
        """Put the query heads of one key head one below the other, (B, K, M, E)."""
        exact = torch.promote_types(x_BHSE.dtype, torch.float32)
        grouped = torch.unflatten(x_BHSE.to(exact), 1, (-1, self.queries_per_key))
        return grouped.flatten(2, 3)

    def ungrouped(self, x_BKME: Tensor) -> Tensor:
        """Undo `grouped`, (B, H, S, E)."""
        return torch.unflatten(x_BKME, 2, (self.queries_per_key, -1)).flatten(1, 2)

    def scores(self, q_BKME: Tensor, k_BKUE: Tensor, hop: int) -> Tensor:
        """Score the keys that are here after `hop` hops, (B, K, M, U); -inf what is not seen."""
        scores_BKMU = q_BKME @ k_BKUE.transpose(-1, -2) * self.scale
        if self.visible_ST is None:
            return scores_BKMU
        owner = (self.rank - hop) % self.ranks
        visible_SU = self.visible_ST.chunk(self.ranks, dim=1)[owner]
        hidden_MU = ~visible_SU.repeat(self.queries_per_key, 1)
        return scores_BKMU.masked_fill(hidden_MU, -torch.inf)


@dataclass(frozen=True, slots=True)
class _Coming:
    """A part on its way here, and ours on its way to the next rank."""

    part: Tensor
    works: list[dist.Work]

    def wait(self) -> Tensor:
        """Wait until both have arrived."""
        for each in self.works:
            each.wait()
        return self.part


def _pass_on(part: Tensor, group: ProcessGroup) -> _Coming:
    """Begin to send a part to the next rank, and to receive that of the one before."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    after = dist.get_global_rank(group, (rank + 1) % ranks)
    before = dist.get_global_rank(group, (rank - 1) % ranks)
    coming = torch.empty_like(part)
    # Two ranks would each send first and wait: a batch begins both.
    pair = [
        dist.P2POp(dist.isend, part.contiguous(), after, group),
        dist.P2POp(dist.irecv, coming, before, group),
    ]
    return _Coming(coming, dist.batch_isend_irecv(pair))
