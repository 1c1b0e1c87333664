"""The joint plan of a stream: made anew whenever a run arrives, for those that are there. Pure.

Nobody knows who will come. A newcomer is placed in the room left first; so there is always a joint
plan that keeps every promise, and the one that is made is never worse. Where it has no room in
time, the others are asked to move, without breaking a promise; only where they cannot is it told a
later time.

Invariant: a promise that was given is kept by every later plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattmesh.policies.cluster.joint import JointPlan, plan_together
from wattmesh.policies.cluster.pricing import PlanColumn, column
from wattmesh.policies.cluster.rules.greedy import relative_slack
from wattmesh.policies.cluster.rules.one_by_one import placed, placed_by
from wattmesh.policies.cluster.share import RunShare, limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.evaluate import evaluate

AGAIN = 10
"""Most times that all runs are asked for their plans whenever one arrives."""


@dataclass(slots=True, kw_only=True)
class StreamedRun:
    """A run in the stream.

    Attributes:
        promised_s: when it has to be done. `path`: its plan, from the run's first slot on.
    """

    run: SharedRun
    promised_s: float
    path: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class JointStream:
    """All runs that came so far. `without`: those that found no room at all."""

    cluster: SharedCluster
    runs: dict[str, StreamedRun] = field(default_factory=dict)
    without: list[SharedRun] = field(default_factory=list)
    plans: int = 0

    @property
    def paths(self) -> dict[str, tuple[int, ...]]:
        """Give what each run did, or will do; a run without room waits."""
        found = {name: each.path for name, each in self.runs.items()}
        return found | {each.name: (each.start,) for each in self.without}

    def arrive(self, slot: int, newcomers: Sequence[SharedRun]) -> None:
        """Plan anew at the start of a slot, with those that come now."""
        limit = limits(self.cluster)
        shares, known = self._standing(slot)
        order = sorted(newcomers, key=lambda one: (-one.priority, _slack(self.cluster, one)))
        for run in order:
            found = self._in_time(run, shares, known)
            if found is not None:
                shares, known = found
                self.runs[run.name] = StreamedRun(run=run, promised_s=run.deadline_s, path=())
                continue
            room = limit - sum(each.spread(len(limit)) for each in known.values())
            late = placed(self.cluster, run, room)
            if late is None:
                self.without.append(run)
                continue
            shares[run.name], known[run.name] = late.share, late.column
            self.runs[run.name] = StreamedRun(run=run, promised_s=late.done_by_s, path=())
        found_plan = plan_together(list(shares.values()), limit, known=[known], rounds=AGAIN)
        if isinstance(found_plan, JointPlan):
            known = dict(found_plan.columns)
        self.plans += 1
        self._follow(slot, known)

    def _in_time(
        self, run: SharedRun, shares: Mapping[str, RunShare], known: Mapping[str, PlanColumn]
    ) -> tuple[dict[str, RunShare], dict[str, PlanColumn]] | None:
        """Make room for a newcomer by its deadline; None when none was found."""
        limit = limits(self.cluster)
        room = limit - sum(each.spread(len(limit)) for each in known.values())
        found = placed_by(self.cluster, run, room, run.deadline_s)
        if found is not None:
            return {**shares, run.name: found.share}, {**known, run.name: found.column}
        if self.cluster.until(run.deadline_s) <= run.first:
            return None
        wanted = {run.name: share(self.cluster, run, done_by_s=run.deadline_s), **shares}
        moved = plan_together(list(wanted.values()), limit, rounds=AGAIN)
        return (wanted, dict(moved.columns)) if isinstance(moved, JointPlan) else None

    def _standing(self, slot: int) -> tuple[dict[str, RunShare], dict[str, PlanColumn]]:
        """Give what the runs that are not done still have to do, and the rest of their plans."""
        shares, known = dict[str, RunShare](), dict[str, PlanColumn]()
        for name, each in self.runs.items():
            now = rest(self.cluster, each.run, each.path, slot)
            if now is None:
                continue
            shares[name] = share(self.cluster, now, done_by_s=each.promised_s)
            known[name] = column(shares[name], each.path[slot - each.run.first :])
        return shares, known

    def _follow(self, slot: int, columns: Mapping[str, PlanColumn]) -> None:
        for name, found in columns.items():
            each = self.runs[name]
            each.path = (*each.path[: slot - each.run.first], *found.path)


def streamed(cluster: SharedCluster, runs: Sequence[SharedRun]) -> JointStream:
    """Plan a whole stream."""
    stream = JointStream(cluster=cluster)
    for slot in sorted({each.first for each in runs}):
        stream.arrive(slot, [each for each in runs if each.first == slot])
    return stream


def rest(
    cluster: SharedCluster, run: SharedRun, path: tuple[int, ...], slot: int
) -> SharedRun | None:
    """Give a run as it is at the start of a slot, having followed a path; None when it is done."""
    passed = path[: slot - run.first]
    if not passed:
        return run
    laid = share(cluster, run, done_by_s=cluster.edges_s[-1])
    found = evaluate(laid.problem, passed)
    left = run.tokens - found.tokens
    if found.ends_s is not None or left <= run.tokens * 1e-9:
        return None
    return replace(run, first=slot, tokens=left, start=passed[-1])


def _slack(cluster: SharedCluster, run: SharedRun) -> float:
    return relative_slack(run, run.tokens, cluster.edges_s[run.first])
