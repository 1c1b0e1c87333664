"""What the negative controls of the job types do to a state, on every rank of it.

Each is a mistake that the type invites, and for none of them does torch raise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.equivalence.controls import Harm
from examples.pretrain.model import Block, Where
from wattmesh.integrations.pytorch.context_parallel.attention import Attention
from wattmesh.integrations.pytorch.context_parallel.carried import Carried
from wattmesh.integrations.pytorch.context_parallel.context import Context
from wattmesh.integrations.pytorch.context_parallel.resharded import Ordered, Resharded
from wattmesh.integrations.pytorch.context_parallel.ring import Ring
from wattmesh.integrations.pytorch.context_parallel.ulysses import Ulysses
from wattmesh.integrations.pytorch.expert_bottleneck import NarrowMap
from wattmesh.integrations.pytorch.masked_diffusion import TokenNoise
from wattmesh.reconfig.state.state import State


@dataclass(frozen=True, slots=True)
class NoiseOfRank:
    """Noise from a rank's own random stream: right in distribution, and another in every layout."""

    noise: TokenNoise
    stream: torch.Generator

    def __call__(
        self, tokens_BS: Tensor, samples_B: Tensor, positions_S: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mask as `TokenNoise` does, of samples and positions drawn by this rank."""
        drawn_B = torch.randint(1 << 40, samples_B.shape, generator=self.stream)
        return self.noise(tokens_BS, drawn_B, positions_S)


def draw_by_rank(state: State, rank: int) -> None:
    """Every rank draws its noise from a stream that it seeded by its number."""
    state.parts.noise = NoiseOfRank(state.parts.noise, torch.Generator().manual_seed(rank))


def leave_out_weights(state: State, rank: int) -> None:
    """A zero-bubble schedule of the second rank forgets the weights of one microbatch."""
    if rank == 1:
        schedule = state.parts.runner.schedule
        order: list[Any] = schedule.pipeline_order_with_comms[schedule.rank]
        order.remove(next(each for each in order if each.computation_type.value == "W"))


def blind_routers(state: State, rank: int) -> None:
    """Routers of the second rank see levels that the tokens were not masked by."""
    if rank == 1:
        for block in (each for module in state.modules for each in module.modules()):
            if isinstance(block, Block) and block.noise is not None:
                block.noise = replace(block.noise, seed=block.noise.seed + 1)


def mask_in_one_piece(state: State, rank: int) -> None:
    """The mask of a ring takes each rank's positions for neighbours, but they are dealt."""

    def wrong(context: Context) -> Context:
        right = context.attention
        assert isinstance(right, Ring)
        own, count = len(context.positions_S), right.group.size()
        keys_T = torch.arange(own * count)
        queries_S = keys_T.chunk(count)[right.group.rank()]
        ring = replace(right, visible_ST=queries_S[:, None] >= keys_T)
        return replace(context, attention=ring)

    _otherwise(state, wrong)


def leave_as_dealt(state: State, rank: int) -> None:
    """Whole sequences stay in the order of the ranks that held them, under a causal mask."""

    def wrong(context: Context) -> Context:
        right = context.attention
        assert isinstance(right, Ulysses)
        ulysses = replace(right, positions_T=torch.arange(len(right.positions_T)))
        return replace(context, attention=ulysses)

    _otherwise(state, wrong)


def narrow_as_dealt(state: State, rank: int) -> None:
    """A layer over one rank takes the parts that it got for a sequence in order."""
    _otherwise(state, lambda right: replace(right, by_layer=tuple(map(_as_dealt, right.by_layer))))


def _as_dealt(right: Attention) -> Attention:
    if not isinstance(right, Resharded) or not isinstance(right.inner, Ordered):
        return right
    order = torch.arange(len(right.inner.positions_T))
    return replace(right, inner=replace(right.inner, positions_T=order))


class KeepsState(Carried):
    """Every rank goes on from its own state, and drops what the one before sends."""

    def receive(self, piece: int, neighbour: int, own: Tensor) -> Tensor:
        """Take what comes, and forget it."""
        coming = Carried.receive(self, piece, neighbour, own)
        return own if neighbour < piece else coming


class KeepsGradients(Carried):
    """No gradient of a state comes back from another rank."""

    def receive(self, piece: int, neighbour: int, own: Tensor) -> Tensor:
        """Take what comes; a gradient is forgotten."""
        coming = Carried.receive(self, piece, neighbour, own)
        return coming if neighbour < piece else own


def keep_state(state: State, rank: int) -> None:
    """States of test-time training stay on their rank."""
    _otherwise(state, lambda right: replace(right, carried=KeepsState(right.group)))


def keep_gradients(state: State, rank: int) -> None:
    """Their gradients do."""
    _otherwise(state, lambda right: replace(right, carried=KeepsGradients(right.group)))


def send_whole(state: State, rank: int) -> None:
    """The second rank's maps leave tokens as they are."""
    if rank == 1:
        for each in _maps(state):
            each.narrow = False


class Losing(NarrowMap):
    """A map whose receiver makes nothing of what was sent."""

    def unpack(self, sent: Tensor) -> Tensor:
        """Return rows of zeros for narrow ones."""
        return NarrowMap.unpack(self, sent) * (0.0 if self.training and self.narrow else 1.0)


def lose_narrow(state: State, rank: int) -> None:
    """What is sent narrow is lost."""
    for each in _maps(state):
        each.__class__ = Losing


def _maps(state: State) -> list[NarrowMap]:
    found = (each for module in state.modules for each in module.modules())
    return [each for each in found if isinstance(each, NarrowMap)]


JOB_TYPE_HARM: dict[str, Harm] = {
    "noise drawn by each rank": draw_by_rank,
    "a microbatch's weight gradients left out": leave_out_weights,
    "routers of one rank see other levels": blind_routers,
    "ring masks as if dealt in one piece": mask_in_one_piece,
    "ulysses leaves positions as dealt": leave_as_dealt,
    "layers of whole sequences leave positions as dealt": narrow_as_dealt,
    "a state is not carried to the next rank": keep_state,
    "a state's gradient is not carried back": keep_gradients,
    "one rank sends tokens whole": send_whole,
}

LOST = "what is sent narrow is lost"
OTHER_HARM: dict[str, Harm] = {LOST: lose_narrow}
"""Harms that no job type is held to."""

SEEN_BY_THE_PROBE = frozenset(JOB_TYPE_HARM) - {
    "a microbatch's weight gradients left out",
    "a state's gradient is not carried back",
    "one rank sends tokens whole",
}
"""What changes a forward pass: the session itself must take such a switch back."""


def _otherwise(state: State, wrong: Callable[[Context], Context]) -> None:
    for module in state.modules:
        where: Where = module.where  # type: ignore[assignment]
        module.where = replace(where, context=wrong(where.context))  # type: ignore[assignment]
