"""A call that hangs is left behind after its time; one that ends gives what it gave or raised."""

import threading

import pytest

from tests.hook.harness import until
from wattmesh.reconfig.launch.failures.bounded import Attempt, within
from wattmesh.reconfig.launch.in_step import Disk


def test_a_call_that_hangs_gives_the_default() -> None:
    """And the caller goes on while it still hangs."""
    never = threading.Event()
    assert within(0.05, never.wait, False) is False
    never.set()


def test_a_call_that_ends_gives_its_answer_and_its_error() -> None:
    """As if it had been called here."""
    assert within(30.0, lambda: 7, 0) == 7
    with pytest.raises(ZeroDivisionError):
        within(30.0, lambda: 1 // 0, 0)


def test_a_call_may_be_waited_for_again() -> None:
    """What aborts it may come in between."""
    free = threading.Event()
    attempt = Attempt(free.wait)
    assert not attempt.done(0.05)
    free.set()
    assert attempt.done(30.0)
    assert attempt.answer(False)


def test_a_disk_that_hangs_is_waited_for_once_and_used_again_when_it_answers() -> None:
    """What came before is not piled up behind; errors of a call are the caller's."""
    disk, answers = Disk(0.05), threading.Event()
    with pytest.raises(TimeoutError, match=r"does not answer within 0\.05 s"):
        disk.do(answers.wait)
    with pytest.raises(TimeoutError, match="still does not answer"):
        disk.do(lambda: 1)
    answers.set()
    disk.patience_s = 60.0
    until(lambda: _answered(disk), "the call came back")
    with pytest.raises(ZeroDivisionError):
        disk.do(lambda: 1 // 0)
    disk.patience_s = None
    assert disk.do(threading.current_thread) is threading.current_thread()


def _answered(disk: Disk) -> bool:
    try:
        return disk.do(lambda: True)
    except TimeoutError:
        return False
