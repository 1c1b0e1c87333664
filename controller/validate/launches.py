"""Runs the launches of one validation, and keeps which ended well and how long each took.

Invariant: a launch that ended well is not run again, and one that did not leaves nothing that the
next attempt could take for its own.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wattmesh.controller.process.children import ChildFailed
from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.controller.profile.launch import JobLauncher, WalkEnd, run_walk
from wattmesh.controller.profile.walk import ProfileWalk
from wattmesh.controller.validate.judge import WatchedLaunch
from wattmesh.controller.validate.results import ValidationProgress
from wattmesh.reconfig.equivalence.asked import AskedChecks, ValidationFiles

Tell = Callable[[str], None]

INTERVALS = 2
"""Checkpoint intervals at the reference before a switch, at the point, and after it."""


@dataclass(slots=True, kw_only=True)
class ValidationLaunches:
    """The launches of one validation.

    Attributes:
        progress: what was found so far; whoever adds to it saves it.
        walk: where the newest launch went.
    """

    job: ProfileJob
    folder: Path
    progress: ValidationProgress
    launcher: JobLauncher
    tell: Tell
    largest_bytes: int
    walk: ProfileWalk = field(init=False)

    def place(self, name: str) -> WatchedLaunch:
        """Return the files of a launch."""
        return WatchedLaunch(self.folder / name)

    def asked(
        self,
        *,
        reorder_after: int = 0,
        parts: int = 1,
        keep_state: bool = False,
        seed: int = 0,
        sampled: bool = False,
    ) -> AskedChecks:
        """Return what a launch is to watch; `AskedChecks` says what each word means."""
        return AskedChecks(
            every=self.job.every,
            reorder_after=reorder_after,
            parts=parts,
            keep_state=keep_state,
            largest_bytes=self.largest_bytes,
            seed=seed,
            sampled=sampled,
        )

    def once(
        self,
        name: str,
        asked: AskedChecks,
        walk: Sequence[Candidate],
        steps_each: int,
        *,
        least_s: float = 0.0,
        seed: int = 0,
        into: str = "",
    ) -> None:
        """Run one launch, if it has not ended well before.

        Args:
            name: of the launch, and of its folder.
            asked: what it watches.
            walk: its points; every one must be reached.
            steps_each: steps at each of them.
            least_s: for how long it trains at least.
            seed: for a command that takes one.
            into: the folder of an earlier launch, which this one resumes.

        Raises:
            ChildFailed: it failed.
        """
        if name in self.progress.finished:
            return
        self.tell(f"training {name}")
        folder = self.folder / (into or name)
        ended = self.run(
            folder, asked, walk, steps_each, least_s=least_s, seed=seed, fresh=not into
        )
        if ended.trouble is not None:
            raise ChildFailed(ended.sentence)
        for _, target, why in self.walk.failures:
            raise ChildFailed(f"the job took the switch to {target} back: {why}")
        self.progress = replace(self.progress, finished=(*self.progress.finished, name))
        self.progress.save(self.folder)

    def run(
        self,
        folder: Path,
        asked: AskedChecks,
        walk: Sequence[Candidate],
        steps_each: int,
        *,
        least_s: float = 0.0,
        seed: int = 0,
        fresh: bool = True,
    ) -> WalkEnd:
        """Run one launch into a folder, which is emptied first where it is to be `fresh`."""
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        ValidationFiles(folder).ask(asked)
        self.walk = ProfileWalk(walk, lambda _: None, steps_each=steps_each, least_s=least_s)
        began_s = time.monotonic()
        ended = run_walk(replace(self.job, seed=seed), self.walk, folder, launcher=self.launcher)
        if fresh:
            took_s = {**self.progress.seconds, folder.name: round(time.monotonic() - began_s, 1)}
            self.progress = replace(self.progress, seconds=took_s)
        return ended

    def seconds(self, name: str) -> float:
        """Return how long a launch took; 0 where that is not known."""
        return self.progress.seconds.get(name, 0.0)
