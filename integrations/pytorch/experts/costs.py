"""What a daemon says of expert costs, as costs of experts that all ranks agree on.

A job of `wattmesh.attach` gives `hand_to(...)` as `expert_costs`: the session fetches, agrees and
keeps. Invariant: no answer ends or delays a training. What is missing, late, malformed or of
another run means no costs, with one sentence; and all ranks use what the first one has.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from wattmesh.integrations.pytorch.experts.router import ALIKE, LEAST_RANGE, unusable
from wattmesh.reconfig.launch import group as ranks
from wattmesh.reconfig.state.state import State
from wattmesh.reconfig.wire.experts import STALE_S, ExpertCostScores

log = logging.getLogger(__name__)

LARGEST_VERSION = 2**53
"""Beyond it a version is no longer exact in fp64, in which ranks exchange it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertCosts:
    """Scores of all experts of a layer; all 0 where `neutral_because` says why."""

    costs: tuple[float, ...]
    strength: float
    version: int
    neutral_because: str


def costs_of(
    answer: object, *, run: str, holders: Sequence[str], held_s: float = 0.0
) -> ExpertCosts:
    """Read an answer of `/v1/runs/{run}/expert-costs`; never raises.

    Args:
        answer: the JSON value: run, version, strength, age_s and scores by GPU.
        run: whose costs are wanted.
        holders: of each expert, the uuid of the GPU that holds it.
        held_s: since it was fetched.
    """
    reason = next(_reasons(answer, run, holders, held_s), "")
    if reason or not isinstance(answer, Mapping):
        return ExpertCosts(
            costs=(0.0,) * len(holders), strength=0.0, version=0, neutral_because=reason
        )
    return ExpertCosts(
        costs=tuple(float(answer["scores"][gpu]) for gpu in holders),
        strength=float(answer["strength"]),
        version=int(answer["version"]),
        neutral_because="",
    )


class TakesCosts(Protocol):
    """A router, or what tilts one: `EnergyRouter`, `TiltedCounts`."""

    def set_costs(self, costs: Sequence[float], strength: float) -> str:
        """Take a cost for each expert; say why none is used, "" where they are."""
        ...


def hand_to(
    routers: Callable[[State], Iterable[TakesCosts]],
    own_experts: Callable[[State], Iterable[int]],
    *,
    experts: int,
    gpu: str,
) -> "CostsByExpert":
    """Make what `attach` takes as `expert_costs`.

    Args:
        routers: of a state.
        own_experts: the numbers of the experts that this rank holds, the same in every layer.
        experts: of a layer. They need not divide: each is held by whoever names it.
        gpu: of this rank: the UUID that the daemon knows it by.
    """
    return CostsByExpert(routers=routers, own_experts=own_experts, experts=experts, gpu=gpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostsByExpert:
    """Hands costs to routers by expert: experts keep the scores that they took; see `hand_to`."""

    routers: Callable[[State], Iterable[TakesCosts]]
    own_experts: Callable[[State], Iterable[int]]
    experts: int
    gpu: str

    def __call__(self, state: State, costs: ExpertCostScores) -> None:
        """Hand on the scores of where experts lie now. Collective."""
        self.hand(state, costs, *self.scores(costs, self.holders(state)))

    def holders(self, state: State) -> list[tuple[str, Sequence[int]]]:
        """Give each rank's GPU and the numbers of its experts. Collective."""
        return ranks.gather((self.gpu, sorted(set(self.own_experts(state)))))

    def scores(
        self, costs: ExpertCostScores, holders: Iterable[tuple[str, Sequence[int]]]
    ) -> tuple[tuple[float, ...], str]:
        """Give each expert's score of where it lies, and why they are all 0."""
        return of_experts(costs, holders, self.experts)

    def hand(
        self, state: State, costs: ExpertCostScores, scores: tuple[float, ...], reason: str
    ) -> None:
        """Let the routers of a state lean by these; `reason`: why they are all 0, "" otherwise."""
        strength = 0.0 if reason else costs.strength
        for router in self.routers(state):
            reason = router.set_costs(scores, strength) or reason
        if reason and (not dist.is_initialized() or dist.get_rank() == 0):
            log.info("experts do not lean: %s", reason)


def of_experts(
    costs: ExpertCostScores, held: Iterable[tuple[str, Sequence[int]]], experts: int
) -> tuple[tuple[float, ...], str]:
    """Give each expert the mean score of the GPUs that hold it; all 0 where one is not known.

    Args:
        costs: as agreed.
        held: of each rank, its GPU and the numbers of its experts.
        experts: of a layer.

    Returns:
        The costs, and why they are all 0; "" where they are used.
    """
    found: list[list[float]] = [[] for _ in range(experts)]
    gone: set[str] = set()
    for gpu, numbers in held:
        for number in numbers:
            if not 0 <= number < experts:
                return (0.0,) * experts, f"expert {number} is none of {experts}"
            if gpu in costs.scores:
                found[number].append(costs.scores[gpu])
            else:
                gone.add(gpu)
    if gone:
        return (0.0,) * experts, _without_cost(len(gone))
    if not all(found):
        alone = sum(not each for each in found)
        verb = "expert is" if alone == 1 else "experts are"
        return (0.0,) * experts, f"{alone} {verb} held by nobody"
    means = tuple(math.fsum(each) / len(each) for each in found)
    if max(means) - min(means) < LEAST_RANGE:
        return (0.0,) * experts, costs.neutral_because or ALIKE
    return means, costs.neutral_because


def _without_cost(gpus: int) -> str:
    """Say that GPUs that hold experts have no cost."""
    return (
        "1 GPU that holds experts has no cost"
        if gpus == 1
        else f"{gpus} GPUs that hold experts have no cost"
    )


def same_on_all_ranks(own: ExpertCosts, group: ProcessGroup | None = None) -> ExpertCosts:
    """Give what the group's first rank has: others may have fetched another version. Collective."""
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        return own
    told = torch.tensor([own.version, own.strength, *own.costs], dtype=torch.float64)
    backend = dist.get_backend(group)
    told = told.to("cuda") if backend == "nccl" else told
    dist.broadcast(told, group=group, group_src=0)
    version, strength, *costs = told.tolist()
    if version == own.version and strength == own.strength and tuple(costs) == own.costs:
        return own
    reason = "" if any(costs) else "the first rank has no costs that can be used"
    return replace(
        own,
        costs=tuple(costs),
        strength=strength,
        version=int(version),
        neutral_because=reason,
    )


def _reasons(answer: object, run: str, holders: Sequence[str], held_s: float) -> Iterator[str]:
    """Say why an answer cannot be used, if it cannot."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("scores"), Mapping):
        yield "there are no expert costs"
        return
    if answer.get("run") != run:
        yield "the expert costs are of another run"
    age_s, version = answer.get("age_s"), answer.get("version")
    if not _is_number(age_s) or not 0 <= age_s <= STALE_S - held_s:
        yield f"the expert costs are older than {STALE_S:g} s, or nobody knows how old"
    if type(version) is not int or not 0 <= version < LARGEST_VERSION:
        yield "the version of the expert costs is no whole number from 0 on"
    scores: Mapping[str, Any] = answer["scores"]
    gone = {gpu for gpu in holders if gpu not in scores}
    if gone:
        yield _without_cost(len(gone))
    found, strength = [scores.get(gpu) for gpu in holders], answer.get("strength")
    numbers = [each for each in found if _is_number(each)]
    if not _is_number(strength) or len(numbers) < len(found):
        yield "an expert cost, or the strength, is no finite number"
    else:
        reason = unusable(numbers, strength, len(holders))
        if reason:
            yield reason


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
