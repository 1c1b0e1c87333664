"""Noticing that the wall clock was stepped."""

import pytest

from tests.daemon.clocks import SteppedClock
from wattmesh.controller.process.wall_clock import ClockReading, step_sentence, stepped_s


def look(clock: SteppedClock) -> ClockReading:
    """Look at both clocks."""
    return ClockReading(now=clock.wall, monotonic_s=clock.monotonic_s)


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 2.5, -2.5])
def test_a_step_is_told_with_its_length(step_s: float) -> None:
    """A step either way is told to the second."""
    clock = SteppedClock()
    before = look(clock)
    clock.pass_s(5.0)
    clock.step_wall(step_s)
    assert stepped_s(before, look(clock)) == pytest.approx(step_s)


@pytest.mark.parametrize("drift_s", [0.0, 0.4, -0.4, 1.9])
def test_drift_and_slewing_are_no_steps(drift_s: float) -> None:
    """The twin: what a time service does gently is not reported, nor is the first look."""
    clock = SteppedClock()
    before = look(clock)
    clock.pass_s(3600.0)
    clock.step_wall(drift_s)
    assert stepped_s(before, look(clock)) == 0.0
    assert stepped_s(None, look(clock)) == 0.0


def test_the_sentence_says_which_way_and_what_to_do() -> None:
    """A person reads how far, which way, and whether to worry."""
    said = step_sentence(-3600.0, SteppedClock().wall)
    head = "The wall clock was stepped back by 1 h (3600 s) to 2026-11-20 12:00"
    assert said.startswith(head)
    assert "time service" in said
