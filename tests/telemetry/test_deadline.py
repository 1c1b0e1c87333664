"""Calls with a deadline: one at a time, late answers thrown away."""

import threading
import time

import pytest

from wattmesh.telemetry.deadline import Overdue, Worker


def test_an_answer_and_an_error_come_through() -> None:
    """What a call returns or raises in time is what the caller gets."""
    worker = Worker("test")
    assert worker.call(lambda: 7, 5) == 7
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0, 5)
    assert worker.call(lambda: 8, 5) == 8
    worker.close()


def test_a_timeout_of_the_work_itself_is_not_ours() -> None:
    """A TimeoutError that the work raises is passed on as it is, not taken for a hang."""

    def work() -> None:
        raise TimeoutError("its own")

    worker = Worker("test")
    with pytest.raises(TimeoutError, match="its own"):
        worker.call(work, 5)
    worker.close()


def test_a_hanging_call_fails_the_next_ones_at_once_and_its_late_answer_is_dropped() -> None:
    """While a call hangs every further one is refused at once; afterwards answers are fresh."""
    worker, gate = Worker("test"), threading.Event()
    with pytest.raises(Overdue):
        worker.call(lambda: gate.wait(30) and "late", 0.05)
    began_s = time.monotonic()
    with pytest.raises(Overdue) as refused:
        worker.call(lambda: "fresh", 5)
    assert time.monotonic() - began_s < 4
    assert refused.value.waited_s >= 0.05
    gate.set()
    deadline_s, answer = time.monotonic() + 10, ""
    while not answer and time.monotonic() < deadline_s:
        try:
            answer = worker.call(lambda: "fresh", 5)
        except Overdue:
            continue
    assert answer == "fresh"
    worker.close()


def test_a_hanging_call_does_not_hold_the_process() -> None:
    """The thread is a daemon thread: a hung driver cannot keep the process from ending."""
    worker, gate = Worker("held-by-nobody"), threading.Event()
    with pytest.raises(Overdue):
        worker.call(lambda: gate.wait(30), 0.05)
    (thread,) = [each for each in threading.enumerate() if each.name == "held-by-nobody"]
    assert thread.daemon
    gate.set()
    worker.close()
