"""The loss of one batch with the lean of a model's routers and without it: what the lean costs.

    session.count_expert_tokens(counts[own], paired=measure(session.state))

Without the lean a router of mode `soft` or `dual` chooses by its scores alone. The lean of `tilt`
is in its bias, so that is set to where this batch's loads would be what they are without it.
Invariant: everything is as it was afterwards, to the bit; without a lean both losses are one; and a
pair that cannot be measured is none, so that it proves nothing.

Shape suffixes: N tokens, X experts.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from wattmesh.integrations.pytorch.experts.router import EnergyRouter, Routed, RouterMode
from wattmesh.reconfig.state.state import State

log = logging.getLogger(__name__)

HALVINGS = 24
"""Of the step of a bias that is searched: from a score's range to a part in ten million of it."""

UNSEEN = (
    "paired probe: a router was not seen to choose, as in a compiled model; no pair is measured, "
    "so the strength does not rise. Let the probe call the model uncompiled."
)


def paired_probe(
    probe: Callable[[State], float],
    routers: Callable[[State], Iterable[EnergyRouter]],
    group: ProcessGroup | None = None,
) -> Callable[[State], tuple[float, float] | None]:
    """Make what measures a pair of losses: with the lean, without it. Collective of all ranks.

    What it makes gives None, and says so once, where a router of mode `tilt` was not seen to choose
    (`torch.compile` leaves out hooks that come after it): then there is no plain loss.

    Args:
        probe: loss of a fixed batch, forward only, as `attach` takes it.
        routers: of a state.
        group: ranks with the same routers, whose tokens count together; None: all.
    """
    told: list[str] = []

    @torch.no_grad()
    def measure(state: State) -> tuple[float, float] | None:
        found = list(routers(state))
        seen: dict[int, list[Tensor]] = {}

        def note(router: Any, _: Any, routed: Routed) -> None:
            seen.setdefault(id(router), []).append(routed.scores_NX)

        handles = [router.register_forward_hook(note) for router in found]
        try:
            leaning = probe(state)
        finally:
            for handle in handles:
                handle.remove()
        # Of all ranks: one without mixtures takes part in both probes, or the others wait forever.
        if not _anywhere(any(_leans(router) for router in found)):
            return leaning, leaning
        if _anywhere(any(_tilts(each) and id(each) not in seen for each in found)):
            if not told:
                told.append(UNSEEN)
                log.warning("%s", UNSEEN)
            return None
        with ExitStack() as stack:
            for router in found:
                stack.enter_context(_upright(router, seen.get(id(router), []), group))
            plain = probe(state)
        return leaning, plain

    return measure


def _leans(router: EnergyRouter) -> bool:
    return router.mode is not RouterMode.OFF and bool(router.lean_X.any())


def _tilts(router: EnergyRouter) -> bool:
    return router.mode is RouterMode.TILT and _leans(router)


def _anywhere(here: bool) -> bool:
    """Return whether it is so on any rank at all. Collective."""
    if not dist.is_initialized():
        return here
    count = torch.tensor([int(here)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(count)
    return bool(count.item())


@contextmanager
def _upright(router: EnergyRouter, scores: list[Tensor], group: ProcessGroup | None) -> Any:
    """Take the lean off a router for a while."""
    bias_X, lean_X = router.bias_X.clone(), router.lean_X.clone()
    try:
        if _tilts(router):
            router.bias_X.copy_(_balanced(router, scores, group))
        router.lean_X.zero_()
        yield
    finally:
        router.bias_X.copy_(bias_X)
        router.lean_X.copy_(lean_X)


def _balanced(router: EnergyRouter, scores: list[Tensor], group: ProcessGroup | None) -> Tensor:
    """Search the bias with which this batch's loads are their present ones without the tilt."""
    experts = len(router.bias_X)
    scores_NX = torch.cat(scores) if scores else router.bias_X.new_zeros(0, experts)

    def loads(bias_X: Tensor) -> Tensor:
        chosen_NP = torch.topk(scores_NX + bias_X, router.experts_per_token).indices
        counts_X = torch.bincount(chosen_NP.flatten(), minlength=experts).double()
        if dist.is_initialized():
            dist.all_reduce(counts_X, group=group)
        return counts_X

    bias_X, present_X = router.bias_X.double(), loads(router.bias_X)
    target_X = present_X / router.factor_X.double()
    target_X = target_X * (present_X.sum() / target_X.sum().clamp_min(1e-30))
    best_X, missed = bias_X, torch.inf
    step = 1.0
    for _ in range(HALVINGS):
        for _ in range(4):
            found_X = loads(bias_X)
            miss = float((found_X - target_X).abs().sum())
            if miss < missed:
                best_X, missed = bias_X, miss
            bias_X = bias_X + step * torch.sign(target_X - found_X) / experts
        bias_X, step = best_X, step / 2
    return best_X.to(router.bias_X)
