"""`wattmesh configs validate`: prove with the user's own job that its points train alike.

A launch per question, each from the beginning of the same run: the reference never switched; the
same resumed from its checkpoint; controls of it that add in another order; for every point one that
goes there from the reference, and back; and one that makes every switch between two points. A point
that draws random numbers may be compared over seeds (`seed_trials.py`).

Invariant: evidence `validated` is written only after every check of a point was made and held; what
was proven is kept whatever ends the validation.
"""

import getpass
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from wattmesh import durable
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.kept import await_former
from wattmesh.controller.profile.launch import JobLauncher, by_torchrun
from wattmesh.controller.validate import pairs, results, rules, seed_trials
from wattmesh.controller.validate.judge import (
    Beside,
    WatchedLaunch,
    point_proof,
    reference_proof,
    unreproduced,
)
from wattmesh.controller.validate.launches import INTERVALS, Tell, ValidationLaunches
from wattmesh.controller.validate.results import PointProof, ValidationProgress
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, Evidence, OperatingPoint
from wattmesh.reconfig.equivalence.checks.seeds import MOST_SEEDS
from wattmesh.reconfig.equivalence.checks.trials import FEWEST_SEEDS
from wattmesh.reconfig.fingerprint import Fingerprint

ORDERS = (2, 3)
"""In how many parts the controls sum every product."""

LEAST_S = 6.0
"""For how long the reference and its controls train at least. A job takes an order within some two
seconds, so that a fast one is switched later than it was asked to be; the reference must have
trained those steps too."""

UNSAVED_SCHEDULE = (
    "a schedule sets the learning rate, and State.extra has none: unless your script sets its step "
    "from `position`, it starts anew at every switch, which these few steps may not show"
)


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
    """One validation of a job, written into a catalogue's file.

    Attributes:
        seeds: over how many random streams a point that draws random numbers is compared; 0: it is
            not.
    """

    job: ProfileJob
    file: Path
    folder: Path
    tell: Tell = lambda _: None
    launcher: JobLauncher = by_torchrun
    largest_bytes: int = 8 << 30
    orders: Sequence[int] = ORDERS
    seeds: int = 0
    _launches: ValidationLaunches = field(init=False)
    _catalogue: Catalogue = field(init=False)

    def run(self, only: Sequence[str] = ()) -> Validation:
        """Prove every point of the job file, or go on where an earlier call was ended.

        Args:
            only: ids of the points to prove; empty: all.

        Raises:
            InputInvalid: the job file and the catalogue contradict each other, one is wrong, or
                the folder is in use or cannot be written.
            ChildFailed: the reference failed, so there is nothing to compare with.
        """
        began_s = time.monotonic()
        self._check(only)
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with durable.hold(self.folder):
                self.folder.mkdir(exist_ok=True)
                await_former(self.folder, self.tell)
                told = self._prove_all(only)
        except durable.Held as error:
            raise InputInvalid(
                f"{self.folder} is in use by the validation of process {error.holder}: wait for "
                "it, or name another folder with --folder"
            ) from error
        except OSError as error:
            raise InputInvalid(
                f"the validation in {self.folder} cannot go on: {error.strerror or error}; make "
                "room, or give the folder to your user, and call this again: what was proven "
                "before is kept"
            ) from error
        return Validation(
            catalogue=self._catalogue,
            progress=self._progress,
            unstamped={**self._unstamped(), **told},
            folder=self.folder,
            wall_s=time.monotonic() - began_s,
        )

    def _prove_all(self, only: Sequence[str]) -> dict[str, str]:
        """Prove what is asked for; return why points that train alike are not validated, by id."""
        job = self.job
        self._begin()
        beside = self._beside()
        points = [each for each in job.walk if not only or each.id in (*only, job.reference)]
        for number, point in enumerate(points, 1):
            self.tell(f"{number} of {len(points)}: {point.id} ({point.layout})")
            found = self._progress.point(point.id)
            if found is None or not found.proven:
                found = replace(
                    self._proven(point, beside), at=datetime.now(UTC).isoformat(timespec="seconds")
                )
                self._keep(self._progress.with_point(found))
            self.tell(_line(found))
            # While a switch between two proven points is not made, nothing more is stamped.
            if not found.proven or not self._fallen():
                self._stamp(found)
        return self._pair_off([each.id for each in points])

    def _check(self, only: Sequence[str]) -> None:
        """Read what there is, and start nothing where it is wrong."""
        job = self.job
        self._catalogue = catalogue_file.load(self.file)
        rules.check_agreement(job, self._catalogue)
        for each in only:
            self._catalogue.point(each)
        if self.seeds and not FEWEST_SEEDS <= self.seeds <= MOST_SEEDS:
            raise InputInvalid(
                f"{self.seeds} seeds prove nothing or take too long: give 0 for none, or "
                f"{FEWEST_SEEDS} to {MOST_SEEDS}"
            )
        job.check_python()
        results.load(self.folder, job.digest)

    def _begin(self) -> None:
        """Take up what an earlier call left, and make the folder one that a later call takes up."""
        known = results.load(self.folder, self.job.digest)
        self._launches = ValidationLaunches(
            job=self.job,
            folder=self.folder,
            # A switch that failed is made anew, as a point that failed is.
            progress=replace(known, pairs=tuple(each for each in known.pairs if each.ok)),
            launcher=self.launcher,
            tell=self.tell,
            largest_bytes=self.largest_bytes,
        )
        self._progress.save(self.folder)

    @property
    def _progress(self) -> ValidationProgress:
        return self._launches.progress

    def _keep(self, progress: ValidationProgress) -> None:
        self._launches.progress = progress
        progress.save(self.folder)

    def _beside(self) -> Beside:
        """Train the reference and its controls, as far as that was not done before."""
        job, launches, reference = self.job, self._launches, self.job.walk[0]
        # Longer than any point's launch, whose switches may come an interval late.
        steps = 4 * INTERVALS * job.every
        asked = launches.asked(keep_state=True)
        launches.once("reference", asked, [reference], steps, least_s=LEAST_S)
        launches.once("resumed", asked, [reference], 1, into="reference")
        place = launches.place("reference")
        launches.progress = replace(self._progress, fingerprint=place.facts.fingerprint, lost={})
        if place.facts.unsaved_schedule:
            self.tell(UNSAVED_SCHEDULE)
        controls = []
        for parts in self.orders:
            name = f"control-{parts}"
            asked = launches.asked(reorder_after=INTERVALS * job.every, parts=parts)
            try:
                launches.once(name, asked, [reference], steps, least_s=LEAST_S)
                control = launches.place(name)
                others = place.ran.differences(control.ran)
                if others:
                    raise ChildFailed(f"it ran on something else ({'; '.join(others)})")
                controls.append(control)
            except ChildFailed as error:
                lost = {**self._progress.lost, name: str(error)}
                launches.progress = replace(self._progress, lost=lost)
                self.tell(f"no noise from {name}: {error}")
        self._progress.save(self.folder)
        beside = Beside(reference=place, controls=tuple(controls))
        named = {each.folder.name: each for each in controls}
        noisy = unreproduced(named, beside, INTERVALS * job.every)
        if noisy:
            self.tell(noisy)
        return beside

    def _proven(self, point: Candidate, beside: Beside) -> PointProof:
        """Make every check of one point, over seeds where that is asked for and could help."""
        found = self._prove(point, beside)
        if not found.random or point.layout == self.job.walk[0].layout:
            return found
        if self.seeds:
            return seed_trials.SeedTrials(launches=self._launches, seeds=self.seeds).prove(
                point, found
            )
        cost = seed_trials.plan(self._launches, [point.id], seed_trials.SUGGESTED)
        return replace(
            found, next_step=f"{found.next_step} (--seeds {seed_trials.SUGGESTED}: {cost})"
        )

    def _prove(self, point: Candidate, beside: Beside) -> PointProof:
        """Make every check of one point but those over seeds."""
        job, reference = self.job, self.job.walk[0]
        if point.id == reference.id:
            return reference_proof(point, beside)
        told, next_step = rules.refused(job, point)
        if told:
            return _refused(point, told, next_step)
        if point.layout == reference.layout:
            return replace(reference_proof(point, beside), id=point.id)
        launches, place = self._launches, self.folder / f"point-{point.id}"
        walk = [reference, point, reference]
        ended = launches.run(place, launches.asked(), walk, INTERVALS * job.every)
        if ended.trouble is not None:
            return _refused(point, ended.sentence, "correct that, and validate again")
        if launches.walk.refused:
            said = launches.walk.refused
            way = "there" if point.id in said else "back from there"
            return _refused(
                point,
                f"the job took the switch {way} back: {next(iter(said.values()))}",
                "look at `build` for this layout, and at the probe",
            )
        return point_proof(job, point, WatchedLaunch(place), beside)

    def _fallen(self) -> dict[str, str]:
        """Say which proven points may not be validated beside the others, and why."""
        job = self.job
        proven = {each.id for each in self._progress.points if each.proven}
        apart = pairs.Apart.of(job.walk, proven)
        _, told = pairs.standing(apart.ids, self._progress.pairs)
        # Points of one layout stand or fall together.
        layouts = {each.id: each.layout for each in job.points}
        fallen = {layouts[each]: why for each, why in told.items()}
        return {each: fallen[layouts[each]] for each in proven if layouts.get(each) in fallen}

    def _pair_off(self, asked: Sequence[str]) -> dict[str, str]:
        """Make every switch between proven points; stamp those that stand, say why not others."""
        proven = {each.id for each in self._progress.points if each.proven}
        pairs.make_pairs(self._launches, pairs.Apart.of(self.job.walk, proven))
        told = self._fallen()
        for found in self._progress.points:
            if found.proven and (found.id in asked or found.id in told):
                self._stamp(found, stands=found.id not in told)
        return {
            each: f"it trains alike, but {why.rstrip('.')}. Only points between which every switch "
            "holds are validated; correct that, or leave one of them out"
            for each, why in told.items()
        }

    def _stamp(self, found: PointProof, *, stands: bool = True) -> None:
        """Write into the catalogue's file what is proven of one point, or no longer is.

        The file is read anew: another validation may have proven other points of it meanwhile.
        """
        self._catalogue = catalogue_file.load(self.file)
        rules.check_agreement(self.job, self._catalogue)
        if rules.unstampable(self._catalogue, found.id, self._fingerprint):
            return
        before = self._catalogue.point(found.id)
        point = _stamped(before, found, self._fingerprint, proven=found.proven and stands)
        if point == before:
            return
        others = tuple(point if each.id == point.id else each for each in self._catalogue.points)
        self._catalogue = catalogue_file.save(replace(self._catalogue, points=others), self.file)

    @property
    def _fingerprint(self) -> Fingerprint:
        return Fingerprint.from_dict(self._progress.fingerprint)

    def _unstamped(self) -> dict[str, str]:
        """Say why a point is not validated, by id."""
        told = {}
        for each in self._catalogue.points:
            found = self._progress.point(each.id)
            if found is None:
                told[each.id] = "it is not in the job file, or was not asked for"
            elif not found.proven:
                told[each.id] = f"{found.because}; {found.next_step}"
        for found in self._progress.points:
            why = rules.unstampable(self._catalogue, found.id, self._fingerprint)
            if found.proven and why:
                told[found.id] = why
        return told


def _stamped(
    point: OperatingPoint, found: PointProof, ran: Fingerprint, *, proven: bool
) -> OperatingPoint:
    """Return a point with its proof; one that is not proven is measured, and no more."""
    if not proven:
        return replace(
            point,
            equivalence=Equivalence.NONE,
            evidence=Evidence.MEASURED,
            validated_at=None,
            validated_by="",
            tolerance=None,
            proven_as="",
        )
    stamped = replace(
        point,
        equivalence=Equivalence(found.equivalence),
        evidence=Evidence.VALIDATED,
        fingerprint=(point.fingerprint or Fingerprint()).with_known(ran),
        validated_at=datetime.fromisoformat(found.at),
        validated_by=f"{getpass.getuser()}@{socket.gethostname()}",
        tolerance=found.tolerance,
    )
    return replace(stamped, proven_as=stamped.claim)


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
