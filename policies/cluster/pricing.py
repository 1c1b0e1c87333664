"""One run's own planner, with what the other runs leave it and what they ask for it. Pure.

The prices are grams for a GPU, or a watt, in a slot. A run pays them for the whole of each slot
that it begins. Of the slot in which its work ends the recursion charges the least that any point
pays for it, so that its bound stays below what is paid.

Invariant: the bound of `priced` holds for every legal plan of the run, whatever the prices.
"""

from dataclasses import dataclass, replace

import numpy as np

from wattmesh.policies.cluster.share import RunShare
from wattmesh.policies.planner.arrays import Arrays, Bools, Floats
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import Evaluation, NoPlan
from wattmesh.policies.planner.route import Path
from wattmesh.policies.planner.solver import solve

FULL = 1e-9
"""Share of a limit by which sums may miss it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColumn:
    """A legal plan of one run.

    Attributes:
        grams: above those of idle GPUs, without prices.
        takes: (slots of the path, R), from `first` on.
        done_s: when its work is done, from the start of its first slot.
    """

    run: str
    first: int
    path: Path
    grams: float
    takes: Floats
    done_s: float

    def spread(self, slots: int) -> Floats:
        """Give (T, R): what it takes in every slot of the cluster."""
        found = np.zeros((slots, self.takes.shape[1]))
        found[self.first : self.first + len(self.takes)] = self.takes
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """What a run would do under prices. `bound_g`: grams and prices of no plan are less."""

    column: PlanColumn
    bound_g: float
    mu_g_per_token: float


class _Others:
    """The other runs, as one run's planner sees them."""

    def __init__(self, share: RunShare, prices: Floats | None, room: Floats | None) -> None:
        """Cut what is the cluster's to the slots of the run; None: no prices, no limit."""
        count, kinds = len(share.problem.seconds), share.staying.shape[1]
        self._share = share
        self._prices = np.zeros((count, kinds)) if prices is None else prices[share.slots]
        self._room = None if room is None else room[share.slots] * (1 + FULL) + FULL

    def laid_out(self, arrays: Arrays, *, costs: bool) -> Arrays:
        """Close what there is no room for; with `costs` add prices."""
        share, room = self._share, self._room
        paid = self._prices @ share.staying.T * costs
        more = (share.going - share.staying[None, :, :]) @ self._prices.T * costs
        fits: Bools = np.ones(more.shape, dtype=np.bool_)
        open_ = arrays.open
        if room is not None:
            there = (share.staying[None, :, :] <= room[:, None, :]).all(axis=2)
            open_ = np.logical_and(open_, there)
            fits = np.asarray((share.going[:, :, None, :] <= room[None, None, :, :]).all(axis=3))
        extra = np.where(fits, np.maximum(0.0, more), np.inf).transpose(2, 0, 1)
        shut = np.full(arrays.shut.shape, -1, dtype=np.int64)
        slots = np.arange(len(open_))[:, None]
        shut[1:] = np.maximum.accumulate(np.where(open_, -1, slots), axis=0)
        return replace(
            arrays,
            grams=arrays.grams
            + np.concatenate([np.zeros((1, paid.shape[1])), paid.cumsum(axis=0)]),
            ways=tuple(replace(each, extra_g=each.extra_g + extra) for each in arrays.ways),
            open=open_,
            shut=shut,
            begun_g=paid[:, arrays.rates > 0].min(axis=1),
        )

    def judged(self, path: Path, found: Evaluation) -> Evaluation:
        """Add prices and missing room to what following a path comes to."""
        if found.ends_s is None:
            return found
        takes = self._share.takes(until_done(self._share, path, found.ends_s))
        paid = float(np.sum(takes * self._prices[: len(takes)]))
        if self._room is not None and (takes > self._room[: len(takes)]).any():
            found = replace(found, broken=(*found.broken, "the other runs leave no room"))
        return replace(found, grams=found.grams + paid)


def priced(
    share: RunShare,
    *,
    prices: Floats | None = None,
    room: Floats | None = None,
    near_mu: float | None = None,
    also: tuple[Path, ...] = (),
) -> PricedPlan | NoPlan:
    """Plan one run.

    Args:
        share: the run.
        prices: (T, R) grams for a GPU or a watt in a slot; None: nothing is asked.
        room: (T, R) what is left for the run; None: everything fits.
        near_mu: price of a token from which the search starts.
        also: paths to consider besides.
    """
    others = None if prices is None and room is None else _Others(share, prices, room)
    found = solve(share.problem, also=also, near_mu=near_mu, others=others)
    if isinstance(found, NoPlan):
        return found
    return PricedPlan(
        column=column(share, found.path),
        bound_g=found.bound_g,
        mu_g_per_token=found.mu_g_per_token,
    )


def column(share: RunShare, path: Path) -> PlanColumn:
    """Give a path that does the run's work as a column, judged second by second."""
    found = evaluate(share.problem, path)
    ends_s = sum(share.problem.seconds) if found.ends_s is None else found.ends_s
    path = until_done(share, path, ends_s)
    return PlanColumn(
        run=share.name,
        first=share.first,
        path=path,
        grams=found.grams,
        takes=share.takes(path),
        done_s=ends_s,
    )


def until_done(share: RunShare, path: Path, ends_s: float) -> Path:
    """Cut the slots of a path that begin after the work is done."""
    begins = np.concatenate([[0.0], np.cumsum(share.problem.seconds)[:-1]])
    return path[: max(1, int(np.searchsorted(begins, ends_s * (1 - 1e-12))))]
