"""Which plan each run follows: the restricted master of column generation, and its whole numbers.

Pure. The linear program may mix plans of a run; its dual values are prices. The whole-number
program takes one plan of each run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp  # type: ignore[import-untyped]
from scipy.sparse import csc_array, vstack  # type: ignore[import-untyped]

from wattmesh.policies.cluster.pricing import FULL, PlanColumn
from wattmesh.policies.planner.arrays import Floats

TOO_MUCH = 100.0
"""Share of a limit above which a plan is just too large: keeps the numbers of the program alike."""

NEVER = 20.0
"""Price of leaving a run's work undone, in multiples of its dearest plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlans:
    """The best mix of plans.

    Attributes:
        undone: largest share of a run's work for which there is no room.
        heaviest: the plan that is most of its run's mix; None: no run has one.
    """

    grams: float
    prices: Floats
    undone: float
    heaviest: PlanColumn | None


class PlanPool:
    """Plans of all runs, each once."""

    def __init__(self, runs: Sequence[str], limit: Floats) -> None:
        """Start empty; `limit`: (T, R)."""
        self._runs = {name: n for n, name in enumerate(runs)}
        self._limit = limit
        self._columns: list[PlanColumn] = []
        self._keys: set[tuple[str, tuple[int, ...]]] = set()
        self._shares: list[csc_array] = []

    def add(self, column: PlanColumn) -> bool:
        """Add a plan; say whether it is new."""
        key = (column.run, column.path)
        if key in self._keys:
            return False
        self._keys.add(key)
        self._columns.append(column)
        spread = column.spread(len(self._limit)) / np.maximum(self._limit, 1e-12)
        spread = np.minimum(spread, TOO_MUCH)
        self._shares.append(csc_array(spread.reshape(-1, 1)))
        return True

    def after(self, column: PlanColumn, room: Floats) -> "PlanPool":
        """Give the plans of all other runs that fit in the room that one of them leaves."""
        found = PlanPool([each for each in self._runs if each != column.run], room)
        for each in self._columns:
            most = room[each.first : each.first + len(each.takes)]
            if each.run != column.run and (each.takes <= most * (1 + FULL) + FULL).all():
                found.add(each)
        return found

    def mixed(self) -> MixedPlans | None:
        """Solve the linear program; None when its numbers are beyond the solver."""
        costs, limited, once = self._program()
        runs = len(self._runs)
        never = NEVER * max(costs.max(initial=0.0), 1.0)
        eye = csc_array(np.eye(runs))
        empty = csc_array((limited.shape[0], runs))
        solved = linprog(
            np.concatenate([costs, np.full(runs, never)]),
            A_ub=_beside(limited, empty),
            b_ub=np.ones(limited.shape[0]),
            A_eq=_beside(once, eye),
            b_eq=np.ones(runs),
            method="highs",
        )
        if solved.x is None or solved.status != 0:
            return None
        duals = np.maximum(0.0, -solved.ineqlin.marginals).reshape(self._limit.shape)
        return MixedPlans(
            grams=float(solved.fun),
            prices=duals / np.maximum(self._limit, 1e-12),
            undone=float(solved.x[len(costs) :].max()),
            heaviest=self._columns[int(solved.x[: len(costs)].argmax())] if len(costs) else None,
        )

    def whole(self, *, nodes: int) -> Mapping[str, PlanColumn] | None:
        """Take one plan of each run, looking at so many nodes at most; None when none was found."""
        costs, limited, once = self._program()
        solved = milp(
            costs,
            constraints=[
                LinearConstraint(limited, -np.inf, 1.0 + FULL),
                LinearConstraint(once, 1.0, 1.0),
            ],
            integrality=np.ones(len(costs)),
            bounds=Bounds(0, 1),
            options={"node_limit": nodes, "mip_rel_gap": 1e-4},
        )
        if solved.x is None:
            return None
        taken = np.flatnonzero(solved.x > 0.5)
        return {self._columns[n].run: self._columns[n] for n in taken}

    def _program(self) -> tuple[Floats, csc_array, csc_array]:
        """Give the costs, what each plan takes of the limits, and whose plan it is."""
        costs = np.array([each.grams for each in self._columns])
        limited = self._shares[0] if len(self._shares) == 1 else _beside(*self._shares)
        owner = [self._runs[each.run] for each in self._columns]
        count = len(self._columns)
        once = csc_array(
            (np.ones(count), (owner, np.arange(count))), shape=(len(self._runs), count)
        )
        return costs, limited, once


def _beside(*parts: csc_array) -> csc_array:
    return vstack([each.T for each in parts]).T.tocsc()
