"""Rule: each run at the point it was submitted at, in order of arrival, as soon as that fits. Pure.

Nobody looks at the grid. A run that has begun keeps its point; under a cap that falls it takes the
fastest point that fits, those that came first before others. Runs that came later begin before one
that waits, where it has no room and they have.

Its deadlines are the ones that a joint plan has to keep.
"""

from collections.abc import Sequence

from wattmesh.policies.cluster.rules.dispatch import DispatchedRun, SlotRoom, dispatched
from wattmesh.policies.cluster.share import limits
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.arrays import Floats


def first_come(cluster: SharedCluster, runs: Sequence[SharedRun]) -> dict[str, DispatchedRun]:
    """Follow the rule to the end of the slots; `runs` in order of arrival."""
    most = limits(cluster).max(axis=0)

    def choose(slot: int, there: Sequence[DispatchedRun], room: SlotRoom) -> dict[str, int]:
        order = sorted(there, key=lambda one: not one.begun)
        return {each.run.name: room.chosen(each, _wishes(each, most)) for each in order}

    return dispatched(cluster, runs, choose)


def _wishes(each: DispatchedRun, most: Floats) -> list[int]:
    """List options, the one wanted most first; `most`: of each kind, in any slot."""
    run = each.run
    by_speed = sorted(range(len(run.options)), key=lambda n: -run.options[n].tokens_per_s)
    ever = [n for n in by_speed if (each.share.staying[n] <= most).all()]
    wanted = run.submitted if run.submitted in ever else ever[0]
    if each.begun:
        return [wanted, *by_speed]
    return [wanted, run.start]
