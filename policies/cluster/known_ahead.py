"""The joint plan of runs that are all known before the first arrives, and a bound beside it. Pure.

What `first_come` does is a joint plan too. So a run that it brings in by its deadline is promised
that, and the others are promised when it brings them in: these promises can all be kept. Then it
is tried whether the others can be in time after all, without breaking a promise; higher priority
first.

Where a cap falls below what a run draws that has no room to switch, `first_come` goes above it, or
into the room that plans leave for what points do not say. No plan keeps such a promise. The best of
the other rules, which plan within the limits, is then what is promised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wattmesh.policies.cluster.joint import ROUNDS, JointPlan, bound_together, plan_together
from wattmesh.policies.cluster.neighbourhood import improved
from wattmesh.policies.cluster.pricing import PlanColumn, column
from wattmesh.policies.cluster.rules.greedy import relative_slack
from wattmesh.policies.cluster.rules.one_by_one import placed, total
from wattmesh.policies.cluster.share import RunShare, idle_g, limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun
from wattmesh.policies.planner.evaluate import evaluate
from wattmesh.policies.planner.problem import NoPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAhead:
    """The plan, with what each run was promised: its deadline, or the end that it gets."""

    plan: JointPlan
    promised_s: Mapping[str, float]


def known_ahead(
    cluster: SharedCluster,
    runs: Sequence[SharedRun],
    paths: Mapping[str, Sequence[int]],
    done_s: Mapping[str, float | None],
    *,
    also: Sequence[Mapping[str, Sequence[int]]] = (),
) -> KnownAhead | NoPlan:
    """Plan all runs.

    Args:
        cluster: the slots, and what there is.
        runs: in order of arrival.
        paths: what `first_come` does with them.
        done_s: when it is done with each; None: not within the slots.
        also: paths of other rules, within the limits, that may be a better start.
    """
    limit = limits(cluster)
    promised_s, late = _promised(cluster, runs, done_s)
    order = sorted(runs, key=lambda each: _wish(cluster, each))
    if late:
        wanted_s = {each.name: each.deadline_s for each in runs}
        if all(cluster.until(each.deadline_s) > each.first for each in late):
            shares = [share(cluster, each, done_by_s=each.deadline_s) for each in order]
            better = _in_time(shares, also)
            found = plan_together(shares, limit, known=better)
            if isinstance(found, JointPlan):
                return KnownAhead(plan=improved(shares, limit, found), promised_s=wanted_s)
    shares = [share(cluster, each, done_by_s=promised_s[each.name]) for each in order]
    known = _in_time(shares, [paths, *also])
    found = plan_together(shares, limit, known=known)
    others = sorted(
        (_promised(cluster, runs, _ends_s(cluster, runs, each)) for each in also),
        key=lambda each: len(each[1]),
    )
    while isinstance(found, NoPlan) and others:
        promised_s, late = others.pop(0)
        shares = [share(cluster, each, done_by_s=promised_s[each.name]) for each in order]
        known = _in_time(shares, also)
        found = plan_together(shares, limit, known=known)
    if isinstance(found, NoPlan):
        return found
    found = improved(shares, limit, found)
    return _sooner(cluster, sorted(late, key=lambda each: _wish(cluster, each)), found, promised_s)


def _promised(
    cluster: SharedCluster, runs: Sequence[SharedRun], done_s: Mapping[str, float | None]
) -> tuple[dict[str, float], list[SharedRun]]:
    """Give what a rule promises: its deadline to who is in time, else its end; and who is late."""
    edges_s, promised_s, late = cluster.edges_s, dict[str, float](), []
    for run in runs:
        ends_s = done_s[run.name]
        ends_s = edges_s[-1] if ends_s is None else ends_s
        in_time = ends_s <= run.deadline_s * (1 + 1e-9)
        promised_s[run.name] = run.deadline_s if in_time else edges_s[cluster.until(ends_s)]
        if not in_time:
            late.append(run)
    return promised_s, late


def _ends_s(
    cluster: SharedCluster, runs: Sequence[SharedRun], paths: Mapping[str, Sequence[int]]
) -> dict[str, float | None]:
    """Give when each run is done on its path, from the start of the first slot."""
    found: dict[str, float | None] = {}
    for run in runs:
        whole = share(cluster, run, done_by_s=cluster.edges_s[-1]).problem
        ends_s = evaluate(whole, tuple(paths[run.name])).ends_s
        found[run.name] = None if ends_s is None else cluster.edges_s[run.first] + ends_s
    return found


def joint_bound_g(
    cluster: SharedCluster,
    runs: Sequence[SharedRun],
    done_by_s: Mapping[str, float],
    known: Mapping[str, Sequence[int]],
    *,
    rounds: int = ROUNDS,
) -> float | None:
    """Give the grams, idle GPUs included, below which nobody is who is done by then; None: no plan.

    Args:
        cluster: the slots, and what there is.
        runs: all.
        done_by_s: when each has to be done.
        known: paths within the limits that are.
        rounds: most times that all runs are asked.
    """
    shares = [share(cluster, each, done_by_s=done_by_s[each.name]) for each in runs]
    columns = [column(each, tuple(known[each.name])) for each in shares]
    found_g = bound_together(shares, limits(cluster), known=columns, rounds=rounds)
    return None if found_g is None else found_g + idle_g(cluster)


def _in_time(
    shares: Sequence[RunShare], paths: Sequence[Mapping[str, Sequence[int]]]
) -> list[dict[str, PlanColumn]]:
    """Give as joint plans the paths by which every run is done when it has to be."""
    found = []
    for each in paths:
        ways = {one.name: tuple(each[one.name])[: len(one.problem.seconds)] for one in shares}
        if all(evaluate(one.problem, ways[one.name]).legal for one in shares):
            found.append({one.name: column(one, ways[one.name]) for one in shares})
    return found


def _sooner(
    cluster: SharedCluster,
    late: Sequence[SharedRun],
    found: JointPlan,
    promised_s: Mapping[str, float],
) -> KnownAhead:
    """Let runs that would be late be done sooner where the plans of the others leave room."""
    columns, promised = dict(found.columns), dict(promised_s)
    for run in late:
        own = columns.pop(run.name)
        room = limits(cluster)
        if columns:
            room = room - total(columns, len(room))
        better = placed(cluster, run, room)
        if better is not None and better.done_by_s < promised[run.name]:
            own, promised[run.name] = better.column, better.done_by_s
        columns[run.name] = own
    grams = sum(each.grams for each in columns.values())
    return KnownAhead(
        plan=replace(found, columns=columns, grams=grams, bound_g=min(found.bound_g, grams)),
        promised_s=promised,
    )


def _wish(cluster: SharedCluster, run: SharedRun) -> tuple[float, float]:
    slack = relative_slack(run, run.tokens, cluster.edges_s[run.first])
    return -float(run.priority), slack
