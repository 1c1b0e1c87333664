"""Tensor parallel with sequence parallel: shards matrices, and by sequence what is between them.

Parameters are DTensors, so that whoever shards, clips or saves them sees what they are. What a
forward computes with are this rank's local parts, and every exchange is an explicit one: operators
on DTensors are planned in Python anew for every mesh, which costs the first step after a switch
more than its arithmetic, and every later step a good part of it.

Invariant: a tensor-parallel rank's residual stream is the `tp`-th contiguous part of its sequence,
so that norms, residuals and routers are computed once and not once per rank.

Shape suffixes: B batch, S this rank's positions, T all positions of the group, D model width,
F this rank's features, V all words, W this rank's words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.nn import functional

from wattmesh.errors import InputInvalid
from wattmesh.integrations.pytorch.collectives import gather, gather_equal, scatter_sum
from wattmesh.integrations.pytorch.gradients import shard_of

_M = TypeVar("_M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Shards modules over a one-axis mesh; each rank keeps its part, nothing is sent.

    The parameters must be the same on every rank, or have no content yet (meta device). A module
    keeps its names, settings and hooks, and computes in another way from then on.
    """

    mesh: DeviceMesh

    @property
    def group(self) -> ProcessGroup:
        """The ranks that modules are sharded over."""
        return self.mesh.get_group()

    def cut_block(self, block: nn.Module, columns: Sequence[nn.Linear], row: nn.Linear) -> None:
        """Shard a module by heads or hidden features, between all-gather and reduce-scatter.

        Args:
            block: takes (B, S, D) first and gives (B, S, D); other arguments are left alone.
            columns: those of its matrices whose outputs are cut.
            row: that whose inputs are cut; without a bias, which every rank would add.
        """
        block.register_forward_pre_hook(_GatherFirst(self.group))
        for each in columns:
            self._cut(each, ColumnLinear, Shard(0))
        self._cut(row, RowLinear, Shard(1)).group = self.group

    def cut_embedding(self, embedding: nn.Embedding) -> None:
        """Shard an embedding by vocabulary; tokens (B, T) in, (B, S, D) out."""
        cut = self._cut(embedding, CutEmbedding, Shard(0))
        cut.group, cut.rank = self.group, self.mesh.get_local_rank()

    def cut_head(self, head: nn.Linear) -> None:
        """Shard the output projection by vocabulary; (B, S, D) in, (B, T, V) out on every rank."""
        self._cut(head, CutHead, Shard(0)).group = self.group

    def keep_whole(self, *modules: nn.Module) -> None:
        """Make layers that work on single positions compute on this rank's positions only.

        Args:
            modules: linear layers, RMS norms, embeddings; others compute with `shared` parameters.
        """
        for each in modules:
            kinds = (kind for kind in _WHOLE if isinstance(each, kind.__bases__))
            self._cut(each, next(kinds, type(each)), Replicate())

    def _cut(self, module: nn.Module, kind: type[_M], placement: Placement) -> _M:
        """Keep this rank's shards, and change the module's class to one that computes with them."""
        rank, ranks = self.mesh.get_local_rank(), self.mesh.size()
        for name, parameter in list(module.named_parameters(recurse=False)):
            local = parameter.detach()
            if isinstance(placement, Shard):
                if placement.dim >= local.dim() or local.shape[placement.dim] % ranks:
                    raise InputInvalid(
                        f"tensor parallel: {name} of shape {tuple(local.shape)} cannot be cut by "
                        f"dim {placement.dim} over {ranks} ranks."
                    )
                local = local.chunk(ranks, placement.dim)[rank].clone()
            whole = DTensor.from_local(local, self.mesh, [placement], run_check=False)
            module.register_parameter(name, nn.Parameter(whole))
        module.__class__ = kind
        assert isinstance(module, kind)
        return module


class ColumnLinear(nn.Linear):
    """Column-parallel: this rank's features of all positions, (B, T, D) to (B, T, F)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply this rank's rows of the matrix."""
        bias_F = None if self.bias is None else shard_of(self.bias)
        return functional.linear(x_BTD, shard_of(self.weight), bias_F)


class RowLinear(nn.Linear):
    """Row-parallel: reduce-scatters the ranks' partial sums, (B, T, F) to (B, S, D)."""

    group: ProcessGroup

    def forward(self, x_BTF: Tensor) -> Tensor:
        """Apply this rank's columns, and keep the sum at its positions."""
        return _scatter_sequence(functional.linear(x_BTF, shard_of(self.weight)), self.group)


class CutEmbedding(nn.Embedding):
    """Looks up this rank's part of the vocabulary; other tokens are 0 until the reduce-scatter."""

    group: ProcessGroup
    rank: int

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the embeddings at this rank's positions, (B, S, D)."""
        weight_WD = shard_of(self.weight)
        words_BT = tokens_BT - self.rank * len(weight_WD)
        strange_BT = (words_BT < 0) | (words_BT >= len(weight_WD))
        found_BTD = functional.embedding(words_BT.masked_fill(strange_BT, 0), weight_WD)
        return _scatter_sequence(found_BTD.masked_fill(strange_BT[..., None], 0), self.group)


class CutHead(nn.Linear):
    """Output projection; every rank gets all logits, (B, S, D) to (B, T, V)."""

    group: ProcessGroup

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Compute this rank's logits for all positions, and all-gather along the vocabulary."""
        logits_BTW = functional.linear(_gather_sequence(x_BSD, self.group), shard_of(self.weight))
        return gather_equal(logits_BTW, self.group)


class WholeLinear(nn.Linear):
    """A replicated matrix, applied to this rank's positions."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Apply it: (B, S, D) in, (B, S, features) out."""
        bias = None if self.bias is None else shared(self.bias)
        return functional.linear(x_BSD, shared(self.weight), bias)


class WholeNorm(nn.RMSNorm):
    """A replicated norm, applied to this rank's positions."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Apply it: (B, S, D) in and out."""
        return functional.rms_norm(x_BSD, self.normalized_shape, shared(self.weight), self.eps)


class WholeEmbedding(nn.Embedding):
    """A replicated table, looked up for this rank's positions."""

    def forward(self, numbers: Tensor) -> Tensor:
        """Look up: any shape in, one more axis out."""
        return functional.embedding(numbers, shared(self.weight))


_WHOLE: tuple[type[nn.Module], ...] = (WholeLinear, WholeNorm, WholeEmbedding)


@dataclass(frozen=True, slots=True)
class _GatherFirst:
    """A forward pre-hook: all-gathers the module's first argument along the sequence."""

    group: ProcessGroup

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the forward."""
        return _gather_sequence(args[0], self.group), *args[1:]


def _gather_sequence(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather the sequence, (B, T, D); backward reduce-scatters the gradients."""
    return gather(x_BSD, group).movedim(0, 1).flatten(1, 2)


def _scatter_sequence(x_BTD: Tensor, group: ProcessGroup) -> Tensor:
    """Reduce-scatter along the sequence: sum, and keep this rank's part, (B, S, D)."""
    return scatter_sum(torch.stack(x_BTD.chunk(group.size(), dim=1)), group)


def shared(parameter: Tensor) -> Tensor:
    """A whole parameter; its gradient is this rank's summand, which FSDP sums over the group."""
    if not isinstance(parameter, DTensor):
        return parameter
    return parameter.to_local(grad_placements=[Partial()])
