"""The planning process: answers like the planner, never hangs, never outlives the daemon."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders.observations import HOUR, observation, run, slots
from tests.laws.processes import HEAVY, loaded_after
from tests.planning import children
from tests.planning.children import LIMIT_S, line, process, runs, wait_gone
from wattmesh.controller.planner.process import PlannerFailed, PlanProcess
from wattmesh.controller.planner.wire import read_request, read_result
from wattmesh.errors import InputInvalid
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.planner.problem import NoPlan

DAEMON = """\
import os, sys, threading
from tests.planning.children import LIMIT_S, line
from tests.builders.observations import observation
from wattmesh.controller.planner.process import CHILD, PlanProcess
process = PlanProcess({command})
def work():
    process.ask(line(observation()), LIMIT_S)
    print(process.pid, flush=True)
    threading.Event().wait()
threading.Thread(target=work).start()
"""
"""A daemon in small: it asks once from a thread, names its child, and waits."""

DEAF = """\
import socket, threading
pipe = socket.socket(fileno=0)
pipe.recv(1 << 20)
pipe.sendall(b"{}\\n")
threading.Event().wait()
"""
"""A child that does not end with its parent."""


def test_the_answer_is_the_planners_to_the_last_digit() -> None:
    """Through the process a question has the plan it has here, and the next ask meets it again."""
    seen = observation()
    moved = observation(run(tokens=5_000_000), grid=slots([210.123456789] * 5 + [90.0] * 9))
    with process() as planner:
        first = read_result(planner.ask(line(seen), LIMIT_S))
        pid = planner.pid
        second = read_result(planner.ask(line(moved, before=first.plan), LIMIT_S))
        assert planner.pid == pid
    assert first.plan == answered(children.asked(seen))
    assert second.plan == answered(children.asked(moved), first.plan)
    assert first.digest != second.digest


def test_work_that_does_not_fit_has_a_reason_and_no_plan() -> None:
    """No plan is an answer like any other."""
    seen = observation(run(tokens_total=90_000_000))
    with process() as planner:
        told = read_result(planner.ask(line(seen), LIMIT_S))
    found = answered(children.asked(seen))
    assert isinstance(found, NoPlan)
    assert told.plan is None
    assert told.reason == found.reason != ""


def test_what_is_no_question_and_no_answer_is_refused() -> None:
    """Cut, empty or of another kind: an error that names what is missing."""
    whole = line(observation())
    for broken in (b"", whole[: len(whole) // 2], b"[]", b'{"question": {}}'):
        with pytest.raises(InputInvalid, match="no question"):
            read_request(broken)
    with pytest.raises(InputInvalid, match="no answer: digest"):
        read_result(b'{"seconds": 1.0}')
    negative = whole.replace(b'"tokens":', b'"tokens":-')
    with pytest.raises(InputInvalid):
        read_request(negative)


def test_a_child_that_is_killed_mid_plan_is_replaced() -> None:
    """The failure says how it ended, and the next question starts a fresh one.

    It is stopped before, so that it dies with the question in its hands.
    """
    seen = observation()
    with process() as planner:
        planner.ask(line(seen), LIMIT_S)
        pid = planner.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PlannerFailed, match="ended with status -9"):
            planner.ask(line(seen), LIMIT_S)
        assert read_result(planner.ask(line(seen), LIMIT_S)).plan is not None
        assert planner.pid != pid


def test_a_child_that_hangs_is_ended() -> None:
    """Past its limit it is gone, not only given up."""
    with process() as planner:
        planner.ask(line(observation()), LIMIT_S)
        pid = planner.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(PlannerFailed, match=r"no plan came within 0\.2 s"):
            planner.ask(line(observation()), 0.2)
        assert planner.pid is None
        assert not runs(pid)


def test_a_question_larger_than_the_pipe_does_not_hang_on_a_dead_child() -> None:
    """Half a megabyte to a stopped child is given up at the limit like anything else."""
    long = slots([100.0 + n % 50 for n in range(20_000)], seconds=HOUR / 4)
    seen = observation(run(deadline=long[-1].end, tokens_total=10_000_000_000), grid=long)
    padded = line(seen).rstrip() + b" " * 2_000_000 + b"\n"
    with process() as planner:
        planner.ask(line(observation()), LIMIT_S)
        assert planner.pid is not None
        os.kill(planner.pid, signal.SIGSTOP)
        with pytest.raises(PlannerFailed, match="no plan came"):
            planner.ask(padded, 0.2)


def test_an_answer_without_end_is_cut_off() -> None:
    """The daemon's memory is not the child's to fill."""
    with process(children.ENDLESS) as planner, pytest.raises(PlannerFailed, match="more than"):
        planner.ask(line(observation()), LIMIT_S)


def test_a_child_that_cannot_live_is_a_failure_like_others() -> None:
    """Not to be started, or gone at once: said, and nothing is left behind."""
    missing = PlanProcess(("/no/such/program",))
    with pytest.raises(PlannerFailed, match="could not be started"):
        missing.ask(line(observation()), LIMIT_S)
    assert missing.pid is None
    with process("raise SystemExit(3)") as planner:
        with pytest.raises(PlannerFailed, match="ended with status 3"):
            planner.ask(line(observation()), LIMIT_S)
        assert planner.pid is None


def conducted(command: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the daemon in small; give it and its child's process id."""
    program = DAEMON.format(command=command)
    daemon = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    return daemon, int(daemon.stdout.readline())


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_daemon_leaves_no_orphan(stopped: bool) -> None:
    """SIGKILL of the daemon ends the child, even one that is stopped and reads no more."""
    daemon, child = conducted("")
    try:
        assert runs(child)
        if stopped:
            os.kill(child, signal.SIGSTOP)
        daemon.kill()
        wait_gone(child)
    finally:
        daemon.kill()
        daemon.communicate()


def test_an_orphan_would_be_seen() -> None:
    """Sabotaged twin: a child that does not follow its parent lives on after it."""
    daemon, child = conducted(f"(sys.executable, '-c', {DEAF!r})")
    try:
        daemon.kill()
        daemon.communicate()
        assert runs(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_daemon_never_loads_numpy_to_have_plans() -> None:
    """A whole plan by the worker's own classes leaves the asking process as light as before."""
    asks = (
        "from tests.planning.children import LIMIT_S, line, process\n"
        "from tests.builders.observations import observation\n"
        "import wattmesh.controller.planner.worker\n"
        "from wattmesh.controller.planner.wire import read_result\n"
        "with process() as planner:\n"
        "    assert read_result(planner.ask(line(observation()), LIMIT_S)).plan"
    )
    assert not loaded_after(asks) & HEAVY


def test_numpy_in_the_daemon_would_be_seen() -> None:
    """Sabotaged twin: whoever solves where it asks has loaded it."""
    assert "numpy" in loaded_after("import wattmesh.policies.planner.planning") & HEAVY


def test_the_child_is_nice_and_holds_nothing_of_the_daemon() -> None:
    """It waits for all others, and has no open file but its pipe and where it says errors."""
    with process() as planner:
        planner.ask(line(observation()), LIMIT_S)
        assert planner.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, planner.pid) >= 10
        inherited = {int(each.name) for each in Path(f"/proc/{planner.pid}/fd").iterdir()}
    assert inherited <= {0, 1, 2, 3, 4}
