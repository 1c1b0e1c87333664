"""Rule: each run plans alone when it arrives, in the room that those before it left. Pure.

No plan is changed for a run that comes later. A run that has no plan in time gets the one that is
done first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattmesh.policies.cluster.pricing import PlanColumn, PricedPlan, priced
from wattmesh.policies.cluster.share import RunShare, limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRun:
    """A run with a plan in the room that there was. `done_by_s`: its deadline, or what it got."""

    share: RunShare
    column: PlanColumn
    done_by_s: float


def one_by_one(
    cluster: SharedCluster, runs: Sequence[SharedRun]
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Place all runs; `runs` in order of arrival.

    Returns:
        Paths, and the names of runs that found no room at all.
    """
    room, paths, without = limits(cluster), dict[str, tuple[int, ...]](), []
    for run in runs:
        found = placed(cluster, run, room)
        if found is None:
            without.append(run.name)
            paths[run.name] = (run.start,)
            continue
        paths[run.name] = found.column.path
        room = room - found.column.spread(len(room))
    return paths, tuple(without)


def placed(cluster: SharedCluster, run: SharedRun, room: Floats) -> PlacedRun | None:
    """Plan a run in the room left: by its deadline, else to be done first; None: no room."""
    found = placed_by(cluster, run, room, run.deadline_s)
    if found is not None:
        return found
    edges_s = cluster.edges_s
    early, late = max(run.first, cluster.until(run.deadline_s)), len(edges_s) - 1
    found = placed_by(cluster, run, room, edges_s[late])
    while found is not None and late - early > 1:
        middle = (early + late) // 2
        sooner = placed_by(cluster, run, room, edges_s[middle])
        if sooner is None:
            early = middle
        else:
            found, late = sooner, middle
    return found


def placed_by(
    cluster: SharedCluster, run: SharedRun, room: Floats, done_by_s: float
) -> PlacedRun | None:
    """Plan a run in the room left, to be done by a time; None: there is no such plan."""
    if cluster.until(done_by_s) <= run.first:
        return None
    laid = share(cluster, run, done_by_s=done_by_s)
    found = priced(laid, room=room)
    if not isinstance(found, PricedPlan):
        return None
    return PlacedRun(share=laid, column=found.column, done_by_s=done_by_s)


def total(columns: Mapping[str, PlanColumn], slots: int) -> Floats:
    """Give (T, R): what plans take together; there has to be one."""
    spreads = [each.spread(slots) for each in columns.values()]
    return sum(spreads[1:], start=spreads[0])
