"""Loops on monotonic time, driven by a clock that is stepped by hand."""

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.clocks import SteppedClock
from tests.daemon.waiting import wait_for
from wattmesh.controller.process.loops import Loop
from wattmesh.errors import SourceUnavailable


class Work:
    """A body that takes as long as it is told, and fails when told."""

    def __init__(self, clock: SteppedClock) -> None:
        """Begin with work that takes no time."""
        self._clock = clock
        self.took_s = 0.0
        self.error: Exception | None = None
        self.began_at: list[float] = []

    def __call__(self) -> None:
        """Do one piece of work."""
        self.began_at.append(self._clock.monotonic_s)
        self._clock.pass_s(self.took_s)
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that stands still."""
    return SteppedClock()


@pytest.fixture
def work(clock: SteppedClock) -> Work:
    """Work on that clock."""
    return Work(clock)


def turns(loop: Loop, clock: SteppedClock, count: int) -> None:
    """Run turns as the thread does: turn, wait, turn."""
    for _ in range(count):
        clock.pass_s(loop.turn())


def test_a_loop_never_drifts(clock: SteppedClock, work: Work) -> None:
    """Turns stay on the grid however long each of them takes."""
    loop = Loop("l", 5.0, work, clock.clock)
    for took_s in (0.0, 1.5, 4.99, 0.2, 3.0):
        work.took_s = took_s
        turns(loop, clock, 1)
    assert work.began_at == [1000.0, 1005.0, 1010.0, 1015.0, 1020.0]
    assert loop.state.overruns == 0


def test_an_overrun_is_counted_and_followed_at_once(clock: SteppedClock, work: Work) -> None:
    """After a turn of 12 s every 5 s the next follows at once, and a new grid begins there."""
    loop = Loop("l", 5.0, work, clock.clock)
    work.took_s = 12.0
    assert loop.turn() == 0.0
    work.took_s = 0.0
    turns(loop, clock, 2)
    assert work.began_at == [1000.0, 1012.0, 1017.0]
    assert loop.state.overruns == 1


def test_a_woken_turn_is_an_extra_one(clock: SteppedClock, work: Work) -> None:
    """Waking a loop early leaves its grid where it was."""
    loop = Loop("l", 5.0, work, clock.clock)
    loop.turn()
    clock.pass_s(2.0)
    assert loop.turn() == pytest.approx(3.0)
    clock.pass_s(3.0)
    assert loop.turn() == pytest.approx(5.0)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_stepped_wall_clock_moves_no_turn(clock: SteppedClock, work: Work, step_s: float) -> None:
    """An hour either way on the wall clock changes nothing: turns wait on monotonic time."""
    loop = Loop("l", 5.0, work, clock.clock)
    clock.pass_s(loop.turn())
    clock.step_wall(step_s)
    turns(loop, clock, 2)
    assert work.began_at == [1000.0, 1005.0, 1010.0]


def test_a_paused_machine_is_not_made_up_for(clock: SteppedClock, work: Work) -> None:
    """After a long gap one turn follows, not all that were missed."""
    loop = Loop("l", 5.0, work, clock.clock)
    clock.pass_s(loop.turn() + 100.0)
    turns(loop, clock, 2)
    assert work.began_at == [1000.0, 1105.0, 1110.0]


@given(st.lists(st.floats(0.0, 20.0, width=32), max_size=30), st.floats(0.5, 10.0, width=32))
def test_waits_lie_between_nothing_and_one_period(took: list[float], every_s: float) -> None:
    """Whatever turns take, the wait after one is never negative and never above one period."""
    clock = SteppedClock()
    work = Work(clock)
    loop = Loop("l", every_s, work, clock.clock)
    for each in took:
        work.took_s = each
        wait_s = loop.turn()
        assert 0.0 <= wait_s <= every_s
        clock.pass_s(wait_s)
    assert loop.state.overruns == sum(each > every_s for each in took)


def test_an_outside_failure_is_progress_and_said_once(
    clock: SteppedClock, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """A source that stays away is one line in the log, and the loop counts as alive."""
    loop = Loop("sampler", 5.0, work, clock.clock)
    work.error = SourceUnavailable("nvml does not answer")
    caplog.set_level(logging.INFO)
    turns(loop, clock, 3)
    assert loop.state.failures == 3
    assert loop.state.trouble == "nvml does not answer"
    assert loop.state.last_progress_s == 1010.0
    assert len(caplog.records) == 1
    for tried in range(3):
        work.error = SourceUnavailable(f"it failed {tried} times and rests for {9.5 - tried} s")
        turns(loop, clock, 1)
        work.error = SourceUnavailable("nvml does not answer")
        turns(loop, clock, 1)
    assert len(caplog.records) == 2
    work.error = None
    turns(loop, clock, 2)
    assert loop.state.trouble == ""
    assert caplog.messages[2:] == ["sampler: works again"]


def test_a_bug_ends_a_turn_and_not_the_loop(
    clock: SteppedClock, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    """An error nobody foresaw is logged as a bug, counted, and is no progress."""
    loop = Loop("cycle", 5.0, work, clock.clock)
    turns(loop, clock, 1)
    work.error = ZeroDivisionError("oops")
    turns(loop, clock, 2)
    assert "please report it" in caplog.text
    assert loop.state.bugs == 2
    assert loop.state.last_progress_s == 1000.0
    work.error = None
    loop.turn()
    assert loop.state.last_progress_s == 1015.0


def test_a_thread_turns_until_stopped() -> None:
    """A started loop turns by itself, at once when woken, and ends when told."""
    began = threading.Semaphore(0)
    loop = Loop("l", 3600.0, began.release)
    loop.start()
    assert began.acquire(timeout=10)
    loop.wake()
    assert began.acquire(timeout=10)
    assert loop.stop(10.0)
    assert loop.state.turns == 2


def test_a_turn_that_hangs_does_not_hang_the_stop() -> None:
    """Stopping gives up on a body that does not end, and says so."""
    release = threading.Event()
    loop = Loop("l", 1.0, lambda: assert_set(release))
    loop.start()
    assert not loop.stop(0.05)
    release.set()
    assert loop.stop(10.0)


def assert_set(event: threading.Event) -> None:
    """Wait for the test to let go."""
    assert event.wait(20.0)


def test_a_new_pace_holds_at_once() -> None:
    """A reload that shortens the period does not wait for the old one to pass."""
    count = []
    loop = Loop("l", 3600.0, lambda: count.append(1))
    loop.start()
    wait_for(lambda: loop.state.turns == 1, "the first turn")
    loop.pace(0.01)
    wait_for(lambda: loop.state.turns > 3, "turns at the new pace")
    assert loop.stop(10.0)
