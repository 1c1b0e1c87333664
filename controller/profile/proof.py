"""Holds a profiled job's losses against the same training that never switches.

It runs `reference_command` once, after the profile, for as many steps as were trained. That is the
demo's quick proof, by losses alone: `wattmesh configs validate` also compares states and gradients.
Invariant: a point is *validated* only where every one of its losses equals the reference's within
`tolerance`, and says that nothing else was compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wattmesh.controller.process.children import Children
from wattmesh.controller.profile.job import ProfileJob, fill
from wattmesh.controller.profile.launch import job_environment, logged
from wattmesh.controller.profile.profile import Profile, Tell
from wattmesh.reconfig.catalogue import Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.profile_folder import ProfileFolder
from wattmesh.reconfig.step_log import StepRow

REFERENCE = "reference.jsonl"

BY_LOSSES = "the demo, by losses alone"
"""Who validated such a point, as the catalogue says."""

_LIMIT_S = 600.0


def prove(job: ProfileJob, found: Profile, tell: Tell = lambda _: None) -> Profile:
    """Train the reference, and stamp the points whose losses equal it.

    Raises:
        ChildFailed: the reference failed; the message says where its log is.
    """
    rows = steps_of(found.folder)
    steps = max((row.step for row in rows), default=0)
    log = found.folder / REFERENCE
    if job.reference_command and steps:
        tell(f"proving: the same {steps} steps in one process that never switches")
        train_reference(job, steps, log)
    return compared(job, found, rows, {row.step: row.loss for row in logged(log)})


def train_reference(job: ProfileJob, steps: int, log: Path) -> None:
    """Train `steps` steps with `reference_command`; its losses go to `log`."""
    words = fill(job.reference_command, {"steps": str(steps), "losses": str(log.resolve())})
    with Children() as children:
        child = children.start(
            "reference run",
            [job.interpreter, *words],
            log=log.with_suffix(".log"),
            environment=job_environment(job),
            folder=job.directory,
        )
        child.finish(_LIMIT_S)


def steps_of(folder: Path) -> list[StepRow]:
    """Read the steps of all launches of a profile."""
    launches = [ProfileFolder(each) for each in sorted(folder.glob("launch-*"))]
    return [row for each in launches for row in logged(each.steps)]


def compared(
    job: ProfileJob, found: Profile, rows: Sequence[StepRow], reference: Mapping[int, float]
) -> Profile:
    """Stamp every point by its losses; nothing is run."""
    points, unproven = [], {}
    measured = {each.id for each in found.catalogue.points}
    for point in found.catalogue.points:
        mine = [row for row in rows if row.layout == str(point.layout)]
        why = point.layout.other_function(job.walk[0].layout)
        why = why or _why_not(mine, reference, job.tolerance)
        points.append(_stamped(job, point, proven=not why))
        if why:
            unproven[point.id] = why
    for point_id, why in found.progress.refused.items():
        if point_id not in measured:
            unproven[point_id] = why
    return replace(
        found,
        catalogue=replace(found.catalogue, points=tuple(points)),
        unproven=unproven,
    )


def _stamped(job: ProfileJob, point: OperatingPoint, *, proven: bool) -> OperatingPoint:
    if not proven:
        return replace(
            point,
            equivalence=Equivalence.NONE,
            evidence=Evidence.MEASURED,
            validated_by="",
            tolerance=None,
            proven_as="",
        )
    exact = point.id == job.reference
    return replace(
        point,
        equivalence=Equivalence.EXACT if exact else Equivalence.NUMERICAL,
        evidence=Evidence.VALIDATED,
        validated_by=BY_LOSSES,
        tolerance=job.tolerance,
    )


def _why_not(rows: Sequence[StepRow], reference: Mapping[int, float], tolerance: float) -> str:
    """Say why a point's losses prove nothing; "" when they do."""
    if not reference:
        return "there is no reference run to hold its losses against"
    pairs = [(row.loss, reference.get(row.step)) for row in rows]
    if not pairs or any(other is None for _, other in pairs):
        return "the reference run did not train all of its steps"
    apart = [abs(loss - other) / abs(other) for loss, other in pairs if other]
    if all(each <= tolerance for each in apart):
        return ""
    return f"its losses differ from the reference by {max(apart):.1e}, allowed is {tolerance:.0e}"
