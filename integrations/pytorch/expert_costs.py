"""What a daemon says of expert costs, as costs of experts that all ranks agree on.

Invariant: no answer ends or delays a training. What is missing, late, malformed or of another run
means no costs, with one sentence; and all ranks use what the first one has.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from wattmesh.integrations.pytorch.router import unusable

STALE_S = 900.0
"""Costs move with clocks and temperature; older ones are of another machine."""

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
        yield f"{len(gone)} GPUs that hold experts have no cost"
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
