"""The planning process: reads questions, answers them with plans, ends with the daemon.

    python -m wattmesh.controller.planner.child PARENT

A child of the daemon on a socket at its standard input, so that numpy, its memory and its minutes
of arithmetic stay out of the daemon. It knows no clock time, no journal and no settings.

Invariant: it never outlives the daemon that started it, however that one ends.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from contextlib import suppress

from wattmesh.controller.planner.wire import Told, read_asked, written
from wattmesh.policies.planner.problem import NoPlan
from wattmesh.policies.planning import solved

PR_SET_PDEATHSIG = 1
"""Linux, prctl(2)."""

NICER = 10
"""Plans may wait; what else runs on the machine may not wait for them."""


def answer(line: bytes) -> bytes:
    """Answer one question."""
    asked = read_asked(line)
    began_s = time.perf_counter()
    found = solved(asked.question, asked.before)
    seconds, digest = time.perf_counter() - began_s, asked.question.digest
    if isinstance(found, NoPlan):
        return written(Told(digest=digest, seconds=seconds, reason=found.reason))
    return written(Told(digest=digest, seconds=seconds, plan=found))


def end_with(parent: int) -> None:
    """Let the kernel end this process with its parent; end now if that has happened already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    """Answer until the daemon hangs up."""
    end_with(int(sys.argv[1]))
    with suppress(OSError):
        os.nice(NICER)
    with socket.socket(fileno=sys.stdin.fileno()) as pipe, pipe.makefile("rwb") as lines:
        for line in lines:
            lines.write(answer(line))
            lines.flush()


if __name__ == "__main__":
    main()
