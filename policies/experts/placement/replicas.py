"""Copies of hot experts: tokens go to the cheapest copy whose GPU still has time.

A copy computes the same function, so where a token goes is no matter of quality. In training the
gradients of all copies must be summed, which whoever trains has to do.

Invariant: every expert keeps its first place, and rows are never lost: shares of an expert sum
to 1.

Shape suffixes: L layers, X experts, G GPUs.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.layer_energy import layer_energy
from wattmesh.policies.experts.placement.problem import Array, Gpus, PlacementProblem, checked

Held: TypeAlias = NDArray[np.bool_]

LEAST_GAIN = 1e-9
"""Of a layer's energy: a copy that saves less is not worth its memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replicated:
    """Experts with their copies.

    Attributes:
        held_LXG: whether a GPU holds an expert.
        share_LXG: of an expert's rows that go to each GPU.
    """

    held_LXG: Held
    share_LXG: Array

    @property
    def copies(self) -> int:
        """How many experts there are beyond the first of each."""
        layers, experts = len(self.held_LXG), len(self.held_LXG[0])
        return int(self.held_LXG.sum()) - layers * experts


def replicate(
    problem: PlacementProblem, gpu_LX: NDArray[Any], spare: tuple[int, ...]
) -> Replicated:
    """Add copies of hot experts, the hottest and its cheapest GPU first, while they save energy.

    Args:
        problem: what is placed.
        gpu_LX: where the first of each lies.
        spare: copies that each GPU has memory for, in every layer.

    Raises:
        InputInvalid: the placement is none of this problem, or a spare count is wrong.
    """
    found = checked(problem, gpu_LX)
    if len(spare) != len(problem.gpus) or any(each < 0 for each in spare):
        raise InputInvalid(f"spare places {spare!r:.80} are not one count of each GPU")
    held, shares = zip(
        *(_layer(problem, number, found[number], spare) for number in range(problem.layers)),
        strict=True,
    )
    return Replicated(held_LXG=np.stack(held), share_LXG=np.stack(shares))


def _layer(
    problem: PlacementProblem, number: int, at_X: Gpus, spare: tuple[int, ...]
) -> tuple[Held, Array]:
    loads_X = problem.counts.loads_LX[number]
    held_XG = np.zeros((problem.experts, len(problem.gpus)), dtype=bool)
    held_XG[np.arange(problem.experts), at_X] = True
    room_G = np.array(spare)
    best = _merit(problem, number, held_XG)
    cheapest = np.argsort(problem.joules_G(), kind="stable")
    for expert in np.argsort(-loads_X, kind="stable")[: max(1, int(room_G.sum()))]:
        for gpu in cheapest:
            if room_G[gpu] < 1 or held_XG[expert, gpu]:
                continue
            held_XG[expert, gpu] = True
            tried = _merit(problem, number, held_XG)
            if _is_better(tried, best):
                best = tried
                room_G[gpu] -= 1
            else:
                held_XG[expert, gpu] = False
    _drop_idle_copies(problem, number, held_XG, at_X)
    return held_XG, shared(problem, number, held_XG)


def _is_better(tried: tuple[float, float], best: tuple[float, float]) -> bool:
    """Less energy; or as much, and time more even: of two GPUs that are late one must be first."""
    if tried[0] < best[0] * (1 - LEAST_GAIN):
        return True
    return tried[0] <= best[0] * (1 + LEAST_GAIN) and tried[1] < best[1] * (1 - LEAST_GAIN)


def _drop_idle_copies(problem: PlacementProblem, number: int, held_XG: Held, at_X: Gpus) -> None:
    """Take back, in place, every copy without which the layer costs no more."""
    energy_j, _ = _merit(problem, number, held_XG)
    for expert, gpu in np.argwhere(held_XG):
        if at_X[expert] == gpu:
            continue
        held_XG[expert, gpu] = False
        if _merit(problem, number, held_XG)[0] > energy_j * (1 + LEAST_GAIN):
            held_XG[expert, gpu] = True


def shared(problem: PlacementProblem, number: int, held_XG: Held) -> Array:
    """Deal the rows of a layer: the cheapest copy first, up to the time its GPU may take.

    What finds all its GPUs full goes to the one that would end first.
    """
    loads_X, speeds_G = problem.counts.loads_LX[number], problem.speeds_G()
    limit_s = float(problem.fair_seconds_L()[number]) * (1 + problem.tolerance)
    share_XG: Array = held_XG / held_XG.sum(axis=1, keepdims=True)
    several = held_XG.sum(axis=1) > 1
    left_G = limit_s * speeds_G - loads_X[~several] @ share_XG[~several]
    joules_G = problem.joules_G()
    for expert in np.flatnonzero(several)[np.argsort(-loads_X[several], kind="stable")]:
        if loads_X[expert] == 0:
            continue
        rows_G = np.zeros(len(speeds_G))
        rest = float(loads_X[expert])
        holders = np.flatnonzero(held_XG[expert])
        for gpu in holders[np.argsort(joules_G[holders], kind="stable")]:
            rows_G[gpu] = min(rest, max(0.0, float(left_G[gpu])))
            rest -= rows_G[gpu]
        if rest > 0:
            latest = (rows_G - left_G)[holders] / speeds_G[holders]
            rows_G[holders[int(latest.argmin())]] += rest
        left_G -= rows_G
        share_XG[expert] = rows_G / loads_X[expert]
    return share_XG


def _merit(problem: PlacementProblem, number: int, held_XG: Held) -> tuple[float, float]:
    """Give the layer's energy, and the sum of its GPUs' squared seconds."""
    loads_G = problem.counts.loads_LX[number] @ shared(problem, number, held_XG)
    energy_j = layer_energy(problem.gpus, [float(each) for each in loads_G]).energy_j
    return energy_j, float(((loads_G / problem.speeds_G()) ** 2).sum())
