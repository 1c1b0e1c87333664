"""What a profiled walk says about each layout. Pure: readings in, numbers out.

The gap between two step ends is a plain step, a boundary (step + checkpoint) or a switch. Steps and
boundaries are measured separately, then combined for the job's own checkpoint interval, because
profiling saves more often than the job does.

A job paced by simulated devices follows their timetable: a step that this machine ended late is
taken to have ended when it was due, because the steps after it catch up.

Invariant: a layout with too few steps to measure has no numbers at all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from sys import float_info
from typing import Any

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.meter import Counter, MemoryReading
from wattmesh.reconfig.catalogue import ProbeEvidence
from wattmesh.reconfig.step_log import StepRow

Gap = tuple[StepRow, StepRow]

_GIB = 1 << 30
_REAL_OVERRUN_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedWalk:
    """Everything that was recorded of one walk.

    Attributes:
        rows: the step log. `reference`: losses by step of the run that never switched.
        started: the step after which each point trained, by id.
        counters: energy of each device, in the order of ranks.
        began_s: when the devices were first watched, CLOCK_MONOTONIC.
    """

    rows: Sequence[StepRow]
    reference: Mapping[int, float]
    started: Mapping[str, int]
    counters: Sequence[Counter]
    memory: Sequence[MemoryReading]
    began_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNumbers:
    """One layout's numbers.

    Attributes:
        step_s: duration of a plain step. `boundary_s`: what a checkpoint adds to it.
        tokens_per_s, power_w: at the job's own checkpoint interval; power of the GPUs in use.
        switch_s, switch_energy_j: of the switch into this layout, checkpoint included, energy of
            every GPU of the job; None for the first layout.
        loss_difference: largest relative difference to the reference; None without one.
        overruns: how many of the `steps` took longer than the simulated device paces them.
    """

    point: Candidate
    step_s: float
    boundary_s: float
    tokens_per_s: float
    power_w: float
    memory_gib: float | None
    switch_s: float | None
    switch_energy_j: float | None
    loss_difference: float | None
    overruns: int
    steps: int


def measure(job: ProfileJob, watched: RecordedWalk) -> tuple[LayoutNumbers, ...]:
    """Compute the numbers of every layout that trained long enough.

    The time that a checkpoint adds is the median over all layouts: each writes the same bytes, and
    a few samples of disk time differ more than layouts do.
    """
    starts = sorted((step, point_id) for point_id, step in watched.started.items())
    ends = [step for step, _ in starts[1:]] + [job.steps + 1]
    segments = []
    for (start, point_id), end in zip(starts, ends, strict=True):
        point = next(each for each in job.points if each.id == point_id)
        rows = [row for row in watched.rows if start <= row.step <= end]
        segment = _segment(job, point, rows, start)
        if segment is not None:
            segments.append(segment)
    if not segments:
        return ()
    boundary_s = median(each for segment in segments for each in segment.added_s)
    return tuple(_measure_one(job, watched, each, max(0.0, boundary_s)) for each in segments)


def idle_power_w(watched: RecordedWalk) -> float:
    """Give a device's mean idle power in W, from before the first step, when none had work."""
    first = min(watched.rows, key=lambda row: row.step)
    end_s = first.monotonic_s - first.elapsed_s
    seconds = max(1e-9, end_s - watched.began_s)
    return fmean(each.joules(watched.began_s, end_s) for each in watched.counters) / seconds


def probe_evidence(told: Mapping[str, Any]) -> ProbeEvidence | None:
    """Give how the probe moved at a switch; None where the job reported none, or no numbers."""
    names = ("probe_before", "probe_after", "probe_allowed")
    if not all(_is_finite(told.get(name)) for name in names):
        return None
    before, after, allowed = (float(told[name]) for name in names)
    measured = _is_finite(told.get("probe_noise"))
    return ProbeEvidence(
        moved=abs(after - before) / max(abs(before), float_info.min),
        allowed=allowed,
        noise=float(told["probe_noise"]) if measured else None,
        orders=int(told.get("probe_orders", 0)) if measured else 0,
        computed_in=str(told.get("computed_in", "")) if measured else "",
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    """One layout's steps, and the gaps between them by kind."""

    point: Candidate
    rows: Sequence[StepRow]
    plain: Sequence[Gap]
    boundaries: Sequence[Gap]
    entered: Gap | None
    step_s: float

    @property
    def added_s(self) -> list[float]:
        """Seconds that each boundary took beyond a plain step."""
        return [_seconds(gap) - self.step_s for gap in self.boundaries]


def _segment(
    job: ProfileJob, point: Candidate, rows: Sequence[StepRow], start: int
) -> _Segment | None:
    """Sort a layout's gaps by kind; `rows` begin with the step it began after, if there is one."""
    gaps = list(pairwise(rows))
    steady = [gap for gap in gaps if gap[0].step > start]
    plain = [gap for gap in steady if gap[0].step % job.every]
    boundaries = [gap for gap in steady if gap[0].step % job.every == 0]
    if not plain or not boundaries:
        return None
    return _Segment(
        point=point,
        rows=[row for row in rows if row.step > start],
        plain=plain,
        boundaries=boundaries,
        entered=next((gap for gap in gaps if gap[0].step == start), None),
        step_s=median(_seconds(gap) for gap in plain),
    )


def _measure_one(
    job: ProfileJob, watched: RecordedWalk, segment: _Segment, boundary_s: float
) -> LayoutNumbers:
    used = watched.counters[: segment.point.layout.world_size]
    step_s, entered = segment.step_s, segment.entered
    step_w = _mean_power_w(used, segment.plain)
    added_j = sum(_joules(used, gap) - step_w * step_s for gap in segment.boundaries)
    # Where checkpoints add hardly any time, joules divided by seconds could be any number.
    boundary_w = min(step_w, max(0.0, added_j) / max(1e-9, sum(segment.added_s)))
    interval_s = job.boundary_every * step_s + boundary_s
    interval_j = job.boundary_every * step_s * step_w + boundary_s * boundary_w
    return LayoutNumbers(
        point=segment.point,
        step_s=step_s,
        boundary_s=boundary_s,
        tokens_per_s=job.boundary_every * job.tokens_per_step / interval_s,
        power_w=interval_j / interval_s,
        memory_gib=_memory_gib(watched, segment),
        switch_s=max(0.0, _seconds(entered) - step_s) if entered else None,
        switch_energy_j=_switch_energy_j(watched, entered, step_s),
        loss_difference=_loss_difference(watched, segment.rows),
        overruns=sum(row.overrun_s > _REAL_OVERRUN_S for row in segment.rows),
        steps=len(segment.rows),
    )


def _mean_power_w(counters: Sequence[Counter], gaps: Sequence[Gap]) -> float:
    seconds = sum(after.monotonic_s - before.monotonic_s for before, after in gaps)
    return sum(_joules(counters, gap) for gap in gaps) / seconds


def _seconds(gap: Gap) -> float:
    """Give the seconds between two step ends, less their overruns of the pace."""
    before, after = (row.monotonic_s - row.overrun_s for row in gap)
    return after - before


def _joules(counters: Sequence[Counter], gap: Gap) -> float:
    """Give the energy of some devices between two step ends."""
    return sum(each.joules(gap[0].monotonic_s, gap[1].monotonic_s) for each in counters)


def _switch_energy_j(watched: RecordedWalk, entered: Gap | None, step_s: float) -> float | None:
    """Give what all devices drew from the last step of one layout to the first of the next."""
    if entered is None:
        return None
    start_s, end_s = entered[0].monotonic_s, entered[1].monotonic_s - step_s
    return sum(each.joules(start_s, max(start_s, end_s)) for each in watched.counters)


def _loss_difference(watched: RecordedWalk, rows: Sequence[StepRow]) -> float | None:
    """Give the largest relative loss difference to the reference; None where steps are missing."""
    pairs = [(row.loss, watched.reference.get(row.step)) for row in rows]
    if not pairs or any(other is None for _, other in pairs):
        return None
    return max(abs(loss - other) / abs(other) for loss, other in pairs if other is not None)


def _memory_gib(watched: RecordedWalk, segment: _Segment) -> float | None:
    """Give the largest resident memory, in GiB, of a rank that trained in this layout."""
    rows, ranks = segment.rows, segment.point.layout.world_size
    start_s, end_s = rows[0].monotonic_s - rows[0].elapsed_s, rows[-1].monotonic_s
    found = [
        each.resident_bytes
        for each in watched.memory
        if start_s <= each.at_s <= end_s and each.rank < ranks
    ]
    return round(max(found) / _GIB, 3) if found else None
