"""First prices: the linear program in which a run may be at several points in one slot. Pure.

Switches cost nothing there and runs may be split, so its value is below that of every plan, and
its dual values are near the prices at which column generation ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]

from wattmesh.policies.cluster.master import TOO_MUCH
from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Floats, Ints
from wattmesh.telemetry.readings import J_PER_KWH


def first_prices(shares: Sequence[RunShare], limit: Floats) -> Floats:
    """Give (T, R) grams for what there is; zeros when the work does not even fit so."""
    slots, kinds = limit.shape
    parts = [_part(each, limit) for each in shares]
    starts = np.concatenate([[0], np.cumsum([len(each.cost) for each in parts])])
    places = np.concatenate([[0], np.cumsum([each.present for each in parts])])
    limited, once, work = (_Triplets() for _ in range(3))
    for n, part in enumerate(parts):
        variables = np.arange(len(part.cost)) + starts[n]
        for kind in range(kinds):
            limited.add(part.slot * kinds + kind, variables, part.takes[:, kind])
        once.add(part.place + places[n], variables, np.ones(len(variables)))
        work.add(np.full(len(variables), n), variables, -part.trains)
    rows = slots * kinds + len(shares)
    limited.add(work.rows + slots * kinds, work.columns, work.values)
    solved = linprog(
        np.concatenate([each.cost for each in parts]),
        A_ub=limited.matrix(rows, starts[-1]),
        b_ub=np.concatenate([np.ones(slots * kinds), -np.ones(len(shares))]),
        A_eq=once.matrix(places[-1], starts[-1]),
        b_eq=np.ones(places[-1]),
        method="highs",
    )
    if solved.x is None or solved.status != 0:
        return np.zeros_like(limit)
    duals = np.maximum(0.0, -solved.ineqlin.marginals[: slots * kinds])
    return np.asarray(duals.reshape(slots, kinds) / np.maximum(limit, 1e-12))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One run's variables, (slots x options): shares of a slot spent at an option.

    Attributes:
        takes: shares of the limit. `trains`: shares of the run's work.
        place: slot of the run, `slot`: of the cluster. `present`: how many slots it has.
    """

    cost: Floats
    takes: Floats
    trains: Floats
    place: Ints
    slot: Ints
    present: int


def _part(share: RunShare, limit: Floats) -> _Part:
    problem = share.problem
    count, kinds = len(problem.seconds), len(problem.options)
    seconds = np.array(problem.seconds)
    power_w = np.array([each.power_w for each in problem.options])
    rates = np.array([each.tokens_per_s for each in problem.options])
    grams_per_w = seconds * np.array(problem.g_per_kwh) / J_PER_KWH
    place = np.repeat(np.arange(count), kinds)
    takes = share.staying[None, :, :] / np.maximum(limit[share.slots], 1e-12)[:, None, :]
    takes = np.minimum(takes, TOO_MUCH)
    return _Part(
        cost=(grams_per_w[:, None] * power_w).ravel(),
        takes=takes.reshape(count * kinds, -1),
        trains=(seconds[:, None] * rates / problem.tokens).ravel(),
        place=place,
        slot=place + share.first,
        present=count,
    )


class _Triplets:
    """A sparse matrix that grows."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[tuple[Ints, Ints, Floats]] = []

    def add(self, rows: Ints, columns: Ints, values: Floats) -> None:
        """Add entries."""
        self._parts.append((rows, columns, values))

    @property
    def rows(self) -> Ints:
        """Row of each entry."""
        return np.concatenate([each[0] for each in self._parts])

    @property
    def columns(self) -> Ints:
        """Column of each entry."""
        return np.concatenate([each[1] for each in self._parts])

    @property
    def values(self) -> Floats:
        """Value of each entry."""
        return np.concatenate([each[2] for each in self._parts])

    def matrix(self, rows: int, columns: int) -> coo_array:
        """Give the matrix."""
        return coo_array((self.values, (self.rows, self.columns)), shape=(rows, columns)).tocsc()
