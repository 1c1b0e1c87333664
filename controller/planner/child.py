"""The planning process: reads questions, answers them with plans, ends with the daemon.

    python -m wattmesh.controller.planner.child PARENT

It is a child of the daemon, with a socket as its standard input, so that numpy, its memory and its
minutes of arithmetic stay out of the daemon. It needs no wall clock, no journal and no settings.

Invariant: it never outlives the daemon that started it, however that one ends.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress

from wattmesh.controller.planner.wire import (
    JointResult,
    SolveResult,
    read_joint_request,
    read_request,
    to_line,
)
from wattmesh.controller.process.life import end_with
from wattmesh.policies.cluster.many_runs import answered_together
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.planner.problem import NoPlan

NICER = 10
"""Plans can wait; other work on the machine must not wait for them."""


JOINT = b'{"joint":'
"""How a question about all runs begins."""


def answer(line: bytes) -> bytes:
    """Answer one question."""
    if line.startswith(JOINT):
        return answer_joint(line)
    asked = read_request(line)
    began_s = time.perf_counter()
    found = answered(asked.question, asked.before)
    seconds, digest = time.perf_counter() - began_s, asked.question.digest
    if isinstance(found, NoPlan):
        return to_line(SolveResult(digest=digest, seconds=seconds, reason=found.reason))
    return to_line(SolveResult(digest=digest, seconds=seconds, plan=found))


def answer_joint(line: bytes) -> bytes:
    """Answer a question about all runs, in the time that it names."""
    asked = read_joint_request(line)
    began_s, digest = time.perf_counter(), asked.joint.digest

    def more(share: float) -> bool:
        return time.perf_counter() < began_s + share * asked.solve_s

    found = answered_together(asked.joint, more)
    seconds = time.perf_counter() - began_s
    if isinstance(found, NoPlan):
        return to_line(JointResult(digest=digest, seconds=seconds, reason=found.reason))
    return to_line(JointResult(digest=digest, seconds=seconds, answer=found))


def main() -> None:
    """Answer until the daemon closes the socket."""
    end_with(int(sys.argv[1]), signal.SIGKILL)
    with suppress(OSError):
        os.nice(NICER)
    with socket.socket(fileno=sys.stdin.fileno()) as pipe, pipe.makefile("rwb") as lines:
        for line in lines:
            lines.write(answer(line))
            lines.flush()


if __name__ == "__main__":
    main()
