"""Start a user's script on this machine, and follow its walk through the layouts.

Invariant: however the check ends, no process that it started is left, and the temporary folder for
the run's checkpoints is gone; the script's output is in the log.
"""

import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from signal import Signals

from wattmesh.controller.attach_check.judge import CheckedRun
from wattmesh.controller.process.children import Child, Children
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.hook.attach_check.check_folder import (
    VARIABLE,
    Attached,
    CheckFolder,
    LeftOut,
    SaveStep,
)
from wattmesh.reconfig.hook.reports.switch_line import TAKEN_BACK
from wattmesh.reconfig.launch.failures.script_line import is_users
from wattmesh.reconfig.launcher.supervisor import TOKEN_VARIABLE
from wattmesh.reconfig.launcher.torch_agent import end_all_with, words_of
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import FINAL
from wattmesh.reconfig.wire.link import URL_VARIABLE
from wattmesh.reconfig.wire.messages import Finish, Message, Progress, Transition

MOST_RANKS = 64
"""Most ranks started on one machine unless the user gives a number."""

MOST_LOG_BYTES = 64 * 2**20
"""A longer log is cut to the newest half of this."""

_POLL_S = 0.1
_WITHOUT_BOUNDARY = 20
"""After this many save intervals without a call of `boundary`, the call is taken to be missing."""

_RANK = re.compile(r"^(?:\[rank\d+\]: )+")
_FRAME = re.compile(r' *File "([^"]+)", line (\d+)')
_LAUNCHER = "torch.distributed.elastic"
_OF_TORCHRUN = re.compile(r"[EWI]\d{4} \d\d:|\*{9}|Setting OMP_NUM_THREADS")
_BY_SIGNAL = re.compile(r"exitcode: -(\d+)\) local_rank: (\d+)")
_FATAL = "Fatal Python error: "


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What is to be checked.

    Attributes:
        script: the user's script and its own arguments, or `-m` and a module.
        steps_each: steps in each layout; 0 takes the script's own interval.
        patience_s: seconds without a message of the script after which it is taken to hang.
        log: receives the script's output.
        scratch: folder in which the check makes its own; None: where temporary files go.
    """

    script: tuple[str, ...]
    layouts: tuple[Layout, ...]
    nproc: int
    steps_each: int
    patience_s: float
    log: Path
    scratch: Path | None

    @property
    def name(self) -> str:
        """The script's name in messages."""
        return self.script[1] if self.script[0] == "-m" and self.script[1:] else self.script[0]


def check(asked: CheckRequest, ended: Callable[[int], None] = lambda count: None) -> CheckedRun:
    """Start the script, let it walk through the layouts, and give what was seen.

    Args:
        asked: what is to be checked.
        ended: called with how many more layouts are done.

    Raises:
        InputInvalid: the script could not be walked; the sentence says why, and what to do.
    """
    _refuse(asked)
    with ExitStack() as stack:
        path = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="wattmesh-attach-check-", dir=asked.scratch, ignore_cleanup_errors=True
            )
        )
        folder = CheckFolder(Path(path))
        folder.ask(asked.layouts, asked.steps_each)
        token = str(uuid.uuid4())
        # Processes that a crashed script had started are no longer children of ours.
        stack.callback(end_all_with, token)
        child = stack.enter_context(Children()).start(
            asked.name,
            words_of(asked.nproc, asked.script),
            log=asked.log,
            environment={
                VARIABLE: path,
                URL_VARIABLE: "",
                TOKEN_VARIABLE: token,
                "PYTHONUNBUFFERED": "1",
                "PYTHONFAULTHANDLER": "1",
            },
        )
        return hear(child, folder, asked, ended)


def hear(
    child: Child,
    folder: CheckFolder,
    asked: CheckRequest,
    ended: Callable[[int], None] = lambda count: None,
) -> CheckedRun:
    """Follow a script until it ends or is taken to hang; the caller ends it.

    Args:
        child: the script under its launcher.
        folder: the check's folder, in which the script reports its walk.
        asked: what is checked.
        ended: see `check`.

    Raises:
        InputInvalid: it reached no save step; the sentence says why, and what to do.
    """
    messages: list[Message] = []
    why = _wait(child, folder, asked, messages, ended)
    seen = CheckedRun(layouts=asked.layouts, messages=tuple(messages), ended=why)
    _refuse_unwalked(seen, asked)
    return seen


def _refuse(asked: CheckRequest) -> None:
    """Refuse what cannot be started.

    Raises:
        InputInvalid: something is missing; the sentence says what to do.
    """
    largest = max(asked.layouts, key=lambda each: each.world_size)
    if largest.world_size > asked.nproc:
        raise InputInvalid(
            f"layout {largest} needs {largest.world_size} ranks, --nproc starts {asked.nproc}; "
            f"give --nproc {largest.world_size} or leave it out of --layouts"
        )
    if asked.script[0] != "-m" and not Path(asked.script[0]).is_file():
        raise InputInvalid(
            f"there is no script {asked.script[0]} here; name it behind -- as you give it to "
            "torchrun"
        )
    if find_spec("torch") is None:
        raise InputInvalid(
            "there is no torch here; run attach-check in the environment that trains, with `pip "
            "install 'wattmesh[daemon]'` in it"
        )
    try:
        asked.log.write_bytes(b"")
    except OSError as error:
        raise InputInvalid(
            f"the log {asked.log} cannot be written ({error.strerror}); give another --log"
        ) from error
    if asked.scratch is not None and not asked.scratch.is_dir():
        raise InputInvalid(
            f"--scratch {asked.scratch} is no folder; make it, or leave the option out"
        )


def _wait(
    child: Child,
    folder: CheckFolder,
    asked: CheckRequest,
    messages: list[Message],
    ended: Callable[[int], None],
) -> str:
    """Add to `messages` until the script ends; say what went wrong, "" for nothing."""
    read, heard_s, over = 0, time.monotonic(), False
    while not over:
        # Asked before the messages are read, so that the last ones are read too.
        over = child.ended() is not None
        more, read = folder.messages(read)
        if more:
            messages += more
            heard_s = time.monotonic()
            ended(_done(messages) - _done(messages[: -len(more)]))
        _shorten(asked.log)
        missing = _without_boundary(messages)
        if missing:
            return missing
        if time.monotonic() - heard_s > asked.patience_s:
            return (
                f"nothing was heard of {asked.name} for {asked.patience_s:.0f} s "
                f"({_where(messages)}); if it is only slow, give a longer --patience"
            )
        time.sleep(0.0 if over else _POLL_S)
    if child.ended():
        return f"{asked.name} failed, {_where(messages)}: {_reason(asked.log)}"
    return ""


def _shorten(log: Path) -> None:
    """Keep only the newest half of a log that is too long; writers go on at its end."""
    if log.stat().st_size <= MOST_LOG_BYTES:
        return
    with log.open("r+b") as file:
        file.seek(-MOST_LOG_BYTES // 2, os.SEEK_END)
        newest = file.read()
        file.seek(0)
        file.truncate()
    with log.open("ab") as file:
        file.write(b"[attach-check: older output was cut off here]\n" + newest)


def _done(messages: Sequence[Message]) -> int:
    """Count the layouts whose switch has ended, and those that were left out."""
    ended = {
        each.switch_id for each in messages if isinstance(each, Transition) and each.state in FINAL
    }
    return len(ended) + sum(isinstance(each, LeftOut) for each in messages)


def _without_boundary(messages: Sequence[Message]) -> str:
    """Say that the script trains on and never calls `boundary`; "" when it does."""
    attached = next((each for each in messages if isinstance(each, Attached)), None)
    newest = next((each for each in reversed(messages) if isinstance(each, Progress)), None)
    if newest is None or attached is None or any(isinstance(each, SaveStep) for each in messages):
        return ""
    if newest.step <= _WITHOUT_BOUNDARY * attached.steps_each:
        return ""
    return (
        f"session.boundary() was not called at a save step in {newest.step} steps; call it after "
        "every step, or give --steps-per-layout how often you do"
    )


def _where(messages: Sequence[Message]) -> str:
    """Say where the script stood at its last message."""
    for each in reversed(messages):
        if isinstance(each, Finish):
            return "after its run had ended"
        if isinstance(each, Progress):
            return f"after step {each.step} as {each.layout}"
        if isinstance(each, Transition):
            return f"in the switch at step {each.step}: {each.state}"
    return "before its first session.report()" if messages else "before it called wattmesh.attach"


def _reason(log: Path) -> str:
    """Find the reason that a failed script gives, and the line of its own that raised it."""
    place, said, within, silent, signalled = "", "it wrote no output", False, False, ""
    lines = _since_rollback(log.read_text(errors="replace").splitlines())
    for number, line in enumerate(lines):
        bare = _RANK.sub("", line)
        place = _own_line(bare) or place
        if bare.startswith(_FATAL):
            # faulthandler prints the innermost call first.
            return f"{bare[:400]}{next(filter(None, map(_own_line, lines[number:])), '')}"
        if bare.startswith("Traceback "):
            within = silent = True
        elif within and bare[:1].strip():
            if not bare.startswith(_LAUNCHER):
                return f"{bare.removeprefix('wattmesh.errors.').strip()[:400]}{place}"
            within = False
        signalled = signalled or _signalled(bare)
        if bare.strip() and not silent and not _OF_TORCHRUN.match(bare):
            said = bare.strip()
    return signalled or f"{said[:400]}{place}"


def _since_rollback(lines: list[str]) -> list[str]:
    """Give what was said after the last switch that was taken back: its traceback ended nothing."""
    last = max((at for at, line in enumerate(lines) if TAKEN_BACK in line), default=-1)
    return lines[last + 1 :]


def _own_line(line: str) -> str:
    """Give ` (FILE:LINE)` of a stack frame in the user's own code; "" for any other line."""
    frame = _FRAME.match(_RANK.sub("", line))
    return f" ({frame[1]}:{frame[2]})" if frame and is_users(frame[1]) else ""


def _signalled(line: str) -> str:
    """Say which signal ended which rank, if this line of the launcher says so; else ""."""
    found = _BY_SIGNAL.search(line)
    if not found:
        return ""
    number, rank = int(found[1]), found[2]
    name = f"signal {number}"
    with suppress(ValueError):
        name = Signals(number).name
    memory = ", which the kernel does when memory runs out" if name == "SIGKILL" else ""
    return f"rank {rank} was ended by {name}{memory}"


def _refuse_unwalked(seen: CheckedRun, asked: CheckRequest) -> None:
    """Refuse a script that reached no save step.

    Raises:
        InputInvalid: the sentence says why, and where its log is.
    """
    if seen.save_steps:
        return
    said = f"its output is in {asked.log}"
    began = seen.attached
    if began is not None and began.layout.world_size > began.launched:
        needs = began.layout.world_size
        raise InputInvalid(
            f"{asked.name} begins as {began.layout}, which needs {needs} ranks, and --nproc "
            f"started {began.launched}; give --nproc {needs}; {said}"
        )
    if seen.ended:
        raise InputInvalid(f"{seen.ended}; {said}")
    if began is None:
        raise InputInvalid(
            f"{asked.name} ended without an error and never called wattmesh.attach: attach it "
            f"first (docs/attach.md); {said}"
        )
    steps = began.steps_each
    last = max((each.step for each in seen.messages if isinstance(each, Progress)), default=0)
    if last >= steps:
        raise InputInvalid(
            f"{asked.name} ended after step {last} and never called session.boundary() at a save "
            f"step, of which there is one in {steps} steps: call it after every step; {said}"
        )
    raise InputInvalid(
        f"{asked.name} ended after step {last}, before its first save step, {steps}: let it train "
        f"longer, or give a smaller --steps-per-layout; {said}"
    )
