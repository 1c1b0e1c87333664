"""The best placement there is, by integer programming: the peer of small placement problems.

Whether an expert lies on a GPU is a binary; whether a pair is cut is at least the difference of
theirs; how long a layer takes is at least what each of its GPUs takes. HiGHS solves it to the end
on small problems, and gives a bound where it must stop. It knows placements in time only.

Shape suffixes as in `wattmesh.policies.experts.placement.problem`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import (  # type: ignore[import-untyped]
    Bounds,
    LinearConstraint,
    milp,
)

from wattmesh.policies.experts.placement.objective import cost
from wattmesh.policies.experts.placement.problem import Gpus, PlacementProblem
from wattmesh.policies.experts.placement.search import limits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Optimum:
    """What HiGHS found. `objective_j` None: nothing in the time it had.

    Attributes:
        bound_j: no placement costs less.
        proven: whether the two meet, to a ten-thousandth.
    """

    gpu_LX: Gpus | None
    objective_j: float | None
    bound_j: float
    proven: bool


@dataclass(slots=True)
class _Rows:
    """Constraints as they are made: rows of (column, coefficient), each at most `upper`."""

    entries: list[tuple[int, int, float]]
    lower: list[float]
    upper: list[float]

    def add(self, terms: list[tuple[int, float]], lower: float, upper: float) -> None:
        """Add one row."""
        row = len(self.upper)
        self.entries += [(row, column, value) for column, value in terms]
        self.lower.append(lower)
        self.upper.append(upper)


def optimum(problem: PlacementProblem, limit_s: float = 60.0) -> Optimum:
    """Solve a problem exactly, or as far as `limit_s` seconds allow."""
    gpus, units = len(problem.gpus), problem.layers * problem.experts
    nodes = np.unique([gpu.node for gpu in problem.gpus], return_inverse=True)[1]
    loads = problem.counts.loads_LX.ravel()
    prices = [(loads[:, None] * problem.joules_G()[None, :]).ravel()]
    rows = _Rows([], [], [])
    for unit in range(units):
        rows.add([(unit * gpus + gpu, 1.0) for gpu in range(gpus)], 1.0, 1.0)
    _room_and_time(problem, rows)
    cuts: list[float] = []
    groups: list[tuple[float, list[list[int]]]] = [
        (problem.near_crossing_j, [[gpu] for gpu in range(gpus)]),
        (
            problem.crossing_j - problem.near_crossing_j,
            [np.flatnonzero(nodes == node).tolist() for node in range(int(nodes.max()) + 1)],
        ),
    ]
    for first, second, tokens in _pairs(problem):
        for price_j, parts in groups:
            if price_j == 0 or len(parts) == 1:
                continue
            column = units * gpus + len(cuts)
            cuts.append(price_j * tokens)
            for part in parts:
                ours = [(first * gpus + int(gpu), 1.0) for gpu in part]
                theirs = [(second * gpus + int(gpu), -1.0) for gpu in part]
                rows.add([*ours, *theirs, (column, -1.0)], -np.inf, 0.0)
    waits = _waiting(problem, rows, units * gpus + len(cuts))
    costs = np.concatenate([*prices, np.array(cuts), waits])
    return _solved(problem, rows, costs, limit_s)


def _pairs(problem: PlacementProblem) -> list[tuple[int, int, float]]:
    """List pairs of units with their tokens."""
    counts, experts = problem.counts, problem.experts
    found = []
    for layer, tokens_XX in enumerate(counts.together_LXX):
        for a, b in zip(*np.nonzero(np.triu(tokens_XX)), strict=True):
            found.append((layer * experts + int(a), layer * experts + int(b), tokens_XX[a, b]))
    for layer, tokens_XX in enumerate(counts.onward_LXX):
        for a, b in zip(*np.nonzero(tokens_XX), strict=True):
            at = (layer + 1) * experts + int(b)
            found.append((layer * experts + int(a), at, tokens_XX[a, b]))
    return found


def _room_and_time(problem: PlacementProblem, rows: _Rows) -> None:
    limit_L, gpus = limits(problem), len(problem.gpus)
    for layer, loads_X in enumerate(problem.counts.loads_LX):
        first = layer * problem.experts
        for gpu, speed in enumerate(problem.speeds_G()):
            columns = [(first + each) * gpus + gpu for each in range(problem.experts)]
            rows.add([(each, 1.0) for each in columns], 0.0, float(problem.slots[gpu]))
            terms = list(zip(columns, map(float, loads_X), strict=True))
            rows.add(terms, 0.0, float(limit_L[layer] * speed))


def _waiting(problem: PlacementProblem, rows: _Rows, first: int) -> NDArray[np.float64]:
    """Add a column for each layer, from `first` on: its time, as a share of what is allowed.

    Returns:
        What all GPUs idle for the whole of it, in joules.
    """
    limit_L, gpus = limits(problem), len(problem.gpus)
    for layer, loads_X in enumerate(problem.counts.loads_LX):
        unit = layer * problem.experts
        for gpu, speed in enumerate(problem.speeds_G()):
            columns = [(unit + each) * gpus + gpu for each in range(problem.experts)]
            shares = loads_X / speed / max(float(limit_L[layer]), 1e-300)
            terms = list(zip(columns, map(float, shares), strict=True))
            rows.add([*terms, (first + layer, -1.0)], -np.inf, 0.0)
    return problem.idle_w * limit_L


def _solved(
    problem: PlacementProblem, rows: _Rows, costs: NDArray[np.float64], limit_s: float
) -> Optimum:
    binaries = problem.layers * problem.experts * len(problem.gpus)
    row, column, value = zip(*rows.entries, strict=True)
    matrix = sparse.csr_array((value, (row, column)), shape=(len(rows.upper), len(costs)))
    scale = max(float(costs.max()), 1e-300)
    solved = milp(
        costs / scale,
        constraints=LinearConstraint(matrix, rows.lower, rows.upper),
        integrality=np.arange(len(costs)) < binaries,
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    bound_j = scale * (solved.mip_dual_bound if solved.mip_dual_bound is not None else 0.0)
    if solved.x is None:
        return Optimum(gpu_LX=None, objective_j=None, bound_j=bound_j, proven=False)
    held = solved.x[:binaries].reshape(problem.layers, problem.experts, len(problem.gpus))
    gpu_LX = held.argmax(axis=2)
    objective_j = cost(problem, gpu_LX).objective_j
    proven = objective_j - bound_j <= 2e-4 * objective_j
    return Optimum(gpu_LX=gpu_LX, objective_j=objective_j, bound_j=bound_j, proven=proven)
