"""Judges one launch beside the reference's and the controls': files in, verdicts out.

It imports numpy, so the command line loads it only to validate. Invariant: an answer that a launch
did not give is a check that was not made, and counts against the point.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.launch import logged
from wattmesh.controller.validate.results import CheckRow, PointProof
from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.asked import JobFacts, RoundTripRow, ValidationFiles
from wattmesh.reconfig.equivalence.own_job import (
    NOISY,
    classify_own_job,
    close_losses,
    limit,
    limit_along,
    memory,
)
from wattmesh.reconfig.equivalence.shelf import read_whole
from wattmesh.reconfig.equivalence.verdict import Verdict
from wattmesh.reconfig.equivalence.whole import (
    ALONG_WEIGHTS,
    LENGTH,
    PARAMETERS,
    gradient_gap,
    step_gaps,
)
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.profile_folder import ProfileFolder

DROPOUT = (
    "its steps draw random numbers{layers}, so that samples meet other masks in another layout. "
    "Key masks by position, as `wattmesh.integrations.pytorch.dropout` does, for the class "
    "numerical; or show with --seeds that it is alike on the mean (V8, docs/convergence.md), and "
    'allow "statistical" in policy.equivalence'
)

MADE = {
    PARAMETERS: "moved the parameters",
    LENGTH: "moved the parameters, along the reference's move,",
    ALONG_WEIGHTS: "moved the parameters, along themselves,",
}
ALONG = frozenset({LENGTH, ALONG_WEIGHTS})

UNSTEPPED = (
    "; the reference applied no gradient in step {step}, as where a loss scaler leaves a step out: "
    "validate with another job.every"
)


@dataclass(frozen=True, slots=True)
class WatchedLaunch:
    """What one launch left in its folder."""

    folder: Path

    @property
    def files(self) -> ValidationFiles:
        """Its answers."""
        return ValidationFiles(self.folder)

    @property
    def facts(self) -> JobFacts:
        """What it found out; all unknown where it wrote nothing."""
        return self.files.read_facts() or JobFacts()

    @property
    def ran(self) -> Fingerprint:
        """What it ran on, as far as it says."""
        return Fingerprint.from_dict(self.facts.fingerprint)

    @property
    def losses(self) -> dict[int, float]:
        """Its losses by step; nan where the job told none, which compares with nothing."""
        return {row.step: row.loss for row in logged(ProfileFolder(self.folder).steps)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What every point is compared with: the reference never switched, and its controls."""

    reference: WatchedLaunch
    controls: tuple[WatchedLaunch, ...]

    @property
    def dtype(self) -> str:
        """The coarsest dtype of the job's products."""
        seen = [each.facts.products for each in self.controls if each.facts.products]
        return seen[0] if seen else (self.reference.facts.parameters or ["float32"])[0]

    def noise(self, step: int) -> float | None:
        """Return how far the controls' gradient of a step is from the reference's."""
        found = [gap for each in self.controls if math.isfinite(gap := self.gap(each, step)[0])]
        return max(found, default=None)

    def gap(self, launch: WatchedLaunch, step: int) -> tuple[float, str]:
        """Return how far a launch's gradient of a step is from the reference's."""
        mine, other = launch.files.gradient(step), self.reference.files.gradient(step)
        if not other.exists():
            return math.inf, UNSTEPPED.format(step=step)
        if not mine.exists():
            return math.inf, f"; step {step} was not caught in both"
        return gradient_gap(read_whole(mine).arrays, read_whole(other).arrays)

    def step_gaps(self, launch: WatchedLaunch, step: int) -> dict[str, float]:
        """Return how far what a launch's step made is from the reference's; empty: not caught."""
        mine, other = launch.files.stepped(step), self.reference.files.stepped(step)
        if not (mine.exists() and other.exists()):
            return {}
        return step_gaps(read_whole(mine), read_whole(other))


def reference_proof(point: Candidate, beside: Beside) -> PointProof:
    """Judge the reference itself: its state must come back from a checkpoint bit for bit."""
    rows = [row for row in beside.reference.files.read_round_trips() if row.how == "load"]
    verdicts = [_round_trip(row) for row in rows[-1:]]
    return _proof(point, verdicts, beside.reference.facts, same_layout=True)


def point_proof(
    job: ProfileJob, point: Candidate, launch: WatchedLaunch, beside: Beside
) -> PointProof:
    """Judge a launch that went from the reference to `point` and back."""
    others = beside.reference.ran.differences(launch.ran)
    if others:
        return PointProof(
            id=point.id,
            layout=str(point.layout),
            equivalence=Equivalence.NONE.value,
            because=f"the reference was trained with something else ({'; '.join(others)})",
            next_step="name a new --folder, so that the reference is trained anew as well",
        )
    rows = [row for row in launch.files.read_round_trips() if row.how == "switch"]
    verdicts = [_round_trip(row) for row in rows]
    if len(rows) < 2:
        verdicts.append(
            _unmade("V1", "the state around the switch there and back was not gathered")
        )
    arrived = [row.step for row in rows]
    for step in arrived:
        verdicts.append(_gradient(launch, beside, step + 1))
        verdicts.append(_step(launch, beside, step + 1))
    # The last step at the point as well: what a switch harms later than in its first step.
    verdicts += [_step(launch, beside, step) for step in arrived[1:]]
    losses, start = launch.losses, min(arrived, default=0)
    after = {step: loss for step, loss in losses.items() if step > start}
    verdicts.append(
        close_losses(
            after, beside.reference.losses, [each.losses for each in beside.controls], beside.dtype
        )
    )
    peak = max(
        (
            each.peak_bytes
            for each in ProfileFolder(launch.folder).device_memory()
            if each.layout == str(point.layout)
        ),
        default=None,
    )
    room = memory(peak, launch.facts.device_bytes)
    verdicts += [room] if room is not None else []
    return _proof(point, verdicts, launch.facts, same_layout=point.layout == job.walk[0].layout)


def _gradient(launch: WatchedLaunch, beside: Beside, step: int) -> Verdict:
    gap, told = beside.gap(launch, step)
    noise = beside.noise(step)
    beside_it = f"{noise:.1e} in the control" if noise is not None else "no control"
    return Verdict(
        check="V7",
        name=f"gradient of step {step}",
        measured=gap,
        limit=limit(noise, beside.dtype),
        sentence=(
            f"the gradient of step {step} differs by {gap:.1e} of its norm from the reference's"
            f"{told} ({beside_it})"
        ),
    )


def _step(launch: WatchedLaunch, beside: Beside, step: int) -> Verdict:
    """V12 of one step: the quantity that is furthest from the reference's, in limits."""
    gaps = beside.step_gaps(launch, step)
    if not gaps:
        return _unmade("V12", f"what step {step} changed was not caught in both")
    controls = [beside.step_gaps(each, step) for each in beside.controls]
    judged = []
    for what, gap in gaps.items():
        noise = max((each[what] for each in controls if what in each), default=None)
        allowed = limit(noise, beside.dtype, of_move=what == PARAMETERS)
        if what in ALONG:
            whole = max((each[PARAMETERS] for each in controls if PARAMETERS in each), default=None)
            allowed = limit_along(noise, limit(whole, beside.dtype, of_move=True), beside.dtype)
        judged.append((gap / allowed, what, gap, allowed, noise))
    _, what, gap, allowed, noise = max(judged, key=lambda each: each[:2])
    beside_it = f"{noise:.1e} in the control" if noise is not None else "no control"
    made = MADE.get(what, f"left {what}")
    return Verdict(
        check="V12",
        name=f"{what} after step {step}",
        measured=gap,
        limit=allowed,
        sentence=(
            f"step {step} {made} {gap:.1e} of its norm apart from the reference's ({beside_it})"
        ),
    )


def _round_trip(row: RoundTripRow) -> Verdict:
    return Verdict(
        check="V1",
        name=f"tensors changed by the {row.how} at step {row.step}",
        measured=row.measured,
        limit=0,
        sentence=row.sentence,
    )


def _unmade(check: str, why: str) -> Verdict:
    return Verdict(check=check, name="not checked", measured=math.inf, limit=0, sentence=why)


def _proof(
    point: Candidate, verdicts: Sequence[Verdict], facts: JobFacts, *, same_layout: bool
) -> PointProof:
    found = classify_own_job(verdicts, same_layout=same_layout)
    failed = {each.check for each in verdicts if not each.ok}
    because, next_step = found.because, ""
    if facts.too_large_bytes:
        because = (
            f"its state of about {facts.too_large_bytes / 2**30:.1f} GiB is above what rank 0 may "
            "gather"
        )
        next_step = "raise --largest-state-gib, or validate a model with fewer layers"
    elif found.equivalence is Equivalence.NONE:
        next_step = _next_step(failed, facts)
    losses = [each for each in verdicts if each.check == "V2"]
    return PointProof(
        id=point.id,
        layout=str(point.layout),
        equivalence=found.equivalence.value,
        because=because,
        checks=tuple(row_of(each) for each in verdicts),
        next_step=next_step,
        tolerance=losses[0].limit if losses else None,
        random=bool(facts.draws and failed and failed <= NOISY),
    )


def _next_step(failed: set[str], facts: JobFacts) -> str:
    """Say what to do about a point that is not proven, by what failed."""
    if "V1" in failed:
        return "the state does not survive the switch: look at `build` and the rules it declares"
    if facts.draws and failed & NOISY:
        layers = f" (dropout in {', '.join(facts.dropout)})" if facts.dropout else ""
        return DROPOUT.format(layers=layers)
    if failed & {"V7", "V12"} == {"V12"}:
        return (
            "the gradient is the reference's, and the step made of it is not: look at what your "
            "script does to the optimizer, its settings or the clipping in this layout"
        )
    if failed & NOISY:
        return (
            "the layout computes something else than the reference from the same state: look for "
            "the breaker in docs/convergence.md, first at the batch of a rank and the loss's mean"
        )
    return "see docs/convergence.md for what each check needs"


def row_of(verdict: Verdict) -> CheckRow:
    """Return a verdict as it is kept."""
    return CheckRow(
        check=verdict.check,
        name=verdict.name,
        measured=verdict.measured,
        limit=verdict.limit,
        ok=verdict.ok,
        sentence=verdict.sentence,
    )


def unreproduced(launches: Mapping[str, WatchedLaunch], beside: Beside, until: int) -> str:
    """Say which launch did not train the same first steps as the reference; "" for none."""
    reference = beside.reference.losses
    for name, each in launches.items():
        mine = each.losses
        apart = [
            step
            for step in range(1, until + 1)
            if step in mine and step in reference and repr(mine[step]) != repr(reference[step])
        ]
        if apart:
            return (
                f"two launches of the same layout differ from step {apart[0]} on ({name}), so the "
                "noise that points are held to includes this: seed the job, or use deterministic "
                "kernels, to compare more sharply"
            )
    return ""
