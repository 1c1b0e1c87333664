"""A state that is carried along sequences whose positions ranks hold in parts.

For layers that are recurrences: what they compute at a position depends on a state that all
positions before it made. Sequences are dealt head-tail, so the state goes up the ranks through the
first pieces and down again through the second ones; its gradient comes back the same way. No two
ranks ever wait for each other: messages follow the order of the pieces, and that has no circle.

One rank works while the others wait, so this adds `2 * ranks - 2` hops to a layer's time and saves
none of it; what it saves is memory. Only a rank's inputs and the states that its pieces begin with
are kept: the backward pass computes a piece again.

Shape suffixes: B batch, H heads, S this rank's positions.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


class Recurrence(Protocol):
    """Computes outputs of consecutive positions, and the state that follows them."""

    def __call__(self, state: Tensor, *inputs_BHS: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs (B, H, S, ...) and the state behind them, of the shape of `state`.

        It must not read anything else that needs a gradient.
        """
        ...


@dataclass(frozen=True, slots=True)
class Carried:
    """Applies a recurrence to whole sequences, of which this rank holds two pieces.

    Attributes:
        group: of the ranks that hold the others; None when this rank holds whole sequences.
    """

    group: ProcessGroup | None = None

    def __call__(self, recurrence: Recurrence, first: Tensor, *inputs_BHS: Tensor) -> Tensor:
        """Return the outputs at this rank's positions. Collective.

        Args:
            recurrence: the same on all ranks.
            first: the state before the first position, also on ranks that do not hold that.
            inputs_BHS: with positions along dim 2, as `head_tail` deals them.
        """
        out: Tensor = _Carry.apply(self, recurrence, first, *inputs_BHS)  # type: ignore[no-untyped-call]
        return out

    @property
    def pieces(self) -> tuple[int, ...]:
        """Numbers of this rank's pieces along the sequence."""
        if self.group is None:
            return (0,)
        return self.group.rank(), 2 * self.group.size() - 1 - self.group.rank()

    def receive(self, piece: int, neighbour: int, own: Tensor) -> Tensor:
        """Return what came from a neighbouring piece; `own` if that is here, or there is none."""
        holder = self._elsewhere(piece, neighbour)
        if holder is None:
            return own
        coming = torch.empty_like(own, memory_format=torch.contiguous_format)
        dist.recv(coming, holder, group=self.group)
        return coming

    def send(self, piece: int, neighbour: int, state: Tensor) -> None:
        """Send a state, or its gradient, to a neighbouring piece, if there is one elsewhere."""
        holder = self._elsewhere(piece, neighbour)
        if holder is not None:
            dist.send(state.contiguous(), holder, group=self.group)

    def _elsewhere(self, piece: int, neighbour: int) -> int | None:
        """Return the global rank that holds a neighbour; None if it is this one, or none."""
        if self.group is None or not 0 <= neighbour < 2 * self.group.size():
            return None
        holders = [min(each, 2 * self.group.size() - 1 - each) for each in (piece, neighbour)]
        if holders[0] == holders[1]:
            return None
        return dist.get_global_rank(self.group, holders[1])


class _Carry(torch.autograd.Function):
    """Both passes, each along all pieces of the sequence."""

    @staticmethod
    def forward(
        ctx: Any, chain: Carried, recurrence: Recurrence, first: Tensor, *inputs_BHS: Tensor
    ) -> Tensor:
        begins, done, state = [], [], first
        parts = zip(*(each.chunk(len(chain.pieces), 2) for each in inputs_BHS), strict=True)
        for piece, part in zip(chain.pieces, parts, strict=True):
            state = chain.receive(piece, piece - 1, state)
            begins.append(state)
            out, state = recurrence(state, *part)
            chain.send(piece, piece + 1, state)
            done.append(out)
        ctx.chain, ctx.recurrence = chain, recurrence
        ctx.save_for_backward(*begins, *inputs_BHS)
        return torch.cat(done, 2)

    @staticmethod
    def backward(ctx: Any, gradient_BHS: Tensor) -> tuple[Tensor | None, ...]:
        chain: Carried = ctx.chain
        count = len(chain.pieces)
        saved = ctx.saved_tensors
        begins, inputs_BHS = saved[:count], saved[count:]
        parts = list(zip(*(each.chunk(count, 2) for each in inputs_BHS), strict=True))
        gradients = gradient_BHS.chunk(count, 2)
        dstate = torch.zeros_like(begins[-1])
        found: list[list[Tensor]] = []
        for at in reversed(range(count)):
            piece = chain.pieces[at]
            dstate = chain.receive(piece, piece + 1, dstate)
            with torch.enable_grad():
                leaves = [each.detach().requires_grad_() for each in (begins[at], *parts[at])]
                made = ctx.recurrence(*leaves)
            dstate, *dpart = torch.autograd.grad(made, leaves, (gradients[at], dstate))
            chain.send(piece, piece - 1, dstate)
            found.insert(0, dpart)
        # The first state is that of piece 0 alone: elsewhere its gradient has gone to another rank.
        dfirst = dstate if chain.pieces[0] == 0 else torch.zeros_like(dstate)
        return None, None, dfirst, *(torch.cat(each, 2) for each in zip(*found, strict=True))
