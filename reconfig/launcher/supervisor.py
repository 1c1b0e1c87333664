"""Launches a job, and launches it again when that helps; what starts its ranks is the launcher's.

If a launch asks for a restart (a switch that cannot be made in place), the next one follows at
once. If it failed, the next one follows after a pause. If it was refused (two live launches,
damaged checkpoints), none follows. A run that is told to sleep leaves only after this supervisor
has said that it holds the next launch, and is launched again in time, whoever else is alive.

Invariant: exit status 0 means that the run is finished. A run that had checkpoints is not begun
anew where they are gone: its file system may be. This process never imports torch.
"""

import logging
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.client.last_word import tell_end
from wattmesh.reconfig.launch.folder import (
    HOLDS_VARIABLE,
    OUTCOME_VARIABLE,
    RESIZES_VARIABLE,
    RunFolder,
    read_json,
    step_of,
)
from wattmesh.reconfig.launcher.contract import LaunchQueue
from wattmesh.reconfig.launcher.own_clock import OwnClock
from wattmesh.reconfig.launcher.sleeper import Sleeper
from wattmesh.reconfig.launcher.way_back import way_back

log = logging.getLogger(__name__)

EXIT_FINISHED = 0
EXIT_GAVE_UP = 1
EXIT_REFUSED = 3
EXIT_STOPPED = 75
"""Stopped on request after a checkpoint (sysexits' EX_TEMPFAIL: start again to go on)."""

TOKEN_VARIABLE = "WATTMESH_LAUNCH"
POLL_S = 0.05
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0

BACK_S = 3600.0
"""How long a job asks for the launch that its run goes back by, before it gives up."""

ANSWER_S = 3600.0
"""How long a launch is tried to be started where what starts it does not answer."""

STEP_LOOK_S = 30.0
"""How often it is looked how far a launch that runs has come."""

FOLDER_S = 600.0
"""How long checkpoints that are gone are waited for, as where a file system comes back."""


class Launch(Protocol):
    """One launch that is running."""

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        ...

    def end(self) -> None:
        """End it now, by force if necessary."""
        ...


class Launcher(Protocol):
    """Something that starts every rank of a job."""

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the job with `environment` added to the environment of its ranks.

        Raises:
            SourceUnavailable: what starts it does not answer now; nothing was started.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    """How one launch ended. `outcome`: done | restart | suspended | stopped | refused | failed."""

    outcome: str
    sentence: str
    status: int


class Supervisor:
    """Launches a run again and again until it is finished, stopped or refused, or keeps failing.

    `handed_over`: whether `run` ended because a queue starts the next launch.
    """

    def __init__(
        self,
        launcher: Launcher,
        checkpoint_dir: Path,
        *,
        max_restarts: int = 5,
        stop_grace_s: float = 600.0,
        say: Callable[[str], None] = log.info,
        queue: LaunchQueue | None = None,
        clock: OwnClock | None = None,
        resizes: bool = False,
        ranks: int = 0,
    ) -> None:
        """Prepare to supervise.

        Args:
            launcher: starts the ranks.
            checkpoint_dir: the run's folder, the same that the script gives to `attach`.
            max_restarts: failed launches in a row, without a new checkpoint, before giving up.
            stop_grace_s: seconds that a stop at a boundary may take before ranks are killed.
            say: called with sentences for people.
            queue: holds the next launch of a run that sleeps; None: this supervisor does.
            clock: holds it where there is no queue; None: one that knows no other size.
            resizes: whether queue or clock holds launches of another number of ranks too.
            ranks: how many each launch has here; 0: not told, where it resizes nothing.
        """
        self.handed_over = False
        self._launcher = launcher
        self._folder = RunFolder(checkpoint_dir)
        self._max_restarts = max_restarts
        self._ranks = ranks
        self._stop_grace_s = stop_grace_s
        self._say = say
        self._holds = {HOLDS_VARIABLE: "1", **({RESIZES_VARIABLE: "1"} if resizes else {})}
        self._asked = False
        self._reached, self._look_at_s = -1, 0.0
        self._stop = threading.Event()
        self._stop_now = threading.Event()
        self._sleeper = Sleeper(self._folder, queue, self._stop, say, clock)

    def ask_to_stop(self, *, again_ends: bool = True) -> None:
        """Ask the job to checkpoint at its next boundary and end; a second call ends it at once.

        `again_ends`: whether this call counts; that of another host of the run does not.
        """
        if self._asked and again_ends:
            self._stop_now.set()
        self._asked = self._asked or again_ends
        self._stop.set()

    def run(self) -> int:
        """Launch until no further launch is due; return the exit status."""
        failures, reached = 0, self._newest_step()
        pause_s, lost_at = 0.0, None
        if self._gone_back():
            return EXIT_STOPPED
        while self._has_checkpoints():
            ended = self._one_launch(lost_at)
            lost_at = time.monotonic()
            step = self._newest_step()
            failures = 0 if step > reached else failures
            reached = max(step, reached)
            if self._hands_over(ended.outcome):
                if self._sleeper.sleep(step):
                    lost_at = time.monotonic()
                    continue
                if self._sleeper.queued:
                    self.handed_over = True
                    return EXIT_STOPPED
            if ended.outcome == "restart" and not self._stop.is_set():
                self._say(f"the job left at {_place(step)} to restart: {ended.sentence}")
                continue
            if ended.outcome != "failed":
                return self._finish(ended)
            failures += 1
            over = failures > self._max_restarts
            if self._gone_back(given_up=over):
                return EXIT_STOPPED
            if self._stop.is_set() or over:
                self._say(f"giving up after {failures} failed launches without a new checkpoint.")
                self._tell(f"failed: gave up after {failures} failed launches: {ended.sentence}")
                return EXIT_GAVE_UP
            pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
            self._say(
                f"the launch ended with status {ended.status} ({ended.sentence}); launching again "
                f"from {_place(step)} in {pause_s:g} s ({failures} of {self._max_restarts})."
            )
            self._stop.wait(pause_s)
        return EXIT_GAVE_UP

    def _has_checkpoints(self) -> bool:
        """Wait until a run that had checkpoints has some; False: they do not come back."""
        until, pause_s = time.monotonic() + FOLDER_S, FIRST_PAUSE_S
        while self._reached >= 0 and self._newest_step() < 0:
            gone = (
                f"the run was at step {self._reached}, and {self._folder.path} holds no checkpoint "
                "of it any more: see whether its file system is there"
            )
            if self._stop.is_set() or time.monotonic() > until:
                self._say(f"giving up: {gone}.")
                return False
            self._say(f"nothing is launched: {gone}; looking again.")
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return True

    def _gone_back(self, *, given_up: bool = False) -> bool:
        """Have a launch of the size before held where none of this size can train on.

        Args:
            given_up: whether what was ordered counts as failed although it may not have begun.

        Returns:
            Whether one is held, so that this job ends.

        Raises:
            SourceUnavailable: the launcher holds none, for `BACK_S`.
        """
        way = way_back(self._folder, self._ranks, given_up=given_up) if self._ranks else None
        began_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while way is not None and not self._stop.is_set():
            if self._sleeper.go_back(way):
                self.handed_over = True
                return True
            if time.monotonic() - began_s > BACK_S:
                problem = f"no launch of {way.ranks} ranks is held, which the run needs to go back"
                self._tell(f"failed: {problem}")
                raise SourceUnavailable(problem)
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return False

    def _one_launch(self, lost_at: float | None) -> LaunchEnd:
        """Run one launch to its end; `lost_at`: when the one before ended (monotonic)."""
        token = str(uuid.uuid4())
        with tempfile.TemporaryDirectory(prefix="wattmesh-launch-") as scratch:
            note = Path(scratch) / "outcome.json"
            environment = {TOKEN_VARIABLE: token, OUTCOME_VARIABLE: str(note), **self._holds}
            launch = self._launched(environment)
            if launch is None:
                return LaunchEnd(outcome="stopped", sentence="before it began", status=0)
            try:
                status = self._watch(launch, note, lost_at)
            except BaseException:
                launch.end()
                raise
            told = read_json(note) or {}
        outcome = str(told.get("outcome", ""))
        sentence = str(told.get("sentence", ""))
        if not self._hands_over(outcome):
            self._sleeper.let_go()
        if outcome in ("done", "restart", "suspended", "stopped", "refused"):
            return LaunchEnd(outcome=outcome, sentence=sentence, status=status)
        if self._stop_now.is_set():
            return LaunchEnd(outcome="stopped", sentence="ended by force", status=status)
        return LaunchEnd(outcome="failed", sentence=self._last_words(), status=status)

    def _launched(self, environment: Mapping[str, str]) -> Launch | None:
        """Start a launch, as soon as what starts it answers; None: asked to stop meanwhile.

        Raises:
            SourceUnavailable: it does not answer for `ANSWER_S`.
        """
        until, pause_s = time.monotonic() + ANSWER_S, FIRST_PAUSE_S
        while True:
            try:
                return self._launcher.launch(environment)
            except SourceUnavailable as error:
                if self._stop.is_set():
                    return None
                if time.monotonic() > until:
                    self._tell(f"failed: no launch could be started: {error}")
                    raise
                self._say(f"nothing is launched yet: {error}; trying again.")
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _hands_over(self, outcome: str) -> bool:
        """Return whether the next launch is the held one, not one of this supervisor's making."""
        return outcome == "suspended" or (outcome == "restart" and self._sleeper.resizes)

    def _watch(self, launch: Launch, note: Path, lost_at: float | None) -> int:
        """Wait for the end of a launch, and forward a request to stop."""
        asked_at: float | None = None
        while (status := launch.poll()) is None:
            if lost_at is not None and (told := read_json(note)) is not None:
                self._say(
                    f"training again {told.get('sentence', '')} from step {told.get('step')}, "
                    f"{time.monotonic() - lost_at:.1f} s after the launch before had ended."
                )
                lost_at = None
            self._sleeper.serve()
            if time.monotonic() > self._look_at_s:
                self._newest_step()
                self._look_at_s = time.monotonic() + STEP_LOOK_S
            if self._stop.is_set():
                if asked_at is None:
                    asked_at = time.monotonic()
                    self._say("asked to stop: the job checkpoints at its next boundary and leaves.")
                self._ask_in_band()
            overdue = asked_at is not None and time.monotonic() - asked_at > self._stop_grace_s
            if overdue or self._stop_now.is_set():
                self._say("the job did not stop by itself; its processes are ended.")
                self._stop_now.set()
                launch.end()
            time.sleep(POLL_S)
        return status

    def _ask_in_band(self) -> None:
        """Write the stop file, at every poll: a launch that begins deletes an old one."""
        try:
            self._folder.path.mkdir(parents=True, exist_ok=True)
            self._folder.stop_file.touch()
        except OSError as error:
            self._say(f"the stop file cannot be written ({error}); the job is ended instead.")
            self._stop_now.set()

    def _finish(self, ended: LaunchEnd) -> int:
        if ended.outcome == "done":
            self._say(f"the run is finished: {ended.sentence}.")
            return EXIT_FINISHED
        if ended.outcome == "refused":
            self._say(f"the run cannot go on: {ended.sentence}")
            self._tell(f"failed: {ended.sentence}")
            return EXIT_REFUSED
        step = self._newest_step()
        self._say(f"the run was stopped ({ended.sentence}) and resumes from {_place(step)}.")
        self._tell(f"stopped: {ended.sentence}")
        return EXIT_STOPPED

    def _tell(self, reason: str) -> None:
        """Tell the daemon how the run ended; a report of the launch itself takes precedence."""
        untold = tell_end(self._folder, reason)
        if untold:
            self._say(f"the daemon could not be told how the run ended: {untold}")

    def _newest_step(self) -> int:
        """Return the step of the newest checkpoint; -1 if there is none."""
        with suppress(OSError):
            step = max((step_of(each) for each in self._folder.checkpoints()), default=-1)
            self._reached = max(step, self._reached)
            return step
        return -1

    def _last_words(self) -> str:
        """Return the reason that the first rank to fail wrote before it was ended."""
        said: list[str] = []
        with suppress(OSError):
            said = self._folder.failure_sentences()
        return said[0] if said else "no rank said why"


def _place(step: int) -> str:
    """Say where a run stands by its newest checkpoint; -1: it has none."""
    return f"step {step}" if step >= 0 else "the beginning"
