"""The processes that a command starts, and always ends.

Invariant: whatever way the command ends, every process it started, and every process those started,
is gone before it returns; each is ended by its pid, never by its name. If the command is killed,
the kernel sends SIGTERM to the processes it started.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from wattmesh.controller.process.life import end_with
from wattmesh.errors import WattmeshError

POLL_S = 0.02

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command."""


class ChildFailed(WattmeshError):
    """A process that we started did not do its work; the message says where its log is."""


class Child:
    """One process with its log."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        """Start it, in a session of its own, so that Ctrl-C reaches only the command itself.

        `folder`: where it runs; None: where the command does.
        """
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
                preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self) -> int | None:
        """Give its exit status, or None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise when it has failed.

        Raises:
            ChildFailed: it ended with a status other than 0.
        """
        status = self.ended()
        if status:
            raise ChildFailed(self._failure(f"ended with status {status}"))

    def finish(self, limit_s: float, watch: Callable[[], None] = lambda: None) -> None:
        """Wait until it has ended with status 0; `watch` is called at every poll.

        Raises:
            ChildFailed: it failed, or was still running after `limit_s`.
        """
        deadline_s = time.monotonic() + limit_s
        while self.ended() is None:
            if time.monotonic() > deadline_s:
                raise ChildFailed(self._failure(f"was not done after {limit_s:.0f} s"))
            watch()
            time.sleep(POLL_S)
        self.check()

    def stop(self, grace_s: float = 5.0) -> None:
        """End it and everything it started: SIGTERM first, then SIGKILL."""
        family = descendants(self.pid) if self.ended() is None else []
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            if self.ended() is None:
                family = [*family, *descendants(self.pid)]
                self._process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(limit_s)
        for pid, started in dict(family).items():
            if start_time(pid) == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _failure(self, what: str) -> str:
        """Say what happened, with the newest line of its log and where the rest is."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        said = f" (its last line: {lines[-1].strip()[:200]})" if lines else ""
        return f"The {self.name} {what}{said}; all it said is in {self.log}."


class Children:
    """All processes of a command; leaving the block ends them, newest first."""

    def __init__(self) -> None:
        """Begin with none."""
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever still runs, undisturbed by an impatient second signal."""
        with interrupts_held_back():
            for child in reversed(self.all):
                child.stop()

    def start(
        self,
        name: str,
        words: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> Child:
        """Start one more; a signal waits until the new process is one that the block will end."""
        with interrupts_held_back():
            child = Child(name, words, log=log, environment=environment, folder=folder)
            self.all.append(child)
        return child


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Hold back what would end the command while the block runs; children inherit none of it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    before = {each: signal.getsignal(each) for each in INTERRUPTS}
    # One that is ignored stays so: a child inherits that, whatever is done here.
    held = [each for each, found in before.items() if found not in (signal.SIG_IGN, None)]
    for each in held:
        signal.signal(each, lambda number, frame: pending.append(number))
    try:
        yield
    finally:
        for each in held:
            signal.signal(each, before[each])
    for number in pending[:1]:
        signal.raise_signal(number)


def wait_for(
    condition: Callable[[], bool], *, limit_s: float, what: str, needed: Sequence[Child] = ()
) -> None:
    """Poll until `condition` holds, as long as the `needed` processes live.

    Raises:
        ChildFailed: the time is over, or one of them has ended.
    """
    deadline_s = time.monotonic() + limit_s
    while not condition():
        for child in needed:
            child.check()
            if child.ended() is not None:
                raise ChildFailed(f"The {child.name} ended early; what it said is in {child.log}.")
        if time.monotonic() > deadline_s:
            logs = ", ".join(str(child.log) for child in needed)
            raise ChildFailed(f"{what} took more than {limit_s:.0f} s; look at {logs}.")
        time.sleep(POLL_S)


def descendants(pid: int) -> list[tuple[int, int]]:
    """List (pid, start time) of every process below `pid`, through /proc."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            parents.setdefault(_stat(int(folder.name))[0], []).append(int(folder.name))
    found, queue = [], [pid]
    while queue:
        for child in parents.get(queue.pop(), []):
            found.append((child, start_time(child)))
            queue.append(child)
    return found


def start_time(pid: int) -> int:
    """Give when a process started in clock ticks (a pid alone may be reused); 0 when it is gone."""
    return _stat(pid)[1]


def _stat(pid: int) -> tuple[int, int]:
    """Give (parent, start time) of a process; (0, 0) when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[19])
