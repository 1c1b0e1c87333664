"""Runs one launch of a job along a walk: starts it, follows it, ends it, and says what went wrong.

There is no power in it. The job needs to know nothing of the walk: `WATTMESH_PROFILE` makes the
hook save into the launch's folder, log every step, and end at a boundary when it is asked to.

Invariant: whatever the job does, the call returns, no process of the launch is left, and its logs
stand in its folder.
"""

import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from wattmesh.controller.process.children import POLL_S, Child, Children
from wattmesh.controller.profile.job import MOST_OFF, ProfileJob, fill
from wattmesh.controller.profile.walk import ProfileWalk, WalkServer
from wattmesh.reconfig import step_log
from wattmesh.reconfig.launcher.torch_agent import words_of
from wattmesh.reconfig.profile_folder import PROFILE_VARIABLE, ProfileFolder
from wattmesh.reconfig.step_log import StepRow
from wattmesh.reconfig.wire.link import URL_VARIABLE

STOP_LIMIT_S = 120.0
"""How long a job may take from being asked to end to its last process gone."""

_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|out of memory|MemoryError|Cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED"
)
_KILLED = re.compile(r"Signal 9 \(SIGKILL\)|exitcode\s*:\s*-9")
_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Refused)\b.*)$")
_REFUSED = re.compile(
    r"^([\w.-]+: error: .+|\S*python[\d.]*: (?:can't open file|No module named) .+)$"
)
"""What argparse, and Python before it runs a line of the script, say without an exception."""


class Trouble(StrEnum):
    """What kept a launch from the end of its walk."""

    CRASH = "crash"
    OUT_OF_MEMORY = "out of memory"
    HANG = "hang"
    SILENT = "silent"
    NONSENSE = "nonsense"
    ENDED_EARLY = "ended early"
    TURNED_AWAY = "turned away"


class JobLauncher(Protocol):
    """Gives the command that launches every rank of a job."""

    def __call__(self, job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
        """Return the words of the launcher, before the job's own `command`."""
        ...


def by_torchrun(job: ProfileJob, command: Sequence[str]) -> Sequence[str]:
    """Launch on this host with the job's own torchrun."""
    return words_of(job.processes, command, python=job.interpreter)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkEnd:
    """How one launch ended.

    Attributes:
        rows: the steps that it logged.
        trouble: what kept it from the end of the walk; None where nothing did.
        sentence: the same in words, with what to do; "".
        log: all that the job said.
    """

    rows: tuple[StepRow, ...]
    trouble: Trouble | None
    sentence: str
    log: Path


def run_walk(
    job: ProfileJob,
    walk: ProfileWalk,
    folder: Path,
    *,
    environment: Mapping[str, str] | None = None,
    follow: Callable[[int], bool] = lambda pid: False,
    launcher: JobLauncher = by_torchrun,
) -> WalkEnd:
    """Run a job until its walk is over, or it cannot go on.

    Args:
        job: what to run.
        walk: where to lead it.
        folder: of this launch, new or empty: takes logs and checkpoints.
        environment: added to the job's environment.
        follow: called at every poll with the launcher's pid, from this thread; True ends the walk.
            A walk of `steps_each` ends by itself.
        launcher: starts every rank.

    Raises:
        InputInvalid: the job's interpreter does not exist.
    """
    job.check_python()
    place = ProfileFolder(folder.resolve())
    place.ask(job.every)
    # A Unix socket's path has room for 107 bytes; the given folder may be deeper than that.
    with ExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wattmesh-")))
        stack.enter_context(WalkServer(short / "walk.sock", walk))
        children = stack.enter_context(Children())
        child = children.start(
            "job",
            launcher(job, filled(job, job.command, place)),
            log=folder / "job.log",
            environment={
                **job_environment(job),
                **(environment or {}),
                URL_VARIABLE: f"unix://{short / 'walk.sock'}",
                PROFILE_VARIABLE: str(place.path),
            },
            folder=job.directory,
        )
        ended = _followed(job, walk, place, child, follow)
    rows = logged(place.steps)
    if ended is None:
        ended = nonsense(job, rows)
    trouble, sentence = ended or (None, "")
    return WalkEnd(
        rows=rows,
        trouble=trouble,
        sentence=f"{sentence} All it said is in {child.log}." if sentence else "",
        log=child.log,
    )


def filled(job: ProfileJob, command: Sequence[str], place: ProfileFolder) -> list[str]:
    """Fill a command's places in for one launch."""
    values = {
        "steps": str(job.steps),
        "every": str(job.every),
        "losses": str(place.own_steps),
        "checkpoints": str(place.run),
        "seed": str(job.seed),
    }
    return fill(command, values)


def job_environment(job: ProfileJob) -> dict[str, str]:
    """Let the job's own modules be found, and keep its processes to one thread each."""
    return {"PYTHONPATH": str(job.directory), "OMP_NUM_THREADS": "1"}


def logged(path: Path) -> tuple[StepRow, ...]:
    """Read a step log; empty where none was written."""
    return step_log.read(path) if path.exists() else ()


def nonsense(job: ProfileJob, rows: Sequence[StepRow]) -> tuple[Trouble, str] | None:
    """Say what cannot be right in a step log; None where all can. Pure."""
    if not rows:
        return Trouble.SILENT, (
            "the job never reported a step; call `session.report(tokens=..., loss=...)` after each."
        )
    each = tokens_each(rows)
    if each is None:
        found = sorted({b.tokens - a.tokens for a, b in pairwise(rows)})
        return Trouble.NONSENSE, (
            f"the job reports {found[0]:,} to {found[-1]:,} tokens for a step; it must report the "
            "same number, above 0, for every step, over all ranks."
        )
    if job.tokens_per_step and job.tokens_per_step != each:
        return Trouble.NONSENSE, (
            f"the job reports {each:,} tokens for a step, its file says tokens_per_step = "
            f"{job.tokens_per_step:,}; correct one of them."
        )
    stated = job.global_batch * job.seq_len
    if stated and not 1 / MOST_OFF <= each / stated <= MOST_OFF:
        return Trouble.NONSENSE, (
            f"the job reports {each:,} tokens for a step, and its file says global_batch = "
            f"{job.global_batch} and seq_len = {job.seq_len}, which make {stated:,}; correct one "
            "of them."
        )
    if all(math.isnan(row.loss) for row in rows):
        return Trouble.NONSENSE, (
            "the job reports no loss that is a finite number, so nothing could be proven of it; "
            "give `session.report` the step's loss."
        )
    return None


def tokens_each(rows: Sequence[StepRow]) -> int | None:
    """Return the tokens of one step; None where they differ between steps or are 0. Pure."""
    if len(rows) == 1:
        return rows[0].tokens or None
    found = {
        (after.tokens - before.tokens) / (after.step - before.step)
        for before, after in pairwise(rows)
    }
    each = found.pop()
    return int(each) if not found and each > 0 and each == int(each) else None


class LogGrowth:
    """Whether the log of steps grows while the job reports some: on a full disk it does not."""

    def __init__(self, path: Path) -> None:
        """Watch `path`, from now on."""
        self._path = path
        self._bytes, self._step, self._since_s = -1, 0, time.monotonic()

    def stalled(
        self, job: ProfileJob, walk: ProfileWalk, now_s: float
    ) -> tuple[Trouble, str] | None:
        """Say that steps are reported and not logged; None where they are, or none is reported."""
        try:
            grown = self._path.stat().st_size
        except OSError:
            grown = 0
        step = walk.newest.step if walk.newest is not None else 0
        if grown != self._bytes or step <= self._step:
            self._bytes, self._since_s = grown, now_s
            self._step = max(step, self._step)
        # To the last step that was heard: a job that hangs wrote its last line a moment before.
        silent_s = walk.heard_s - self._since_s
        if silent_s <= job.silence_limit_s:
            return None
        return Trouble.SILENT, (
            f"the job reports steps{_where(walk)}, and its log {self._path} has not grown for "
            f"{silent_s:.0f} s, so it was ended: its disk is full, or its folder gone."
        )


def _followed(
    job: ProfileJob,
    walk: ProfileWalk,
    place: ProfileFolder,
    child: Child,
    follow: Callable[[int], bool],
) -> tuple[Trouble, str] | None:
    """Follow a launch to its end; return what went wrong."""
    asked_s: float | None = None
    written = LogGrowth(place.steps)
    while (status := child.ended()) is None:
        now_s = time.monotonic()
        if asked_s is None and (follow(child.pid) or walk.over):
            asked_s = now_s
            place.stop()
        if asked_s is not None and now_s - asked_s > STOP_LIMIT_S:
            return None  # leaving the block ends it; what it was started for is done
        wrong = None if asked_s is not None else _stuck(job, walk, now_s)
        wrong = wrong or (None if asked_s is not None else written.stalled(job, walk, now_s))
        if wrong is not None:
            return wrong
        time.sleep(POLL_S)
    if walk.unwelcome:
        return Trouble.TURNED_AWAY, f"{walk.unwelcome}."
    # A failure while it ends cannot spoil what was measured before.
    if asked_s is not None or (follow(child.pid) or walk.over):
        return None
    if status == 0:
        return _ended_early(walk)
    return _crash(child.log, status, _where(walk))


def _stuck(job: ProfileJob, walk: ProfileWalk, now_s: float) -> tuple[Trouble, str] | None:
    """Say why there is no more to wait for; None where there is."""
    quiet_s = now_s - walk.heard_s
    if walk.unwelcome:
        return Trouble.TURNED_AWAY, f"{walk.unwelcome}."
    if walk.newest is None and quiet_s > job.start_limit_s:
        what = (
            "never called `wattmesh.attach`"
            if walk.registered is None
            else "attached, and reported no step"
        )
        return Trouble.SILENT, (
            f"the job {what} within {job.start_limit_s:.0f} s and was ended; correct its script, "
            "or raise job.start_limit_s."
        )
    if walk.newest is not None and quiet_s > job.silence_limit_s:
        return Trouble.HANG, (
            f"the job hung{_where(walk)}: no step in {quiet_s:.0f} s, so it was ended; if its "
            "steps take that long, raise job.silence_limit_s."
        )
    if walk.due_s is not None and now_s - walk.due_s > job.silence_limit_s:
        return Trouble.HANG, (
            f"the job trained on{_where(walk)} for {now_s - walk.due_s:.0f} s and never took the "
            "order, so it was ended; call `session.boundary()` after each `session.report`."
        )
    return None


def _where(walk: ProfileWalk) -> str:
    """Say where in its walk a launch was."""
    if walk.registered is None:
        return " before it attached"
    target, step = walk.bound_for, walk.newest.step if walk.newest is not None else 0
    here = f"{walk.here.id} ({walk.here.layout})"
    way = f", due to go to {target.id} ({target.layout})" if target is not None else ""
    return f" at {here} after step {step}{way}"


def _ended_early(walk: ProfileWalk) -> tuple[Trouble, str]:
    if walk.registered is None:
        return Trouble.SILENT, (
            "the job ended without calling `wattmesh.attach`, so it could not be led through its "
            "layouts; see docs/attach.md for the lines it needs."
        )
    if walk.newest is None:
        return Trouble.SILENT, (
            "the job ended without reporting a step; call `session.report(tokens=..., loss=...)` "
            "after each, while `session.done` is false."
        )
    return Trouble.ENDED_EARLY, (
        f"the job ended by itself{_where(walk)}, before it was asked to; let it train until "
        "`session.done`, and for no number of steps of its own."
    )


def _crash(log: Path, status: int, where: str) -> tuple[Trouble, str]:
    text = log.read_text(errors="replace")
    lines = [each.strip() for each in text.splitlines()]
    said = next(
        (found[1] for told in (_REFUSED, _ERROR) for each in lines if (found := told.match(each))),
        "",
    )
    said = said or (lines[-1] if lines else "nothing")
    if _OUT_OF_MEMORY.search(text):
        return Trouble.OUT_OF_MEMORY, (
            f"the job ran out of memory{where} (it said: {said[:200]}); leave this point out, or "
            "give it a smaller micro batch or recomputation."
        )
    if _KILLED.search(text):
        return Trouble.OUT_OF_MEMORY, (
            f"a process of the job was killed{where} (SIGKILL), by the kernel for memory unless "
            "somebody else did; look at the kernel's log."
        )
    return Trouble.CRASH, f"the job failed with status {status}{where} (it said: {said[:200]})."
