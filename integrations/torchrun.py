"""A supervisor around torchrun: launches a job, and launches it again when that helps.

    python -m wattmesh.integrations.torchrun --nproc 4 --checkpoint-dir DIR -- script.py args...

If a launch asks for a restart (a switch that cannot be made in place), the next one follows at
once. If it failed, the next one follows after a pause. If it was refused (two live launches,
damaged checkpoints), none follows. A run that is told to sleep leaves only after this supervisor
has said that it holds the next launch, and is launched again in time, whoever else is alive.
SIGTERM asks the job to checkpoint at its next boundary and end.

Invariant: exit status 0 means that the run is finished, and no process of a launch is left behind
when the next one starts. This process never imports torch.
"""

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from wattmesh.reconfig.client.last_word import tell_end
from wattmesh.reconfig.launch.folder import (
    HOLDS_VARIABLE,
    OUTCOME_VARIABLE,
    RunFolder,
    read_json,
    step_of,
)
from wattmesh.reconfig.launcher.contract import LaunchQueue
from wattmesh.reconfig.launcher.sleeper import Sleeper

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
END_GRACE_S = 5.0


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
        """Start the job with `environment` added to the environment of its ranks."""
        ...


def words_of(nproc: int, command: Sequence[str], *, python: str = sys.executable) -> list[str]:
    """Return the command line that runs `command` once, on `nproc` ranks of this host."""
    return [
        *(python, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(nproc), "--max-restarts", "0"),
        *command,
    ]


class Torchrun:
    """Launches through `torch.distributed.run --standalone`, in a session of its own."""

    def __init__(self, nproc: int, command: Sequence[str]) -> None:
        """Run `command` (a script with its arguments, or -m module ...) on `nproc` ranks."""
        self._arguments = words_of(nproc, command)

    def launch(self, environment: Mapping[str, str]) -> Launch:
        """Start the agent, which starts the ranks."""
        process = subprocess.Popen(
            self._arguments, env={**os.environ, **environment}, start_new_session=True
        )
        return _Agent(process, environment[TOKEN_VARIABLE])


class _Agent:
    """A torchrun agent and the ranks it started (each in a session of its own)."""

    def __init__(self, process: subprocess.Popen[bytes], token: str) -> None:
        """Watch `process`; its ranks are recognized by `token` in their environment."""
        self._process = process
        self._token = token

    def poll(self) -> int | None:
        """Return the agent's exit status, after killing ranks that it left; None while it runs."""
        status = self._process.poll()
        if status is not None:
            end_all_with(self._token)
        return status

    def end(self) -> None:
        """Send SIGTERM to the agent; after `END_GRACE_S`, SIGKILL to whatever is left."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_GRACE_S)
        end_all_with(self._token)
        self._process.wait()


def end_all_with(token: str) -> int:
    """Kill (SIGKILL) every process with `token` in its environment; return how many."""
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    ended = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            mine = wanted in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(folder.name), signal.SIGKILL)
                ended += 1
    return ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnd:
    """How one launch ended. `outcome`: done | restart | suspended | stopped | refused | failed."""

    outcome: str
    sentence: str
    status: int


class Supervisor:
    """Launches a run again and again until it is finished, stopped or refused, or keeps failing."""

    def __init__(
        self,
        launcher: Launcher,
        checkpoint_dir: Path,
        *,
        max_restarts: int = 5,
        stop_grace_s: float = 600.0,
        say: Callable[[str], None] = log.info,
        queue: LaunchQueue | None = None,
    ) -> None:
        """Prepare to supervise.

        Args:
            launcher: starts the ranks.
            checkpoint_dir: the run's folder, the same that the script gives to `attach`.
            max_restarts: failed launches in a row, without a new checkpoint, before giving up.
            stop_grace_s: seconds that a stop at a boundary may take before ranks are killed.
            say: called with sentences for people.
            queue: holds the next launch of a run that sleeps; None: this supervisor does.
        """
        self._launcher = launcher
        self._folder = RunFolder(checkpoint_dir)
        self._max_restarts = max_restarts
        self._stop_grace_s = stop_grace_s
        self._say = say
        self._stop = threading.Event()
        self._stop_now = threading.Event()
        self._sleeper = Sleeper(self._folder, queue, self._stop, say)

    def ask_to_stop(self) -> None:
        """Ask the job to checkpoint at its next boundary and end; a second call ends it at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def run(self) -> int:
        """Launch until no further launch is due; return the exit status."""
        failures, reached = 0, self._newest_step()
        pause_s, lost_at = 0.0, None
        while True:
            ended = self._one_launch(lost_at)
            lost_at = time.monotonic()
            step = self._newest_step()
            failures = 0 if step > reached else failures
            reached = max(step, reached)
            if ended.outcome == "restart" and not self._stop.is_set():
                self._say(f"the job left at step {step} to restart: {ended.sentence}")
                continue
            if ended.outcome == "suspended" and self._sleeper.sleep(step):
                lost_at = time.monotonic()
                continue
            if ended.outcome != "failed":
                return self._finish(ended)
            failures += 1
            if self._stop.is_set() or failures > self._max_restarts:
                self._say(f"giving up after {failures} failed launches without a new checkpoint.")
                self._tell(f"failed: gave up after {failures} failed launches: {ended.sentence}")
                return EXIT_GAVE_UP
            pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
            self._say(
                f"the launch ended with status {ended.status} ({ended.sentence}); launching again "
                f"from step {step} in {pause_s:g} s ({failures} of {self._max_restarts})."
            )
            self._stop.wait(pause_s)

    def _one_launch(self, lost_at: float | None) -> LaunchEnd:
        """Run one launch to its end; `lost_at`: when the one before ended (monotonic)."""
        token = str(uuid.uuid4())
        with tempfile.TemporaryDirectory(prefix="wattmesh-launch-") as scratch:
            note = Path(scratch) / "outcome.json"
            environment = {TOKEN_VARIABLE: token, OUTCOME_VARIABLE: str(note), HOLDS_VARIABLE: "1"}
            launch = self._launcher.launch(environment)
            try:
                status = self._watch(launch, note, lost_at)
            except BaseException:
                launch.end()
                raise
            told = read_json(note) or {}
        outcome = str(told.get("outcome", ""))
        sentence = str(told.get("sentence", ""))
        if outcome != "suspended":
            self._sleeper.let_go()
        if outcome in ("done", "restart", "suspended", "stopped", "refused"):
            return LaunchEnd(outcome=outcome, sentence=sentence, status=status)
        if self._stop_now.is_set():
            return LaunchEnd(outcome="stopped", sentence="ended by force", status=status)
        return LaunchEnd(outcome="failed", sentence=self._last_words(), status=status)

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
        self._say(f"the run was stopped ({ended.sentence}) and resumes from step {step}.")
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
            return max((step_of(each) for each in self._folder.checkpoints()), default=-1)
        return -1

    def _last_words(self) -> str:
        """Return the reason that the first rank to fail wrote before it was ended."""
        said: list[str] = []
        with suppress(OSError):
            said = self._folder.failure_sentences()
        return said[0] if said else "no rank said why"


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise a job from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m wattmesh.integrations.torchrun",
        description="Launch a training script with torchrun, and again when it asks or fails.",
    )
    parser.add_argument("--nproc", type=int, required=True, help="ranks to start on this host")
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="as given to attach")
    parser.add_argument("--max-restarts", type=int, default=5, help="failures in a row")
    parser.add_argument("--stop-grace", type=float, default=600.0, help="seconds to stop in band")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- script.py args...")
    chosen = parser.parse_args(arguments)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("name the training script after --")
    supervisor = Supervisor(
        Torchrun(chosen.nproc, command),
        chosen.checkpoint_dir,
        max_restarts=chosen.max_restarts,
        stop_grace_s=chosen.stop_grace,
        say=_say,
    )

    def heed(number: int, frame: FrameType | None) -> None:
        supervisor.ask_to_stop()

    signal.signal(signal.SIGTERM, heed)
    signal.signal(signal.SIGINT, heed)
    return supervisor.run()


def _say(sentence: str) -> None:
    print(f"wattmesh: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
