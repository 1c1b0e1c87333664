"""Collectives with a backward pass, on torch.distributed's public calls."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather over a group, stacked along a new dim 0. Collective.

    All have the same shape, with one dim or more.
    """
    gathered: Tensor = _Gather.apply(x, group)  # type: ignore[no-untyped-call]
    return gathered


def gather_equal(x: Tensor, group: ProcessGroup) -> Tensor:
    """All-gather over a group, concatenated along the last dim. Collective.

    For what every rank then does alike: each has the whole gradient, and takes its own part of it.
    """
    gathered: Tensor = _GatherEqual.apply(x, group)  # type: ignore[no-untyped-call]
    return gathered


def scatter_sum(x: Tensor, group: ProcessGroup) -> Tensor:
    """Reduce-scatter (sum) over a group: rank `r` gets the sum of `x[r]`. Collective."""
    own: Tensor = _ScatterSum.apply(x, group)  # type: ignore[no-untyped-call]
    return own


def exchange(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    """Send `send[r]` rows to each rank r of a group and receive `receive[r]`. Collective.

    Rows are in the order of the ranks; counts may be zero.
    """
    received: Tensor = _Exchange.apply(rows, send, receive, group)  # type: ignore[no-untyped-call]
    return received


def swap(x_N: Tensor, group: ProcessGroup) -> Tensor:
    """All-to-all: row r goes to rank r, and what rank r sent becomes row r. Collective.

    As many rows as ranks, of one shape on all of them.
    """
    one_each = [1] * len(x_N)
    return exchange(x_N, one_each, one_each, group)


class _Gather(torch.autograd.Function):
    """All-gather; its gradient is the sum of all ranks' gradients for this rank's tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(gradient, ctx.group), None


class _ScatterSum(torch.autograd.Function):
    """Reduce-scatter; its gradient is the all-gather of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduce_scatter(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradient, ctx.group), None


class _GatherEqual(torch.autograd.Function):
    """All-gather along the last dim; gradients are equal on all ranks: backward slices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.rank, ctx.ranks = dist.get_rank(group), dist.get_world_size(group)
        return torch.cat(_all_gather(x, group).unbind(), dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.chunk(ctx.ranks, dim=-1)[ctx.rank], None


class _Exchange(torch.autograd.Function):
    """All-to-all with uneven splits; backward is the reverse all-to-all."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        back = _all_to_all(gradient, ctx.receive, ctx.send, ctx.group)
        return back, None, None, None


def _all_gather(x: Tensor, group: ProcessGroup) -> Tensor:
    ranks = dist.get_world_size(group)
    gathered = x.new_empty(ranks * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
    return gathered.view(ranks, *x.shape)


def _reduce_scatter(x: Tensor, group: ProcessGroup) -> Tensor:
    own = x.new_empty(x.shape[1:])
    dist.reduce_scatter_tensor(own, x.flatten(0, 1).contiguous(), group=group)
    return own


def _all_to_all(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    received = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=group)
    return received
