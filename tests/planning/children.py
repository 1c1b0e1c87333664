"""Planning processes that misbehave, as programs; and what of a process is left."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.waiting import wait_for
from wattmesh.controller.planner.process import PlanProcess
from wattmesh.controller.planner.wire import SolveRequest, to_line
from wattmesh.policies.decision import Observation, PlanView
from wattmesh.policies.planner.mpc import Question, question

LIMIT_S = 20.0
"""For a plan that is to come; no test waits for it to pass."""

NONSENSE = """\
import socket
pipe = socket.socket(fileno=0)
pipe.recv(1 << 20)
pipe.sendall(b"no JSON at all\\n")
pipe.recv(1)
"""

ENDLESS = """\
import socket
pipe = socket.socket(fileno=0)
pipe.recv(1 << 20)
while True:
    pipe.sendall(b"x" * 100_000)
"""

ANOTHER = """\
from wattmesh.controller.planner import child as plan_child
from wattmesh.controller.planner.wire import read_result, to_line
from dataclasses import replace
answer = plan_child.answer
plan_child.answer = lambda line: to_line(replace(read_result(answer(line)), digest="another"))
plan_child.main()
"""
"""The real planner, which says that it answers another question."""

CRASHES_AT = """\
from wattmesh.controller.planner import child as plan_child
answer = plan_child.answer
def spoilt(line):
    if b"{word}" in line:
        raise SystemExit(7)
    return answer(line)
plan_child.answer = spoilt
plan_child.main()
"""
"""The real planner, which one question kills."""


@contextmanager
def process(program: str = "") -> Iterator[PlanProcess]:
    """Give a planning process, or a program in its place; it is gone afterwards."""
    made = PlanProcess((sys.executable, "-c", program)) if program else PlanProcess()
    try:
        yield made
    finally:
        made.kill()
        made.end()


def asked(seen: Observation, run: int = 0) -> Question:
    """Give the question of a run."""
    found = question(seen, seen.runs[run])
    assert found is not None
    return found


def line(seen: Observation, before: PlanView | None = None) -> bytes:
    """Give the question of the first run as it is sent."""
    return to_line(SolveRequest(question=asked(seen), before=before))


def runs(pid: int) -> bool:
    """Say whether a process still runs; one that waits to be buried does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def wait_gone(pid: int) -> None:
    """Wait until a process has ended."""
    wait_for(lambda: not runs(pid), f"the end of process {pid}")
