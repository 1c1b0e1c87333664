"""`wattmesh configs profile`: run a job through its layouts once, and write what was measured.

It runs one real job, with real switches, under the torchrun launcher, and beside it the same
training in one process that never switches. A layout whose losses all equal that reference's is
*validated* (numerical equivalence); any other is only *measured*, and no policy switches to it.

Invariant: the catalogue says of every number whether it was measured, simulated or assumed; a job
paced by simulated GPUs has simulated speed and power, however real its switches are.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattmesh.controller.process.children import Child, ChildFailed, Children, wait_for
from wattmesh.controller.profile.job import ProfileJob, fill
from wattmesh.controller.profile.launch import job_environment, run_walk
from wattmesh.controller.profile.meter import PowerRecorder
from wattmesh.controller.profile.numbers import (
    LayoutNumbers,
    RecordedWalk,
    idle_power_w,
    measure,
    probe_evidence,
)
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import step_log
from wattmesh.reconfig.catalogue import (
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    SwitchCost,
)
from wattmesh.telemetry.fake_nvml import DEMO_BOARD, FOLDER_VARIABLE, FakeNvml
from wattmesh.telemetry.sources.nvml_source import NvmlSource

SIMULATED = ("tokens_per_s", "power_w", "idle_power_w_per_gpu", "switch.layout_energy_j")
"""Numbers that come from the device model when GPUs are simulated."""

_PATIENCE_S = 300.0
_GPUS_LIMIT_S = 30.0

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What profiling found.

    Attributes:
        measured: one entry per layout that could be measured. `unproven`: why a point may not be
            switched to automatically, by id. `watched`: what the numbers were computed from.
            `wall_s`: how long profiling took.
    """

    catalogue: Catalogue
    measured: tuple[LayoutNumbers, ...]
    unproven: dict[str, str]
    watched: RecordedWalk
    wall_s: float


def profile(job: ProfileJob, folder: Path, tell: Tell = lambda _: None) -> Profile:
    """Run `job` once through all its layouts on simulated GPUs.

    Args:
        job: what to run, from `read_job`.
        folder: takes logs, checkpoints and simulated GPUs; new or empty.
        tell: called with a sentence whenever something happens.

    Raises:
        InputInvalid: the folder is in use, or the job does not begin at its reference.
        WattmeshError: the job failed; the message says where its log is.
    """
    began_s = time.monotonic()
    if folder.exists() and any(folder.iterdir()):
        raise InputInvalid(f"{folder} is not empty; profile into a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    # A paced step is shorter than the update interval of a real board's counter.
    fake = FakeNvml.create(folder / "gpus", job.processes, DEMO_BOARD, update_ms=0)
    walk = ProfileWalk(job.walk, tell, steps_each=job.steps_per_point)
    tell(f"starting {job.processes} processes, and the reference beside them")
    watched = _run(job, folder, walk, fake)
    return judge(job, walk, watched, time.monotonic() - began_s)


def judge(job: ProfileJob, walk: ProfileWalk, watched: RecordedWalk, wall_s: float) -> Profile:
    """Say what each layout costs and which may be switched to; nothing is run.

    Raises:
        InputInvalid: the job's reference could not be measured.
    """
    measured = measure(job, watched)
    unproven = _why_unproven(job, walk, measured)
    return Profile(
        catalogue=_with_probes(
            _catalogue(job, measured, unproven, idle_power_w(watched)), walk.evidence
        ),
        measured=measured,
        unproven=unproven,
        watched=watched,
        wall_s=wall_s,
    )


def _run(job: ProfileJob, folder: Path, walk: ProfileWalk, fake: FakeNvml) -> RecordedWalk:
    """Run the job and its reference to their ends, while NVML is read from outside."""
    with (
        closing(NvmlSource(fake.library)) as source,  # a process has one NVML library at a time
        Children() as children,
    ):
        wait_for(
            lambda: len(source.gpu_uuids()) == job.processes,
            limit_s=_GPUS_LIMIT_S,
            what=f"Finding {job.processes} GPUs through {fake.library}",
        )
        reference = _start_reference(job, folder, children)
        with PowerRecorder(source) as meter:
            ended = run_walk(
                job,
                walk,
                folder,
                environment={FOLDER_VARIABLE: str(folder.resolve() / "gpus")},
                follow=meter.watch_memory,
            )
        if ended.trouble is not None:
            raise ChildFailed(ended.sentence)
        if reference is not None:
            reference.finish(_PATIENCE_S)
    counters = [meter.counters[each.uuid] for each in fake.gpus]
    proof = step_log.read(folder / "reference.jsonl") if reference is not None else ()
    return RecordedWalk(
        rows=ended.own_rows or ended.rows,
        reference={row.step: row.loss for row in proof},
        started=dict(walk.started),
        counters=counters,
        memory=meter.memory,
        began_s=min(each.at_s[0] for each in counters),
    )


def _start_reference(job: ProfileJob, folder: Path, children: Children) -> Child | None:
    """Start the training that never switches, if the job names one."""
    if not job.reference_command:
        return None
    losses = str(folder.resolve() / "reference.jsonl")
    words = fill(job.reference_command, {"steps": str(2 * job.steps), "losses": losses})
    return children.start(
        "reference run",
        ["nice", "-n", "19", job.interpreter, *words],  # must not slow the walk, which is measured
        log=folder / "reference.log",
        environment=job_environment(job),
        folder=job.directory,
    )


def _why_unproven(
    job: ProfileJob, walk: ProfileWalk, measured: tuple[LayoutNumbers, ...]
) -> dict[str, str]:
    """Say of each point why it may not be switched to automatically; empty when all may."""
    found = {each.point.id: each for each in measured}
    reasons = {}
    for point in job.points:
        one = found.get(point.id)
        if point.id in walk.refused:
            reasons[point.id] = f"the job did not reach it: {walk.refused[point.id]}"
        elif one is None:
            reasons[point.id] = "it trained too few steps to be measured"
        elif one.loss_difference is None:
            reasons[point.id] = "there is no reference run to hold its losses against"
        elif not one.loss_difference <= job.tolerance:
            reasons[point.id] = (
                f"its losses differ from the reference by {one.loss_difference:.1e}, allowed is "
                f"{job.tolerance:.0e}"
            )
    return reasons


def _catalogue(
    job: ProfileJob,
    measured: tuple[LayoutNumbers, ...],
    unproven: dict[str, str],
    idle_w: float,
) -> Catalogue:
    """Put the numbers into a catalogue.

    Raises:
        InputInvalid: the reference could not be measured, so nothing can be compared with it.
    """
    if job.reference not in {each.point.id for each in measured}:
        raise InputInvalid(f"the reference {job.reference} could not be measured: {unproven}")
    switches = [each for each in measured if each.switch_s is not None]
    return Catalogue(
        job=job.name,
        tokens_total=job.tokens_total,
        reference=job.reference,
        points=tuple(_point(job, each, each.point.id not in unproven) for each in measured),
        release=job.release,
        idle_power_w_per_gpu=round(idle_w, 2),
        embodied_g_per_gpu_hour=job.embodied_g_per_gpu_hour,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        switch=SwitchCost(
            # With a handful of switches, the largest is the best estimate of the 95 % quantile.
            layout_s=round(max(each.switch_s or 0.0 for each in switches), 3),
            layout_energy_j=round(max(each.switch_energy_j or 0.0 for each in switches), 1),
            source="measured",
        )
        if switches
        else SwitchCost(),
        simulated=SIMULATED,
    )


def _with_probes(catalogue: Catalogue, told: Mapping[str, Mapping[str, Any]]) -> Catalogue:
    points = tuple(
        replace(each, probe=probe_evidence(told.get(each.id, {}))) for each in catalogue.points
    )
    return replace(catalogue, points=points)


def _point(job: ProfileJob, one: LayoutNumbers, proven: bool) -> OperatingPoint:
    equivalence = Equivalence.EXACT if one.point.id == job.reference else Equivalence.NUMERICAL
    sources = {"tokens_per_s": "simulated", "power_w": "simulated"}
    if one.memory_gib is not None:
        sources["memory_gib"] = "measured"
    return OperatingPoint(
        id=one.point.id,
        layout=one.point.layout,
        gpus=one.point.layout.world_size,
        tokens_per_s=round(one.tokens_per_s, 2),
        power_w=round(one.power_w, 2),
        memory_gib=one.memory_gib,
        equivalence=equivalence if proven else Equivalence.NONE,
        evidence=Evidence.VALIDATED if proven else Evidence.MEASURED,
        sources=sources,
    )
