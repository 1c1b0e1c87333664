"""Expert parallel: an all-to-all sends tokens to their experts' ranks, another returns results.

Uneven all-to-alls in both directions; no token is ever dropped, so what a token's experts compute
does not depend on how many ranks share them.

Experts may lie in any order (`placed_as`). Rows then leave and return in the order of the experts'
numbers, and an expert computes the same rows in the same order wherever it lies, so that not a bit
of outputs or gradients depends on the placement. (Gradients of maps that `back` learns by are sums
over the rows of a rank, and follow it by rounding.)

Shape suffixes: N rows (a token once for each of its experts), X experts in all, L experts of this
rank, R rows received, D model width. What is sent for rows may have another width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from wattmesh.integrations.pytorch.collectives import exchange


class Experts(Protocol):
    """Applies this rank's experts to rows sorted by expert."""

    def __call__(self, rows_RD: Tensor, counts_L: Tensor) -> Tensor:
        """Return (R, D); the first `counts_L[0]` rows are the first expert's, and so on."""
        ...


class Passage(Protocol):
    """What rows are on their way from one rank to another."""

    def pack(self, rows_ND: Tensor) -> Tensor:
        """Return what is sent for rows, (N, any width)."""
        ...

    def unpack(self, sent: Tensor) -> Tensor:
        """Return rows (N, D) for what was sent."""
        ...


class Unchanged:
    """Rows are sent as they are."""

    def pack(self, rows_ND: Tensor) -> Tensor:
        """Return the rows."""
        return rows_ND

    def unpack(self, sent: Tensor) -> Tensor:
        """Return the rows."""
        return sent


@dataclass(frozen=True, slots=True)
class ExpertParallel:
    """Dispatches rows to experts; without a group, all experts are on this rank.

    `there` and `back` are applied to every row, also where none is sent.
    """

    group: ProcessGroup | None = None
    placement_X: Tensor | None = None
    """The expert in each slot; None: slot i holds expert i."""
    there: Passage = field(default_factory=Unchanged)
    back: Passage = field(default_factory=Unchanged)

    def placed_as(self, placement: Sequence[int], device: torch.device | str) -> "ExpertParallel":
        """Dispatch to experts that lie in this order; () in the order of their numbers."""
        order_X = torch.tensor(placement, device=device) if placement else None
        return replace(self, placement_X=order_X)

    def __call__(self, experts: Experts, rows_ND: Tensor, counts_X: Tensor) -> Tensor:
        """Apply experts to rows sorted by expert: (N, D) in and out. Collective.

        Args:
            experts: of this rank; slot `r * L + l` is slot `l` of rank `r`.
            rows_ND: sorted by expert.
            counts_X: rows per expert, int64; may be zero.
        """
        if self.placement_X is None:
            return self._by_slot(experts, rows_ND, counts_X)
        there_N = _slots_of_rows(counts_X, self.placement_X)
        back_N = torch.empty_like(there_N)
        back_N[there_N] = torch.arange(len(there_N), device=there_N.device)
        sent_ND = _moved(rows_ND, there_N)
        done_ND = self._by_slot(experts, sent_ND, counts_X[self.placement_X])
        return _moved(done_ND, back_N)

    def _by_slot(self, experts: Experts, rows_ND: Tensor, counts_X: Tensor) -> Tensor:
        """Apply experts to rows sorted by slot."""
        packed_N = self.there.pack(rows_ND)
        if self.group is None:
            done_ND = experts(self.there.unpack(packed_N), counts_X)
            return self.back.unpack(self.back.pack(done_ND))
        ranks = dist.get_world_size(self.group)
        received_X = torch.empty_like(counts_X)
        dist.all_to_all_single(received_X, counts_X, group=self.group)
        sent_RL, got_RL = counts_X.view(ranks, -1), received_X.view(ranks, -1)
        sent, got = sent_RL.sum(1).tolist(), got_RL.sum(1).tolist()
        got_RD = self.there.unpack(exchange(packed_N, sent, got, self.group))
        order_R = _by_expert(got_RL)
        done_R = self.back.pack(experts(got_RD[order_R], got_RL.sum(0)))
        back_R = torch.empty_like(done_R).index_copy(0, order_R, done_R)
        return self.back.unpack(exchange(back_R, got, sent, self.group))


def split_experts(module: nn.Module, mesh: DeviceMesh) -> None:
    """Shard stacked experts (dim 0 of every parameter) over a one-axis mesh.

    The parameters must be the same on every rank, or have no content yet (meta device).
    """
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for name, parameter in list(module.named_parameters(recurse=False)):
        local = parameter.detach().chunk(ranks)[rank].clone()
        whole = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        module.register_parameter(name, nn.Parameter(whole))


def _slots_of_rows(counts_X: Tensor, placement_X: Tensor) -> Tensor:
    """Return where each row, sorted by expert, goes among rows sorted by slot."""
    expert_of_row = torch.repeat_interleave(placement_X, counts_X[placement_X])
    return torch.argsort(expert_of_row, stable=True)


def _moved(rows_ND: Tensor, to_N: Tensor) -> Tensor:
    """Move row i to `to_N[i]`; its gradient is moved back, and never added to anything."""
    return torch.empty_like(rows_ND).index_copy(0, to_N, rows_ND)


def _by_expert(got_RL: Tensor) -> Tensor:
    """Return the permutation from rows sorted by (sender, expert) to (expert, sender)."""
    ranks, local = got_RL.shape
    expert_of_row = torch.arange(local, device=got_RL.device).repeat(ranks)
    return torch.argsort(expert_of_row.repeat_interleave(got_RL.flatten()), stable=True)
