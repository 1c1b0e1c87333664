"""`wattmesh configs validate`: prove with the user's own job that its points train alike.

A launch per question, each from the beginning of the same run: the reference never switched; the
same resumed from its checkpoint; controls of it that add in another order; and for every point one
that goes there from the reference, and back.

Invariant: evidence `validated` is written only after every check of a point was made and held; what
was proven is kept whatever ends the validation.
"""

import getpass
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.launch import JobLauncher, WalkEnd, by_torchrun, run_walk
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.controller.validate import results, rules
from wattmesh.controller.validate.judge import (
    Beside,
    WatchedLaunch,
    point_proof,
    reference_proof,
    unreproduced,
)
from wattmesh.controller.validate.results import PointProof, ValidationProgress
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.equivalence.asked import AskedChecks, ValidationFiles
from wattmesh.reconfig.fingerprint import Fingerprint

Tell = Callable[[str], None]

ORDERS = (2, 3)
"""In how many parts the controls sum every product."""

INTERVALS = 2
"""Checkpoint intervals at the reference before a switch, at the point, and after it."""

LEAST_S = 6.0
"""For how long the reference and its controls train at least. A job takes an order within some two
seconds, so that a fast one is switched later than it was asked to be; the reference must have
trained those steps too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """What validation found.

    Attributes:
        unstamped: why a point's evidence was left as it was, by id.
    """

    catalogue: Catalogue
    progress: ValidationProgress
    unstamped: dict[str, str]
    folder: Path
    wall_s: float


@dataclass(slots=True, kw_only=True)
class Validator:
    """One validation of a job, written into a catalogue's file."""

    job: ProfileJob
    file: Path
    folder: Path
    tell: Tell = lambda _: None
    launcher: JobLauncher = by_torchrun
    largest_bytes: int = 8 << 30
    orders: Sequence[int] = ORDERS
    _progress: ValidationProgress = field(default_factory=partial(ValidationProgress, digest=""))
    _walk: ProfileWalk = field(init=False)

    def run(self, only: Sequence[str] = ()) -> Validation:
        """Prove every point of the job file, or go on where an earlier call was ended.

        Args:
            only: ids of the points to prove; empty: all.

        Raises:
            InputInvalid: the job file and the catalogue contradict each other, or one is wrong.
            ChildFailed: the reference failed, so there is nothing to compare with.
        """
        began_s = time.monotonic()
        job = self.job
        catalogue = catalogue_file.load(self.file)
        rules.check_agreement(job, catalogue)
        for each in only:
            catalogue.point(each)
        job.check_python()
        self._progress = results.load(self.folder, job.digest)
        self.folder.mkdir(parents=True, exist_ok=True)
        beside = self._beside()
        points = [each for each in job.walk if not only or each.id in (*only, job.reference)]
        for number, point in enumerate(points, 1):
            self.tell(f"{number} of {len(points)}: {point.id} ({point.layout})")
            found = self._progress.point(point.id)
            if found is None or not found.proven:
                found = replace(
                    self._prove(point, beside), at=datetime.now(UTC).isoformat(timespec="seconds")
                )
                self._progress = self._progress.with_point(found)
                self._progress.save(self.folder)
            self.tell(_line(found))
            catalogue = self._stamp(catalogue, found)
        return Validation(
            catalogue=catalogue,
            progress=self._progress,
            unstamped=self._unstamped(catalogue),
            folder=self.folder,
            wall_s=time.monotonic() - began_s,
        )

    def _beside(self) -> Beside:
        """Train the reference and its controls, as far as that was not done before."""
        job, reference = self.job, self.job.walk[0]
        asked = AskedChecks(every=job.every, keep_state=True, largest_bytes=self.largest_bytes)
        # Longer than any point's launch, whose switches may come an interval late.
        self._once("reference", asked, [reference], 4 * INTERVALS)
        self._once("resumed", asked, [reference], 0)
        place = WatchedLaunch(self.folder / "reference")
        told = place.facts.fingerprint
        self._progress = replace(self._progress, fingerprint=told)
        controls = []
        self._progress = replace(self._progress, lost={})
        for parts in self.orders:
            name = f"control-{parts}"
            after = INTERVALS * job.every
            asked = AskedChecks(
                every=job.every, reorder_after=after, parts=parts, largest_bytes=self.largest_bytes
            )
            try:
                self._once(name, asked, [reference], 4 * INTERVALS)
                control = WatchedLaunch(self.folder / name)
                others = place.ran.differences(control.ran)
                if others:
                    raise ChildFailed(f"it ran on something else ({'; '.join(others)})")
                controls.append(control)
            except ChildFailed as error:
                lost = {**self._progress.lost, name: str(error)}
                self._progress = replace(self._progress, lost=lost)
                self.tell(f"no noise from {name}: {error}")
        self._progress.save(self.folder)
        beside = Beside(reference=place, controls=tuple(controls))
        named = {each.folder.name: each for each in controls}
        noisy = unreproduced(named, beside, INTERVALS * job.every)
        if noisy:
            self.tell(noisy)
        return beside

    def _once(
        self, name: str, asked: AskedChecks, walk: Sequence[Candidate], intervals: int
    ) -> None:
        """Run one launch, if it has not ended well before.

        Raises:
            ChildFailed: it failed.
        """
        if name in self._progress.finished:
            return
        resumed = name == "resumed"
        place = self.folder / ("reference" if resumed else name)
        if not resumed:
            shutil.rmtree(place, ignore_errors=True)
        ValidationFiles(place).ask(asked)
        self.tell(f"training {name}")
        least_s = LEAST_S if intervals else 0.0
        ended = self._launch(place, walk, max(1, intervals * self.job.every), least_s)
        if ended.trouble is not None:
            raise ChildFailed(ended.sentence)
        self._progress = replace(self._progress, finished=(*self._progress.finished, name))
        self._progress.save(self.folder)

    def _launch(
        self, place: Path, walk: Sequence[Candidate], steps_each: int, least_s: float = 0.0
    ) -> WalkEnd:
        self._walk = ProfileWalk(walk, lambda _: None, steps_each=steps_each, least_s=least_s)
        return run_walk(self.job, self._walk, place, launcher=self.launcher)

    def _prove(self, point: Candidate, beside: Beside) -> PointProof:
        """Make every check of one point."""
        job, reference = self.job, self.job.walk[0]
        if point.id == reference.id:
            return reference_proof(point, beside)
        told = rules.indivisible(job, point)
        if told:
            return _refused(point, told, "leave the point out, or choose another batch")
        if point.layout == reference.layout:
            return replace(reference_proof(point, beside), id=point.id)
        place = self.folder / f"point-{point.id}"
        shutil.rmtree(place, ignore_errors=True)
        asked = AskedChecks(every=job.every, largest_bytes=self.largest_bytes)
        ValidationFiles(place).ask(asked)
        ended = self._launch(place, [reference, point, reference], INTERVALS * job.every)
        if ended.trouble is not None:
            return _refused(point, ended.sentence, "correct that, and validate again")
        if self._walk.refused:
            said = self._walk.refused
            way = "there" if point.id in said else "back from there"
            return _refused(
                point,
                f"the job took the switch {way} back: {next(iter(said.values()))}",
                "look at `build` for this layout, and at the probe",
            )
        return point_proof(job, point, WatchedLaunch(place), beside)

    def _stamp(self, catalogue: Catalogue, found: PointProof) -> Catalogue:
        """Write into the catalogue's file what is proven of one point, or no longer is."""
        if rules.unstampable(catalogue, found.id, self._fingerprint):
            return catalogue
        point = _stamped(catalogue.point(found.id), found, self._fingerprint)
        others = tuple(point if each.id == point.id else each for each in catalogue.points)
        return catalogue_file.save(replace(catalogue, points=others), self.file)

    @property
    def _fingerprint(self) -> Fingerprint:
        return Fingerprint.from_dict(self._progress.fingerprint)

    def _unstamped(self, catalogue: Catalogue) -> dict[str, str]:
        """Say why a point is not validated, by id."""
        told = {}
        for each in catalogue.points:
            found = self._progress.point(each.id)
            if found is None:
                told[each.id] = "it is not in the job file, or was not asked for"
            elif not found.proven:
                told[each.id] = f"{found.because}; {found.next_step}"
        for found in self._progress.points:
            why = rules.unstampable(catalogue, found.id, self._fingerprint)
            if found.proven and why:
                told[found.id] = why
        return told


def _stamped(point: OperatingPoint, found: PointProof, ran: Fingerprint) -> OperatingPoint:
    """Return a point with its proof; one that is not proven is measured, and no more."""
    if not found.proven:
        return replace(
            point,
            equivalence=Equivalence.NONE,
            evidence=Evidence.MEASURED,
            validated_at=None,
            validated_by="",
            tolerance=None,
        )
    return replace(
        point,
        equivalence=Equivalence(found.equivalence),
        evidence=Evidence.VALIDATED,
        fingerprint=(point.fingerprint or Fingerprint()).with_known(ran),
        validated_at=datetime.fromisoformat(found.at),
        validated_by=f"{getpass.getuser()}@{socket.gethostname()}",
        tolerance=found.tolerance,
    )


def _refused(point: Candidate, why: str, next_step: str) -> PointProof:
    return PointProof(
        id=point.id,
        layout=str(point.layout),
        equivalence=Equivalence.NONE.value,
        because=why.rstrip("."),
        next_step=next_step,
    )


def _line(found: PointProof) -> str:
    """Say in a line what was found of one point."""
    if found.proven:
        return f"  {found.id} is validated, {found.equivalence}: {found.because}"
    return f"  {found.id} is not validated: {found.because}"
