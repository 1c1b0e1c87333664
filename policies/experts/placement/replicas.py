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
    share_XG = shared(problem, number, held_XG)
    energy_j = _energy(problem, loads_X, share_XG)
    cheapest = np.argsort(problem.joules_G(), kind="stable")
    for expert in np.argsort(-loads_X, kind="stable")[: max(1, int(room_G.sum()))]:
        for gpu in cheapest:
            if room_G[gpu] < 1 or held_XG[expert, gpu]:
                continue
            held_XG[expert, gpu] = True
            tried_XG = shared(problem, number, held_XG)
            tried_j = _energy(problem, loads_X, tried_XG)
            if tried_j < energy_j * (1 - LEAST_GAIN):
                share_XG, energy_j = tried_XG, tried_j
                room_G[gpu] -= 1
            else:
                held_XG[expert, gpu] = False
    return held_XG, share_XG


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


def _energy(problem: PlacementProblem, loads_X: Array, share_XG: Array) -> float:
    return layer_energy(problem.gpus, [float(each) for each in loads_X @ share_XG]).energy_j
