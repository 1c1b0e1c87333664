"""A call that hangs is left behind after its time; one that ends gives what it gave or raised."""

import threading

import pytest

from wattmesh.reconfig.bounded import Attempt, within


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
