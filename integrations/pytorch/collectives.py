"""The two collectives that gradients flow through, on torch.distributed's public calls."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """Give every rank's tensor of a group, stacked along a new dim 0. Collective.

    All have the same shape, with one dim or more.
    """
    gathered: Tensor = _Gather.apply(x, group)  # type: ignore[no-untyped-call]
    return gathered


def exchange(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    """Send `send[r]` rows to each rank r of a group and receive `receive[r]`. Collective.

    Rows are in the order of the ranks; counts may be zero.
    """
    received: Tensor = _Exchange.apply(rows, send, receive, group)  # type: ignore[no-untyped-call]
    return received


class _Gather(torch.autograd.Function):
    """All-gather; its gradient is the sum of what all ranks made of this rank's tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        ranks = dist.get_world_size(group)
        gathered = x.new_empty(ranks * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(gathered, x.contiguous(), group=group)
        return gathered.view(ranks, *x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(gradient.shape[1:])
        dist.reduce_scatter_tensor(own, gradient.flatten(0, 1).contiguous(), group=ctx.group)
        return own, None


class _Exchange(torch.autograd.Function):
    """Uneven all-to-all; gradients travel the same ways back."""

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


def _all_to_all(rows: Tensor, send: list[int], receive: list[int], group: ProcessGroup) -> Tensor:
    received = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive, send, group=group)
    return received
