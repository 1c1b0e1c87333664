"""The loss of one batch with the lean of a model's routers and without it: what the lean costs.

    session.count_expert_tokens(counts[own], paired=measure(session.state))

What a router of each kind is without the lean, `upright.py` says. Invariant: afterwards all is as
it was, to the bit; without a lean both losses are one; and a pair that cannot be measured is none,
so that it proves nothing.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from wattmesh.integrations.pytorch.experts.huggingface import HuggingFaceRouters
from wattmesh.integrations.pytorch.experts.router import EnergyRouter
from wattmesh.integrations.pytorch.experts.tilted_counts import TiltedCounts
from wattmesh.integrations.pytorch.experts.upright import LeaningRouter, leaning_routers
from wattmesh.reconfig.state.state import State

log = logging.getLogger(__name__)

UNSEEN = (
    "paired probe: a router was not seen to choose, as in a compiled model; no pair is measured, "
    "so the strength does not rise. Let the probe call the model uncompiled."
)

Routers = Callable[[State], Iterable[EnergyRouter | HuggingFaceRouters | TiltedCounts]]


def paired_probe(
    probe: Callable[[State], float],
    routers: Routers,
    group: ProcessGroup | None = None,
) -> Callable[[State], tuple[float, float] | None]:
    """Make what measures a pair of losses: with the lean, without it. Collective of all ranks.

    What it makes gives None, and says so once, where a router whose lean is in its bias was not
    seen to choose (`torch.compile` leaves out hooks that come after it), or says scores that cannot
    be read (a `DTensor`): then there is no plain loss.

    Args:
        probe: loss of a fixed batch, forward only, as `attach` takes it.
        routers: of a state.
        group: ranks with the same routers, whose tokens count together; None: all.
    """
    told: list[str] = []

    @torch.no_grad()
    def measure(state: State) -> tuple[float, float] | None:
        found = [each for given in routers(state) for each in leaning_routers(given)]
        seen: dict[int, list[Tensor]] = {}
        handles = [
            each.chooses.register_forward_hook(_note(each, seen))
            for each in found
            if each.chooses is not None
        ]
        try:
            leaning = probe(state)
        finally:
            for handle in handles:
                handle.remove()
        # Of all ranks: one without mixtures takes part in both probes, or the others wait forever.
        if not _anywhere(any(each.leans for each in found)):
            return leaning, leaning
        if _anywhere(any(each.unseen(seen.get(id(each), [])) for each in found)):
            if not told:
                told.append(UNSEEN)
                log.warning("%s", UNSEEN)
            return None
        with ExitStack() as stack:
            for each in found:
                stack.enter_context(each.upright(seen.get(id(each), []), group))
            plain = probe(state)
        return leaning, plain

    return measure


def _note(router: LeaningRouter, seen: dict[int, list[Tensor]]) -> Callable[[Any, Any, Any], None]:
    """Keep the scores that a router says."""

    def note(_: Any, __: Any, said: Any) -> None:
        scores_NX = router.scores(said)
        if scores_NX is not None:
            seen.setdefault(id(router), []).append(scores_NX)

    return note


def _anywhere(here: bool) -> bool:
    """Return whether it is so on any rank at all. Collective."""
    if not dist.is_initialized():
        return here
    count = torch.tensor([int(here)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(count)
    return bool(count.item())
