"""What a router is without its lean, for as long as one probe takes.

    EnergyRouter        `soft`, `dual`: it chooses by score and price alone. `tilt`: its lean is in
                        its bias, so that is set to where this batch's loads would be what they are
                        without it
    TiltedCounts        torchtitan's bias, in the same way
    HuggingFaceRouters  what the model's own gates say

Invariant: all is as it was afterwards, to the bit.

Shape suffixes: N tokens, X experts, P experts per token, G groups.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from wattmesh.integrations.pytorch.experts.huggingface import HuggingFaceRouters
from wattmesh.integrations.pytorch.experts.router import EnergyRouter, RouterMode
from wattmesh.integrations.pytorch.experts.tilted_counts import TiltedCounts

HALVINGS = 24
"""Of the step of a bias that is searched: from a score's range to a part in ten million of it."""

Choose = Callable[[Tensor], Tensor]
"""From what tokens are chosen by, (N, X), to the chosen experts, (N, P)."""


class LeaningRouter(Protocol):
    """One router, or what is turned as one."""

    @property
    def leans(self) -> bool:
        """Whether it leans now."""

    @property
    def chooses(self) -> nn.Module | None:
        """The module whose answers have the scores that `upright` needs; None: it needs none."""

    def scores(self, said: Any) -> Tensor | None:
        """Take the scores of all experts from an answer, (N, X); None: it has none to read."""

    def unseen(self, scores: list[Tensor]) -> bool:
        """Return whether these scores are too little to say what it is without the lean."""

    def upright(
        self, scores: list[Tensor], group: ProcessGroup | None
    ) -> AbstractContextManager[None]:
        """Take the lean off for a while. `group`: ranks whose tokens count together; None: all."""


def leaning_routers(
    given: EnergyRouter | HuggingFaceRouters | TiltedCounts,
) -> Iterator[LeaningRouter]:
    """Give each router that may lean on its own."""
    if isinstance(given, EnergyRouter):
        yield _Energy(given)
    elif isinstance(given, TiltedCounts):
        for block, factor_X in given.tilted:
            yield _Titan(block, factor_X)
    else:
        yield _HuggingFace(given)


class _Energy:
    """A router of ours."""

    def __init__(self, router: EnergyRouter) -> None:
        self._router = router
        self.chooses = router if self._tilts else None

    @property
    def leans(self) -> bool:
        return self._router.mode is not RouterMode.OFF and bool(self._router.lean_X.any())

    @property
    def _tilts(self) -> bool:
        return self._router.mode is RouterMode.TILT and self.leans

    def scores(self, said: Any) -> Tensor | None:
        found: Tensor = said.scores_NX
        return found

    def unseen(self, scores: list[Tensor]) -> bool:
        return self._tilts and not scores

    @contextmanager
    def upright(self, scores: list[Tensor], group: ProcessGroup | None) -> Iterator[None]:
        router = self._router
        bias_X, lean_X = router.bias_X.clone(), router.lean_X.clone()
        try:
            if self._tilts:
                choose = _best(router.experts_per_token)
                router.bias_X.copy_(_balanced(scores, bias_X, router.factor_X, choose, group))
            router.lean_X.zero_()
            yield
        finally:
            router.bias_X.copy_(bias_X)
            router.lean_X.copy_(lean_X)


class _Titan:
    """A block of torchtitan, whose bias `TiltedCounts` leans."""

    leans = True

    def __init__(self, block: Any, factor_X: Tensor) -> None:
        self._block, self._factor_X = block, factor_X
        self.chooses = block.router

    def scores(self, said: Any) -> Tensor | None:
        found = said[2] if isinstance(said, tuple) and len(said) == 3 else None
        experts = len(self._factor_X)
        if not isinstance(found, Tensor) or isinstance(found, DTensor):
            return None
        return found.flatten(0, -2) if found.shape[-1] == experts else None

    def unseen(self, scores: list[Tensor]) -> bool:
        return not scores or isinstance(self._block.expert_bias_E, DTensor)

    @contextmanager
    def upright(self, scores: list[Tensor], group: ProcessGroup | None) -> Iterator[None]:
        bias_X, router = self._block.expert_bias_E, self._block.router
        before_X = bias_X.clone()
        limited = _best(router.top_k, router.num_expert_groups, router.num_limited_groups)
        factor_X = self._factor_X.to(bias_X)
        try:
            bias_X.copy_(_balanced(scores, before_X, factor_X, limited, group))
            yield
        finally:
            bias_X.copy_(before_X)


class _HuggingFace:
    """All mixtures of a model of Hugging Face's."""

    chooses = None

    def __init__(self, routers: HuggingFaceRouters) -> None:
        self._routers = routers

    @property
    def leans(self) -> bool:
        return self._routers.leans

    def scores(self, said: Any) -> Tensor | None:
        return None

    def unseen(self, scores: list[Tensor]) -> bool:
        return False

    @contextmanager
    def upright(self, scores: list[Tensor], group: ProcessGroup | None) -> Iterator[None]:
        with self._routers.upright():
            yield


def _best(count: int, groups: int | None = None, most: int | None = None) -> Choose:
    """Choose the best experts of each token; of the best `most` of so many groups, if any."""

    def choose(choice_NX: Tensor) -> Tensor:
        if groups and most:
            each_NGX = choice_NX.view(len(choice_NX), groups, -1)
            best_NG = each_NGX.topk(2, dim=-1).values.sum(-1).topk(most, dim=-1).indices
            left_NG = torch.ones(each_NGX.shape[:2], dtype=torch.bool, device=choice_NX.device)
            left_NG.scatter_(-1, best_NG, False)
            choice_NX = each_NGX.masked_fill(left_NG.unsqueeze(-1), float("-inf")).flatten(-2)
        return torch.topk(choice_NX, count).indices

    return choose


def _balanced(
    scores: list[Tensor],
    bias_X: Tensor,
    factor_X: Tensor,
    choose: Choose,
    group: ProcessGroup | None,
) -> Tensor:
    """Search the bias with which this batch's loads are their present ones without the tilt."""
    experts = len(bias_X)
    scores_NX = torch.cat(scores) if scores else bias_X.new_zeros(0, experts)

    def loads(with_X: Tensor) -> Tensor:
        chosen_NP = choose(scores_NX + with_X)
        counts_X = torch.bincount(chosen_NP.flatten(), minlength=experts).double()
        if dist.is_initialized():
            dist.all_reduce(counts_X, group=group)
        return counts_X

    found_X, present_X = bias_X.double(), loads(bias_X)
    target_X = present_X / factor_X.double()
    target_X = target_X * (present_X.sum() / target_X.sum().clamp_min(1e-30))
    best_X, missed = found_X, torch.inf
    step = 1.0
    for _ in range(HALVINGS):
        for _ in range(4):
            at_X = loads(found_X)
            miss = float((at_X - target_X).abs().sum())
            if miss < missed:
                best_X, missed = found_X, miss
            found_X = found_X + step * torch.sign(target_X - at_X) / experts
        found_X, step = best_X, step / 2
    return best_X.to(bias_X)
