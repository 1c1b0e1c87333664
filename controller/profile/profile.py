"""`wattmesh configs profile`: run a job through its points, and write what was measured.

It runs the real job, with real switches, on whatever power is there, in one launch where nothing
goes wrong. After a failure the next launch goes on with what is left. Nothing is proven here:
`wattmesh.controller.profile.proof` does that, afterwards, from the same steps.

Invariant: the catalogue says of every number whether it was measured, simulated or assumed, and
what was measured survives whatever ends the profile.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from wattmesh import durable
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile import results
from wattmesh.controller.profile.job import ProfileJob
from wattmesh.controller.profile.kept import await_former
from wattmesh.controller.profile.launch import (
    JobLauncher,
    Trouble,
    WalkEnd,
    by_torchrun,
    run_walk,
)
from wattmesh.controller.profile.measured import catalogue_of
from wattmesh.controller.profile.measuring.ranks import RankWatch
from wattmesh.controller.profile.next_points import (
    NextPoints,
    NothingMore,
    PointSearch,
    as_toml,
    with_proposed,
)
from wattmesh.controller.profile.power.meter import PowerMeter
from wattmesh.controller.profile.results import ProfileState
from wattmesh.controller.profile.switch_order import switches_left
from wattmesh.controller.profile.tour import Tour
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import Catalogue

Tell = Callable[[str], None]

PROPOSED = "proposed.toml"
"""In the profile's folder: points that the search proposed and that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What profiling found.

    Attributes:
        catalogue: its points are *measured*. `progress`: what it was made of.
        unproven: why a point may not be switched to automatically, by id; also those without any
            number.
        folder: holds a folder `launch-N` per launch, with its logs.
        wall_s: how long profiling took, this time.
    """

    catalogue: Catalogue
    progress: ProfileState
    unproven: dict[str, str]
    folder: Path
    wall_s: float


def profile(
    job: ProfileJob,
    folder: Path,
    tell: Tell = lambda _: None,
    *,
    launcher: JobLauncher = by_torchrun,
) -> Profile:
    """Measure every point of `job`, or go on where an earlier call was ended.

    Args:
        job: what to run, from `read_job`.
        folder: takes logs, checkpoints and what was measured; new, empty, or of the same job file.
        tell: called with a sentence whenever something happens.
        launcher: starts every rank.

    Raises:
        InputInvalid: the folder is in use, no power can be read, or the job's file and script do
            not agree.
        ChildFailed: the job failed before its reference was measured.
    """
    began_s = time.monotonic()
    job.check_python()
    results.load(folder, job.digest)
    search: NextPoints = NothingMore()
    if job.search is not None:
        search = PointSearch(job.search, tell)
        search.check(job)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with durable.hold(folder):
            folder.mkdir(exist_ok=True)
            progress = results.load(folder, job.digest)
            await_former(folder, tell)
            progress = _measured(job, folder, progress, tell, search=search, launcher=launcher)
    except durable.Held as error:
        raise InputInvalid(
            f"{folder} is in use by the profile of process {error.holder}: wait for it, or name "
            "another folder with --folder"
        ) from error
    except OSError as error:
        raise InputInvalid(
            f"the profile in {folder} cannot go on: {error.strerror or error}; make room, or "
            "give the folder to your user, and call this again: what was measured before is kept"
        ) from error
    job = with_proposed(job, progress)
    return Profile(
        catalogue=catalogue_of(job, progress),
        progress=progress,
        unproven={
            point.id: progress.refused.get(point.id, "nothing has proven it yet")
            for point in job.points
        },
        folder=folder,
        wall_s=time.monotonic() - began_s,
    )


def _measured(
    job: ProfileJob,
    folder: Path,
    progress: ProfileState,
    tell: Tell,
    *,
    search: NextPoints,
    launcher: JobLauncher,
) -> ProfileState:
    """Launch the job until nothing is left to measure.

    Raises:
        InputInvalid, ChildFailed: as `profile`. OSError: the folder cannot be written.
    """
    if progress.points:
        names = ", ".join(each.id for each in progress.points)
        tell(f"going on in {folder}: {names} measured before")
    progress = _to_try_again(progress)
    while True:
        points = with_proposed(job, progress)
        if not _left(points, progress):
            progress = search.propose(points, progress, clocks=True)
            points = with_proposed(job, progress)
        before = switches_left(points, progress)
        if not _left(points, progress) and not before:
            break
        only_switches = not _left(points, progress)
        progress = replace(progress, launches=progress.launches + 1)
        progress.save(folder)
        progress = _launch(points, folder, progress, tell, search=search, launcher=launcher)
        if only_switches and switches_left(points, progress) >= before:
            tell(f"{before} switches could not be measured; the others are kept.")
            break
    _write_proposed(progress, folder, tell)
    return progress


def _to_try_again(progress: ProfileState) -> ProfileState:
    """Forget what failed of the declared points: the user may have seen to it.

    A proposed point at which the job failed stays refused, and others are proposed in its place.
    """
    mine = {each.id for each in progress.proposed}
    return replace(
        progress,
        refused={name: why for name, why in progress.refused.items() if name in mine},
        unfit=tuple(each for each in progress.unfit if each in mine),
        closed=(),
    )


def _write_proposed(progress: ProfileState, folder: Path, tell: Tell) -> None:
    """Write the proposed points that were measured as a job file has them."""
    found = [each for each in progress.proposed if progress.point(each.id) is not None]
    if found:
        durable.write_text(folder / PROPOSED, as_toml(found))
        names = ", ".join(each.id for each in found)
        tell(
            f"{names}: to validate what was proposed, add the points in {folder / PROPOSED} to the "
            "job file"
        )


def _left(job: ProfileJob, progress: ProfileState) -> bool:
    """Tell whether a point has neither numbers nor a reason why not."""
    known = {each.id for each in progress.points}.union(progress.refused)
    return any(each.id not in known for each in job.points)


def _launch(
    job: ProfileJob,
    folder: Path,
    progress: ProfileState,
    tell: Tell,
    *,
    search: NextPoints,
    launcher: JobLauncher,
) -> ProfileState:
    """Run one launch and return all that is known after it.

    Raises:
        InputInvalid, ChildFailed: another launch would not get further.
    """
    place = folder / f"launch-{progress.launches}"
    place.mkdir(parents=True)
    with PowerMeter(job, place) as meter, RankWatch(meter.fakes) as ranks:
        _check_machine(folder, progress, meter)
        progress = _with_surroundings(job, progress, meter)
        progress = _without_clocks(job, progress, meter.clockless, tell)
        tell(f"power: {meter.words}; starting {job.processes} processes")
        walk = ProfileWalk(job.walk[:1], tell)
        tour = Tour(
            job,
            walk=walk,
            meter=meter,
            ranks=ranks,
            folder=folder,
            progress=progress,
            search=search,
            tell=tell,
        )
        ended = run_walk(
            job,
            walk,
            place,
            environment=meter.environment,
            follow=tour.follow,
            launcher=launcher,
        )
    job = with_proposed(job, tour.progress)
    if ended.trouble is None:
        return _after_end(job, tour)
    return _after_trouble(job, tour, ended, tell, folder)


def _check_machine(folder: Path, progress: ProfileState, meter: PowerMeter) -> None:
    """Refuse to add to what was measured on other GPUs or under another driver.

    Raises:
        InputInvalid: the driver says something else of the GPUs than it did then.
    """
    found = meter.drivers
    now = (found.models, found.vbios, found.driver)
    then = (progress.models, progress.vbios, progress.driver)
    if progress.points and now != then:
        raise InputInvalid(
            f"{folder} was measured on {_machine(*then)}, here is {_machine(*now)}: go on where it "
            "was begun, or name a new folder"
        )


def _machine(models: str, vbios: str, driver: str) -> str:
    return f"{models or 'no GPU that is named'} (VBIOS {vbios or '?'}, driver {driver or '?'})"


def _with_surroundings(job: ProfileJob, progress: ProfileState, meter: PowerMeter) -> ProfileState:
    """Read the devices while they idle, and what the driver says of them."""
    gpu_w, host_w = progress.idle_gpu_w, progress.idle_host_w
    if gpu_w is None and host_w is None:
        gpu_w, host_w = meter.idle(job.idle_s)
    if meter.gpus and len(meter.gpus) < job.processes:
        raise InputInvalid(
            f"{len(meter.gpus)} GPUs are read here, the job has {job.processes} processes; run it "
            "where all of them are, or correct job.processes"
        )
    return replace(
        progress,
        idle_gpu_w=gpu_w,
        idle_host_w=host_w,
        scope=str(meter.scope),
        models=meter.drivers.models,
        vbios=meter.drivers.vbios,
        driver=meter.drivers.driver,
    )


def _without_clocks(job: ProfileJob, progress: ProfileState, why: str, tell: Tell) -> ProfileState:
    """Refuse the points whose clock nothing here can lock, before the job is started.

    Raises:
        InputInvalid: the reference is one of them.
    """
    if not why:
        return progress
    why = (
        f"its clock cannot be set: {why}; start the actuator in mode enforce (docs/safety.md), or "
        "leave clock_mhz out"
    )
    refused = {}
    for each in job.points:
        if each.clock_mhz is None or progress.point(each.id) is not None:
            continue
        if each.id == job.reference:
            raise InputInvalid(f"the reference {each.id} cannot be measured: {why}")
        tell(f"{each.id} ({each.layout}) has no numbers: {why}.")
        refused[each.id] = why
    return replace(progress, refused={**progress.refused, **refused})


def _after_end(job: ProfileJob, tour: Tour) -> ProfileState:
    """Check that the launch that ended well has got somewhere."""
    progress = tour.progress
    if progress.point(job.reference) is None:
        raise InputInvalid(
            f"the reference {job.reference} could not be measured: "
            f"{progress.refused.get(job.reference, 'the job was ended before')}."
        )
    return progress


def _after_trouble(
    job: ProfileJob, tour: Tour, ended: WalkEnd, tell: Tell, folder: Path
) -> ProfileState:
    """Keep what was measured, and count the failure against the point where it happened.

    Raises:
        InputInvalid, ChildFailed: the failure is the job's, not a point's.
    """
    progress, blamed = tour.progress, tour.blamed
    kept = ", ".join(each.id for each in progress.points)
    more = f" {kept} is kept in {folder}." if kept else ""
    if ended.trouble in (Trouble.NONSENSE, Trouble.TURNED_AWAY):
        raise InputInvalid(ended.sentence + more)
    if blamed.id in progress.refused or progress.point(blamed.id) is not None:
        if _left(job, progress):
            raise ChildFailed(f"{ended.sentence}{more}")
        tell(f"{ended.sentence} Every point had been measured before.")
        return progress
    if blamed.id == job.reference:
        raise ChildFailed(f"{ended.sentence}{more}")
    tell(f"{blamed.id} ({blamed.layout}) has no numbers: {ended.sentence}")
    progress = progress.with_refusal(
        blamed.id, _inner(ended.sentence), unfit=ended.trouble is not Trouble.OUT_OF_MEMORY
    )
    progress.save(folder)
    return progress


def _inner(sentence: str) -> str:
    """Return a sentence as the second half of another one."""
    return sentence.rstrip(".")
