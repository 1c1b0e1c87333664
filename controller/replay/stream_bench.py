"""`wattmesh policy bench --jobs`: a stream of jobs on one cluster, under each rule, and the bound.

The world is the account's (`policies/cluster/account.py`): each path is followed second by second
over the recorded grid, switches take their time, GPUs that no run owns draw their idle power. The
grid is known to every rule, and nothing fails: what is compared is who shares how.

Invariant: no figure of a rule comes from the code that planned it; the bound is only compared with
rules that keep the limits, and whose runs are done by the times that it allows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count

from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.stream_demand import triggered_caps
from wattmesh.controller.replay.stream_file import HOUR_S, CapSpan, JobStream, StreamJob
from wattmesh.controller.replay.stream_rows import (
    AHEAD,
    ALONE,
    FIRST_COME,
    GREEDY,
    JOINT,
    RULES,
    JobOutcome,
    RuleRow,
    StreamResult,
    peer_of,
)
from wattmesh.errors import InputInvalid
from wattmesh.policies.cluster.account import ClusterAccount, account
from wattmesh.policies.cluster.arrivals import streamed
from wattmesh.policies.cluster.known_ahead import joint_bound_g, known_ahead
from wattmesh.policies.cluster.pricing import FULL, column
from wattmesh.policies.cluster.rules.first_come import first_come
from wattmesh.policies.cluster.rules.greedy import greedy
from wattmesh.policies.cluster.rules.one_by_one import one_by_one
from wattmesh.policies.cluster.share import limits, share
from wattmesh.policies.cluster.shared import SharedCluster, SharedRun, checked
from wattmesh.policies.planner.options import options, transitions
from wattmesh.policies.planner.problem import NoPlan
from wattmesh.reconfig.catalogue import PAUSED

AFTER_S = 24 * HOUR_S
"""Time that is looked at after the last deadline, and after the last run is done."""

LATE = 1e-9
"""Share of a deadline by which rounding may miss it."""

Paths = Mapping[str, Sequence[int]]


def bench_stream(
    stream: JobStream, grid: GridSeries, told: Callable[[int], None] = lambda _: None
) -> StreamResult:
    """Follow every rule on one trace; `told` is called with 1 after each.

    Raises:
        InputInvalid: the trace is too short, or a job cannot be one of this cluster.
    """
    stream = with_demand(stream, grid)
    cluster, runs = _world(stream, grid)
    paths: dict[str, Paths] = {}
    took_s: dict[str, float] = {}
    makers: tuple[tuple[str, Callable[[], Paths]], ...] = (
        (FIRST_COME, lambda: {k: v.path for k, v in first_come(cluster, runs).items()}),
        (GREEDY, lambda: {k: v.path for k, v in greedy(cluster, runs).items()}),
        (ALONE, lambda: one_by_one(cluster, runs)[0]),
        (JOINT, lambda: streamed(cluster, runs).paths),
        (AHEAD, lambda: _ahead(cluster, runs, paths)),
    )
    for name, made in makers:
        began = time.perf_counter()
        paths[name] = made()
        took_s[name] = time.perf_counter() - began
        told(1)
    accounts = {name: account(cluster, runs, each) for name, each in paths.items()}
    allowed_s = _allowed_s(runs, [accounts[each] for each in (FIRST_COME, JOINT, AHEAD)])
    bound_g = joint_bound_g(cluster, runs, allowed_s, paths[AHEAD])
    told(1)
    rows = tuple(
        replace(
            _row(
                name, grid.name, runs, accounts, allowed_s, fits=_fits(cluster, runs, paths[name])
            ),
            solve_s=took_s[name],
        )
        for name in RULES
    )
    return StreamResult(
        stream=stream.name,
        trace=grid.name,
        slot_s=stream.slot_s,
        hours=cluster.edges_s[-1] / HOUR_S,
        rows=rows,
        bound_g=bound_g,
        peer=peer_of(rows),
        intervals=len(grid.values),
        filled=grid.filled,
    )


STEPS = len(RULES) + 1
"""How often `bench_stream` tells of its progress."""


def _ahead(cluster: SharedCluster, runs: Sequence[SharedRun], paths: Mapping[str, Paths]) -> Paths:
    """Plan all jobs as if they were known; what the other rules did are starts for it."""
    first = paths[FIRST_COME]
    done_s = {name: each.done_s for name, each in account(cluster, runs, first).runs.items()}
    found = known_ahead(cluster, runs, first, done_s, also=[paths[ALONE], paths[JOINT]])
    if isinstance(found, NoPlan):
        raise InputInvalid(f"the jobs cannot be planned together: {found.reason}")
    return {name: each.path for name, each in found.plan.columns.items()}


def _allowed_s(runs: Sequence[SharedRun], accounts: Sequence[ClusterAccount]) -> dict[str, float]:
    """Give by when each run has to be done for the bound: its deadline, or its late end."""
    return {
        run.name: max([run.deadline_s, *(each.runs[run.name].done_s or 0.0 for each in accounts)])
        for run in runs
    }


def _row(
    name: str,
    trace: str,
    runs: Sequence[SharedRun],
    accounts: Mapping[str, ClusterAccount],
    allowed_s: Mapping[str, float],
    *,
    fits: bool,
) -> RuleRow:
    mine, first = accounts[name], accounts[FIRST_COME]
    missed = [each.name for each in runs if not _met(mine, each)]
    ends_s = {each.name: mine.runs[each.name].done_s for each in runs}
    return RuleRow(
        policy=name,
        trace=trace,
        carbon_g=mine.grams,
        idle_g=mine.idle_g,
        energy_j=mine.energy_j,
        missed=tuple(missed),
        lost=tuple(each.name for each in runs if each.name in missed and _met(first, each)),
        switches=sum(each.switches for each in mine.runs.values()),
        cap_exceeded_s=mine.longest_over_s,
        gpus_exceeded_s=mine.over_gpus_s,
        most_w=mine.most_w,
        bounded=fits
        and all(
            done_s is not None and done_s <= allowed_s[each] * (1 + LATE)
            for each, done_s in ends_s.items()
        ),
        solve_s=0.0,
        jobs=tuple(
            JobOutcome(
                job=each.name,
                done_h=None if (done_s := ends_s[each.name]) is None else done_s / HOUR_S,
                deadline_h=each.deadline_s / HOUR_S,
                deadline_met=each.name not in missed,
                carbon_g=mine.runs[each.name].grams,
                switches=mine.runs[each.name].switches,
            )
            for each in runs
        ),
    )


def _fits(cluster: SharedCluster, runs: Sequence[SharedRun], paths: Paths) -> bool:
    """Say whether paths keep the limits that plans keep, as those that the bound is of."""
    limit, end_s = limits(cluster), cluster.edges_s[-1]
    taken = sum(
        column(share(cluster, each, done_by_s=end_s), tuple(paths[each.name])).spread(len(limit))
        for each in runs
    )
    return bool((taken <= limit * (1 + FULL) + FULL).all())


def _met(found: ClusterAccount, run: SharedRun) -> bool:
    done_s = found.runs[run.name].done_s
    return done_s is not None and done_s <= run.deadline_s * (1 + LATE)


def _world(stream: JobStream, grid: GridSeries) -> tuple[SharedCluster, list[SharedRun]]:
    """Lay the stream over a trace, until every rule can be done."""
    last_s = max(each.deadline_s for each in stream.jobs)
    has_s = (grid.end - grid.start).total_seconds() - stream.start_s
    if has_s < last_s:
        raise InputInvalid(
            f"{grid.name} has {max(0.0, has_s) / HOUR_S:.0f} hours after start_h, and the last "
            f"deadline is at {last_s / HOUR_S:.0f}; give a longer trace or an earlier start_h"
        )
    # Twice as long each time: a job that is never done costs a few looks, not one for each day.
    for doubled in count():
        until_s = min(has_s, last_s + 2**doubled * AFTER_S)
        cluster = _cluster(stream, grid, until_s)
        runs = [_run(cluster, each) for each in stream.jobs]
        ends = [each.done_s for each in first_come(cluster, runs).values()]
        if all(ends):
            until_s = min(has_s, max(last_s, *(each or 0.0 for each in ends)) + AFTER_S)
            cluster = _cluster(stream, grid, until_s)
            return cluster, [_run(cluster, each) for each in stream.jobs]
        if until_s >= has_s:
            break
    waiting = sum(each is None for each in ends)
    raise InputInvalid(
        f"{waiting} of {len(ends)} jobs are not done by the end of {grid.name}, first come, first "
        "served; give a longer trace, fewer jobs, more GPUs or a higher cap"
    )


def with_demand(stream: JobStream, grid: GridSeries) -> JobStream:
    """Give the stream with the caps that demand response sets on this trace."""
    if stream.demand is None:
        return stream
    begin = grid.start + timedelta(seconds=stream.start_s)
    found = triggered_caps(stream.demand, grid.slots, begin, grid.end)
    spans = tuple(
        CapSpan(
            from_s=(each.start - begin).total_seconds(),
            until_s=(each.until - begin).total_seconds(),
            watts=each.cap_w,
        )
        for each in found
    )
    return replace(stream, caps=(*stream.caps, *spans), demand=None)


def _cluster(stream: JobStream, grid: GridSeries, until_s: float) -> SharedCluster:
    slots = max(1, int(until_s // stream.slot_s))
    begin = grid.start + timedelta(seconds=stream.start_s)
    burnt = [grid.burnt(begin + timedelta(seconds=n * stream.slot_s)) for n in range(slots + 1)]
    mean = tuple((burnt[n + 1] - burnt[n]) / stream.slot_s for n in range(slots))
    caps = tuple(_cap_w(stream, n * stream.slot_s, mean[n]) for n in range(slots))
    return SharedCluster(
        seconds=(stream.slot_s,) * slots,
        g_per_kwh=mean,
        gpus=stream.gpus,
        cap_w=tuple(each or 0.0 for each in caps) if all(caps) else _filled(stream, caps),
        idle_w_per_gpu=stream.idle_w_per_gpu,
    )


def _filled(stream: JobStream, caps: Sequence[float | None]) -> tuple[float, ...]:
    """Give caps for all slots where only some have one; none where none has."""
    if not any(caps):
        return ()
    most = [max(point.power_w for point in each.catalogue.points) for each in stream.jobs]
    free_w = 2 * sum(most) + stream.gpus * stream.idle_w_per_gpu
    return tuple(free_w if each is None else each for each in caps)


def _cap_w(stream: JobStream, from_s: float, g_per_kwh: float) -> float | None:
    """Give the lowest cap of a slot; None: there is none."""
    until_s = from_s + stream.slot_s
    found = [each.watts for each in stream.caps if each.from_s < until_s and each.until_s > from_s]
    if stream.cap_w is not None:
        found.append(stream.cap_w)
    if stream.grams_per_hour is not None and g_per_kwh > 0:
        found.append(stream.grams_per_hour / g_per_kwh * 1000)
    return min(found, default=None)


def _run(cluster: SharedCluster, job: StreamJob) -> SharedRun:
    """Give a job as a run that waits for GPUs."""
    catalogue = job.catalogue
    kinds = options(catalogue, catalogue.points, 0, pause=True)
    ways = transitions(catalogue.switch, kinds, release=catalogue.release)
    waits = [each.name for each in kinds].index(PAUSED)
    if not job.pause:
        ways = tuple((*row[:waits], None) for row in ways)
    first = cluster.until(job.arrival_s)
    if first >= len(cluster.seconds):
        raise InputInvalid(f"job {job.name} arrives after the end of the time looked at")
    fits = [each.name for each in kinds if 0 < each.gpus <= cluster.gpus]
    if not fits:
        raise InputInvalid(
            f"job {job.name}: no point of {catalogue.job} fits on {cluster.gpus} GPUs"
        )
    return checked(
        cluster,
        SharedRun(
            name=job.name,
            first=first,
            deadline_s=job.deadline_s,
            tokens=job.tokens,
            options=kinds,
            transitions=ways,
            start=waits,
            submitted=[each.name for each in kinds].index(job.submitted),
            priority=job.priority,
        ),
    )
