"""The daemon's end of the planning process: started when first asked, ended when it fails.

Invariant: a question is answered, or an error says why not, within its limit. A process that hung,
died or wrote nonsense is ended before the error is raised, and the next question starts a new one.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from wattmesh.errors import InputInvalid, RetryLater

log = logging.getLogger(__name__)

CHILD = (sys.executable, "-m", "wattmesh.controller.planner.child")
PIECE = 1 << 16
MOST = 1 << 24
"""The most bytes in an answer; a plan has some ten thousand."""

GRACE_S = 2.0
"""How long a child that closed its socket may take to end."""

JOIN_S, KILL_S = 5.0, 0.05
"""Seconds to wait for the end of the thread that asks, and between two kills of the child."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The planner's arrays are small, and each thread would cost memory of its own."""


class PlannerFailed(RetryLater):
    """The planning process did not answer; the price rule decides for runs meanwhile."""


class Answered(Protocol):
    """What names the question that it answers."""

    @property
    def digest(self) -> str:
        """Of the question."""
        ...


Answer = TypeVar("Answer", bound=Answered)


class PlanProcess:
    """One child at a time. Used by one thread; only `kill` may be called from others."""

    def __init__(self, command: Sequence[str] = CHILD) -> None:
        """Keep the command to start, to which our process id is appended. Start nothing yet."""
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return self._child.pid if self._child is not None else None

    def ask(self, line: bytes, limit_s: float) -> bytes:
        """Send one line and return the line that comes back.

        Raises:
            PlannerFailed: no answer came in time, or the child could not be started or ended
                itself.
        """
        until_s = time.monotonic() + limit_s
        try:
            pipe = self._pipe or self._start()
            pipe.settimeout(limit_s)
            pipe.sendall(line)
            answer = _line(pipe, until_s)
        except TimeoutError:
            self.end()
            raise PlannerFailed(f"no plan came within {limit_s:g} s") from None
        except (OSError, EOFError) as error:
            status = self.end(grace_s=GRACE_S)
            ended = f"ended with status {status}" if status is not None else "could not be started"
            raise PlannerFailed(f"the planning process {ended} ({error})") from error
        except BaseException:
            self.end()
            raise
        return answer

    def answer(
        self, line: bytes, limit_s: float, read: Callable[[bytes], Answer], digest: str
    ) -> Answer:
        """Ask, and read an answer to the question of this digest.

        Raises:
            PlannerFailed: as `ask`, or what came is no such answer; the child was ended.
        """
        told = self.ask(line, limit_s)
        try:
            found = read(told)
        except InputInvalid as error:
            self.end()
            raise PlannerFailed(f"the planning process answers nonsense ({error})") from error
        if found.digest != digest:
            self.end()
            raise PlannerFailed("the planning process answered another question than was asked")
        return found

    def kill(self) -> None:
        """End the child from another thread; `ask` then raises that it ended."""
        child = self._child
        if child is not None:
            child.kill()

    def end_thread(self, thread: threading.Thread | None, who: str) -> None:
        """Kill the child until the thread that asks it has ended."""
        until_s = time.monotonic() + JOIN_S
        while thread is not None and thread.is_alive():
            # Repeated: the thread may be about to start the process.
            self.kill()
            thread.join(KILL_S)
            if time.monotonic() > until_s:
                log.warning("the %s did not end in %.0f s", who, JOIN_S)
                return

    def end(self, *, grace_s: float = 0.0) -> int | None:
        """End the child; give the status it ended with.

        Args:
            grace_s: wait for a child that closed its socket, to learn its own status.
        """
        pipe, child, self._pipe, self._child = self._pipe, self._child, None, None
        if pipe is not None:
            pipe.close()
        if child is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return child.wait(grace_s)
        child.kill()
        return child.wait()

    def _start(self) -> socket.socket:
        """Start the child.

        Raises:
            OSError: it could not be started.
        """
        ours, theirs = socket.socketpair()
        try:
            self._child = subprocess.Popen(
                (*self._command, str(os.getpid())),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        log.debug("planning process %d started", self._child.pid)
        self._pipe = ours
        return ours


def _line(pipe: socket.socket, until_s: float) -> bytes:
    """Read one line.

    Raises:
        TimeoutError: the line was not complete in time.
        EOFError: the other side closed the socket, or its line is longer than `MOST` bytes.
    """
    pieces, size = [], 0
    while size <= MOST:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        pipe.settimeout(left_s)
        piece = pipe.recv(PIECE)
        if not piece:
            raise EOFError("it hung up")
        pieces.append(piece)
        size += len(piece)
        if piece.endswith(b"\n"):
            return b"".join(pieces)
    raise EOFError(f"its answer has more than {MOST} bytes")
