"""The planner's peers: HiGHS on the flow program of a problem, as a mixed integer or a linear one.

One unit flows along (slot, from, to) edges from the start and leaves after the slot in which the
work ends, of which a share may be cut away. Plain problems only: transitions that are over within
their slot and bind no longer, no caps, no prices, no service level, nothing embodied.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array, eye_array, hstack  # type: ignore[import-untyped]

from wattmesh.policies.planner.problem import PlanningProblem
from wattmesh.telemetry.readings import J_PER_KWH

Edge = tuple[int, int, int]
"""(slot, from, to)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What HiGHS found. `grams` None: no solution within the limit."""

    grams: float | None
    bound_g: float


def flow_program(
    problem: PlanningProblem, *, relaxed: bool = False, limit_s: float = 60.0, gap: float = 1e-9
) -> Solved:
    """Solve the flow program. `relaxed`: the linear program, a bound. `gap`: where to stop."""
    edges = [
        (slot, i, j)
        for slot in range(len(problem.seconds))
        for i in range(len(problem.options))
        for j in range(len(problem.options))
        if i == j or problem.transitions[i][j] is not None
    ]
    grams, tokens, cut_g = np.array([_edge(problem, *edge) for edge in edges]).T
    nothing = np.zeros(len(edges))
    # Columns: flow on an edge, leaving right after it, share of its slot cut away.
    cost = np.concatenate([grams, nothing, -cut_g])
    work = np.concatenate([tokens, nothing, -tokens])[None, :]
    flow, goal = _flow(problem, edges)
    eye = eye_array(len(edges))
    none = coo_array((len(edges), len(edges)))
    with _stdout_to_stderr():
        solved = milp(
            cost,
            constraints=[
                LinearConstraint(work, problem.tokens * (1 - 1e-9), np.inf),
                LinearConstraint(flow, goal, goal),
                LinearConstraint(hstack([eye, -eye, none]), 0, np.inf),
                LinearConstraint(hstack([none, eye, -eye]), 0, np.inf),
            ],
            integrality=np.concatenate([np.ones(2 * len(edges)), nothing]) * (not relaxed),
            bounds=Bounds(0, 1),
            options={"time_limit": limit_s, "mip_rel_gap": gap},
        )
    if solved.x is None:
        return Solved(grams=None, bound_g=np.inf)
    bound_g = solved.fun if relaxed else solved.mip_dual_bound
    return Solved(grams=float(solved.fun), bound_g=float(bound_g))


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what HiGHS prints out of the way of a benchmark's JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _flow(problem: PlanningProblem, edges: list[Edge]) -> tuple[coo_array, NDArray[np.float64]]:
    """Give the rows of flow: per (slot, option) what comes in goes out, and one unit ends."""
    count, kinds, slots = len(edges), len(problem.options), len(problem.seconds)
    entries: list[tuple[int, int, float]] = []
    for column, (slot, i, j) in enumerate(edges):
        entries.append((slot * kinds + i, column, 1.0))
        if slot + 1 < slots:
            entries.append(((slot + 1) * kinds + j, column, -1.0))
            entries.append(((slot + 1) * kinds + j, count + column, 1.0))
        entries.append((slots * kinds, count + column, 1.0))
    rows, columns, values = zip(*entries, strict=True)
    goal = np.zeros(slots * kinds + 1)
    goal[problem.start] = goal[-1] = 1.0
    return coo_array((values, (rows, columns)), shape=(len(goal), 3 * count)), goal


def _edge(problem: PlanningProblem, slot: int, i: int, j: int) -> tuple[float, float, float]:
    """Give grams and tokens of an edge, and the grams of training for the rest of its slot."""
    way = problem.transitions[i][j] if i != j else None
    lost_s, energy_j = (way.seconds, way.energy_j) if way else (0.0, 0.0)
    g_per_j, option = problem.g_per_kwh[slot] / J_PER_KWH, problem.options[j]
    left_s = problem.seconds[slot] - lost_s
    running_g = option.power_w * left_s * g_per_j
    cut_g = running_g if option.tokens_per_s else 0.0
    return running_g + energy_j * g_per_j, option.tokens_per_s * left_s, cut_g
