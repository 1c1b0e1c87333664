"""V8 on the user's own job: launches of a point and of the reference, with other random streams.

A seed's point is launched first, so that its reference trains all steps that are compared. The
launches that every point has anyway are the first seed. Invariant: a seed that crashed, was
refused, or ran other code than the reference proves nothing, and no other takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattmesh import quantities
from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate
from wattmesh.controller.validate.judge import WatchedLaunch, row_of
from wattmesh.controller.validate.launches import INTERVALS, ValidationLaunches
from wattmesh.controller.validate.results import CheckRow, PointProof
from wattmesh.reconfig.catalogue import Equivalence
from wattmesh.reconfig.equivalence.checks.seeds import (
    MOST_SEEDS,
    JudgedSeeds,
    SeedPair,
    judge_seeds,
)
from wattmesh.reconfig.equivalence.own_job import NOISY
from wattmesh.reconfig.equivalence.sample import sampled
from wattmesh.reconfig.equivalence.shelf import read_whole
from wattmesh.reconfig.equivalence.whole import Arrays, quantity_of

SUGGESTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What seeds will cost."""

    launches: int
    seconds: float

    def __str__(self) -> str:
        """Say it in a clause."""
        took = f", about {quantities.duration(self.seconds)}" if self.seconds else ""
        return f"{self.launches} launches{took}"


def plan(launches: ValidationLaunches, points: Sequence[str], seeds: int) -> TrialPlan:
    """Reckon what is still to be run to compare some points over seeds, by what launches took."""
    names = {
        name: first
        for seed in range(1, seeds)
        for name, first in (
            (f"seed-{seed}-reference", "reference"),
            *((f"seed-{seed}-point-{point}", f"point-{point}") for point in points),
        )
    }
    todo = [first for name, first in names.items() if name not in launches.progress.finished]
    seconds = sum(launches.seconds(first) for first in todo)
    return TrialPlan(launches=len(todo), seconds=seconds)


@dataclass(slots=True, kw_only=True)
class SeedTrials:
    """Compares points with the reference over `seeds` random streams."""

    launches: ValidationLaunches
    seeds: int

    def prove(self, point: Candidate, found: PointProof) -> PointProof:
        """Judge a point that is not numerical, and draws random numbers, over seeds."""
        self.launches.tell(
            f"{point.id} draws random numbers; {self.seeds} seeds: {self._plan(point)}"
        )
        try:
            for seed in range(1, self.seeds):
                self._train(point, seed)
        except ChildFailed as error:
            self._save()
            return replace(
                found,
                because=f"not numerical, and of its seeds not all were trained: {error}".rstrip(
                    "."
                ),
                next_step="correct that, and validate again; what was trained is kept",
            )
        places = [self._places(point, seed) for seed in range(self.seeds)]
        unlike = _other_code(places)
        if unlike:
            return replace(
                found,
                because=f"a seed was trained with something else ({unlike})",
                next_step="name a new --folder, so that all are trained anew",
            )
        pairs = pairs_of(places, self.launches.job.every)
        judged = judge_seeds(pairs, look=self._look(point.id))
        return _proof(found, judged, _state_row(places), self.seeds)

    def _look(self, point: str) -> int:
        """Note that a point is judged over so many seeds; return how often it was before."""
        progress = self.launches.progress
        before = progress.looks.get(point, [])
        if self.seeds in before:
            return before.index(self.seeds)
        looks = {**progress.looks, point: [*before, self.seeds]}
        self.launches.progress = replace(progress, looks=looks)
        self._save()
        return len(before)

    def _plan(self, point: Candidate) -> TrialPlan:
        return plan(self.launches, [point.id], self.seeds)

    def _train(self, point: Candidate, seed: int) -> None:
        """Train the two launches of one seed, as far as that was not done before.

        Raises:
            ChildFailed: one of them failed.
        """
        launches, reference = self.launches, self.launches.job.walk[0]
        own = launches.job.takes_seed
        asked = launches.asked(seed=0 if own else seed, sampled=True)
        name, every = f"seed-{seed}-point-{point.id}", launches.job.every
        launches.once(name, asked, [reference, point], INTERVALS * every, seed=seed)
        last = max(launches.place(name).losses)
        beside = f"seed-{seed}-reference"
        trained = max(launches.place(beside).losses, default=0)
        if beside in launches.progress.finished and trained < last:
            others = tuple(each for each in launches.progress.finished if each != beside)
            launches.progress = replace(launches.progress, finished=others)
        launches.once(beside, asked, [reference], last, seed=seed)

    def _places(self, point: Candidate, seed: int) -> tuple[WatchedLaunch, WatchedLaunch]:
        """Return a seed's launches: of the point, and of the reference."""
        if not seed:
            return self.launches.place(f"point-{point.id}"), self.launches.place("reference")
        return (
            self.launches.place(f"seed-{seed}-point-{point.id}"),
            self.launches.place(f"seed-{seed}-reference"),
        )

    def _save(self) -> None:
        self.launches.progress.save(self.launches.folder)


def pairs_of(places: Sequence[tuple[WatchedLaunch, WatchedLaunch]], every: int) -> list[SeedPair]:
    """Read what the launches of all seeds left; what is missing is left out of its seed."""
    read = [
        tuple(_read(each, _arrival(point)[0], every, full=not seed) for each in (point, reference))
        for seed, (point, reference) in enumerate(places)
    ]
    sizes: dict[str, int] = {}
    for pair in read:
        for arrays in pair:
            sizes.update({name: array.size for name, array in arrays.items()})
    return [
        _pair(seed, place, [_vectors(arrays, sizes) for arrays in arrays_of])
        for seed, (place, arrays_of) in enumerate(zip(places, read, strict=True))
    ]


def _pair(
    seed: int,
    place: tuple[WatchedLaunch, WatchedLaunch],
    vectors: Sequence[dict[str, np.ndarray]],
) -> SeedPair:
    since, until = _arrival(place[0])
    losses = {step: loss for step, loss in place[0].losses.items() if step <= until}
    return SeedPair(
        seed=seed,
        since=since,
        found=vectors[0],
        reference=vectors[1],
        losses=losses,
        reference_losses=place[1].losses,
    )


def _arrival(launch: WatchedLaunch) -> tuple[int, int]:
    """Return the steps at which a launch came to the point and left it; far away: it never did."""
    never = 1 << 60
    steps = [each.step for each in launch.files.read_round_trips() if each.how == "switch"]
    return (steps[0] if steps else never), (steps[1] if len(steps) > 1 else never)


def _read(launch: WatchedLaunch, since: int, every: int, *, full: bool) -> dict[str, np.ndarray]:
    """Read a launch's gradient of the first step after the switch, and its state's change.

    Returns:
        Arrays by name; empty where one of the three files is missing.
    """
    files = launch.files
    paths = (files.gradient(since + 1), files.sample(since), files.sample(since + every))
    if not all(each.exists() for each in paths):
        return {}
    gradient, before, after = (read_whole(each) for each in paths)
    found = dict((sampled(gradient) if full else gradient).arrays)
    for name, array in after.arrays.items():
        value = array.astype(np.float64)
        # Slots are held to what they are, parameters to how far they went.
        moved = name.startswith("param.") and name in before.arrays
        found[name] = value - before.arrays[name] if moved else value
    return found


def _vectors(arrays: Arrays, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Join arrays by quantity. What one launch lacks, as an expert's gradient, counts as 0."""
    if not arrays:
        return {}
    parts: dict[str, list[np.ndarray]] = {}
    for name in sorted(sizes):
        array = arrays.get(name)
        whole = np.zeros(sizes[name]) if array is None else array.astype(np.float64)
        parts.setdefault(quantity_of(name), []).append(whole.reshape(-1))
    return {name: np.concatenate(each) for name, each in parts.items()}


def _other_code(places: Sequence[tuple[WatchedLaunch, WatchedLaunch]]) -> str:
    """Say what a seed ran on that the reference did not; "" for nothing."""
    first = places[0][1].ran
    for place in places:
        for each in place:
            differing = first.differences(each.ran)
            if differing:
                return f"{each.folder.name}: {'; '.join(differing)}"
    return ""


def _state_row(places: Sequence[tuple[WatchedLaunch, WatchedLaunch]]) -> CheckRow:
    """Return V1 of the switches to the point in all seeds."""
    rows = [
        next((row for row in point.files.read_round_trips() if row.how == "switch"), None)
        for point, _ in places
    ]
    wrong = sum(row is None or row.measured != 0 for row in rows)
    return CheckRow(
        check="V1",
        name=f"of {len(rows)} seeds, switches that changed a tensor",
        measured=wrong,
        limit=0,
        ok=not wrong,
        sentence=f"of {len(rows)} seeds {wrong} changed tensors at the switch",
    )


def _proof(found: PointProof, judged: JudgedSeeds, state: CheckRow, seeds: int) -> PointProof:
    """Return a point's proof with its seeds in place of what its masks made fail."""
    kept = tuple(each for each in found.checks if each.check not in NOISY)
    checks = (*kept, state, *(row_of(each) for each in judged.verdicts))
    failed = [each for each in checks if not each.ok]
    if not failed:
        names = ", ".join(sorted({each.check for each in checks}))
        return replace(
            found,
            equivalence=Equivalence.STATISTICAL.value,
            because=f"{names} hold over {seeds} seeds; not numerical: {found.because}",
            checks=checks,
            next_step="",
            tolerance=None,
        )
    return replace(
        found,
        because=f"not numerical, and {'; '.join(each.sentence for each in failed)}",
        checks=checks,
        next_step=_next_step(judged, seeds),
        tolerance=None,
    )


def _next_step(judged: JudgedSeeds, seeds: int) -> str:
    """Say what to do about a point that seeds did not prove."""
    if judged.differs:
        return (
            "the layout trains something else on the mean: look for the breaker in "
            "docs/convergence.md, first at the batch of a rank, the loss's mean and the optimizer"
        )
    if judged.enough > MOST_SEEDS:
        return (
            f"the launches are too short or too noisy to tell, it would take more than "
            f"{MOST_SEEDS} seeds: raise job.every, so that each trains more steps"
        )
    if judged.enough > seeds:
        return (
            f"these seeds cannot tell; about {judged.enough} would if the layouts are alike "
            f"(--seeds {judged.enough}), or longer launches (job.every)"
        )
    if judged.enough:
        return "these seeds just cannot tell; take half as many again with --seeds"
    return (
        "correct that, and validate again; a script that sets its own streams can take its seed "
        "from job.command, as {seed}"
    )
