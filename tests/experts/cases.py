"""Small placement problems with known structure, and the best placement by trying all."""

import itertools

import numpy as np

from benchmarks.experts.groups import topical
from wattmesh.policies.experts.layer_energy import ExpertGpu
from wattmesh.policies.experts.placement.affinity import count_choices
from wattmesh.policies.experts.placement.objective import cost, loads_on_gpus
from wattmesh.policies.experts.placement.problem import PlacementProblem, contiguous
from wattmesh.policies.experts.placement.search import limits


def gpu(name: str = "g0", node: str = "n0", **other: float) -> ExpertGpu:
    """One GPU of 700 W and 1,000 rows a second."""
    return ExpertGpu(
        name=name,
        node=node,
        **({"busy_w": 700.0, "idle_w": 70.0, "tokens_per_s": 1000.0} | other),
    )


def gpus(count: int, *, per_node: int = 2, slow: int = 0) -> tuple[ExpertGpu, ...]:
    """So many GPUs; the last `slow` of them at a third of the speed and half the watts."""
    return tuple(
        gpu(
            f"g{at}",
            f"n{at // per_node}",
            **({"tokens_per_s": 333.0, "busy_w": 400.0} if late else {}),
        )
        for at in range(count)
        for late in [at >= count - slow]
    )


def drawn(
    experts: int,
    count: int,
    *,
    seed: int,
    layers: int = 1,
    slow: int = 0,
    room: int = 0,
    crossing_j: float = 0.5,
) -> PlacementProblem:
    """Draw a problem: topics, hot experts, nodes of two GPUs."""
    chosen = topical(experts, layers, 2, 500, seed=seed)
    return PlacementProblem(
        counts=count_choices(chosen, experts),
        gpus=gpus(count, slow=slow),
        slots=(-(-experts // count) + room,) * count,
        crossing_j=crossing_j,
        near_crossing_j=crossing_j / 10,
    )


def best_of_all(problem: PlacementProblem) -> float:
    """Try every placement of a problem of one layer; give the least cost of those in time.

    Or of experts by number, late or not.
    """
    limit_s, least = limits(problem)[0], cost(problem, contiguous(problem)).objective_j
    for at_X in itertools.product(range(len(problem.gpus)), repeat=problem.experts):
        placement = np.array([at_X])
        if (np.bincount(placement[0], minlength=len(problem.gpus)) > problem.slots).any():
            continue
        if (loads_on_gpus(problem, placement) / problem.speeds_G()).max() > limit_s:
            continue
        least = min(least, cost(problem, placement).objective_j)
    return float(least)
