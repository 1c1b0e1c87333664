"""What the guard goes by, from reports to the run's view: speeds of points, seconds of switches."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders.cycles import CATALOGUE, report, step_switch, turn, view
from tests.builders.runs import A, B, after, register
from tests.cycle.test_cycle import journal
from tests.journal.test_outages import end
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import Mode
from wattmesh.policies.switch_time import SwitchKind
from wattmesh.reconfig.switch import AT_PACE, SwitchState

__all__ = ["journal"]


def train(journal: Journal, begin: int, end: int, *, every: int = 20, speed: float = 1.0) -> None:
    """Report steps and look, second by second; `speed`: steps in a second."""
    for at in range(begin, end + 1, every):
        report(journal, step=round(at * speed), at=after(at))
        turn(journal, mode=Mode.OBSERVE, at=after(at))


def last_word(journal: Journal, state: SwitchState, **evidence: Any) -> None:
    """The run's last report on its switch, or a repeat of it."""
    layout = B if state is SwitchState.CONFIRMED else A
    step_switch(journal, state, at_s=100.0, layout=layout, evidence=evidence)


@pytest.mark.parametrize("state", [SwitchState.CONFIRMED, SwitchState.ROLLED_BACK])
def test_a_switch_is_told_first_and_complete_once_the_run_says_that_it_is_at_its_pace(
    journal: Journal, state: SwitchState
) -> None:
    """The repeat adds that, and moves nothing else, not the time at which it was over."""
    turn(journal)
    last_word(journal, state, total_s=60.0)
    (told,) = view(journal, after(150)).switches
    assert (told.origin, told.target, told.kind) == ("A", "B", SwitchKind.IN_PLACE)
    assert (told.told_s, told.at_pace_s, told.ago_s) == (60.0, None, 50.0)
    assert told.failed is (state is SwitchState.ROLLED_BACK)
    last_word(journal, state, total_s=1.0, **{AT_PACE: 1800.0})
    assert view(journal, after(150)).switches == (replace(told, at_pace_s=1800.0),)
    assert journal.switches.open("r") is None


@pytest.mark.parametrize("value", [-1.0, 0.0, "soon", True, None])
def test_a_pace_that_is_no_time_is_not_taken(journal: Journal, value: object) -> None:
    """Nor is one told of another state, though the number is good."""
    turn(journal)
    last_word(journal, SwitchState.CONFIRMED, total_s=60.0)
    last_word(journal, SwitchState.CONFIRMED, **{AT_PACE: value})
    last_word(journal, SwitchState.ROLLED_BACK, **{AT_PACE: 70.0})
    assert view(journal, after(150)).switches[0].at_pace_s is None


def test_a_speed_is_measured_over_whole_intervals_and_noted_when_twice_as_long(
    journal: Journal,
) -> None:
    """From the first look on: 40 s per interval of 20 steps at half the catalogue's speed."""
    train(journal, 20, 40, speed=0.5)
    assert view(journal, after(40)).speeds == ()
    train(journal, 60, 60, speed=0.5)
    (speed,) = view(journal, after(60)).speeds
    assert (speed.point, round(speed.tokens_per_s, 6), speed.steps) == ("A", 500.0, 20)
    train(journal, 80, 80, speed=0.5)
    assert view(journal, after(80)).speeds == (speed,)
    train(journal, 100, 100, speed=0.5)
    assert view(journal, after(100)).speeds[0].steps == 40


def test_nothing_is_measured_while_a_switch_is_under_way_or_not_complete(
    journal: Journal,
) -> None:
    """Ordered it still trains; then it stands, and until the catalogue's 30 s have passed may."""
    turn(journal)
    train(journal, 20, 40)
    assert [each.point for each in view(journal, after(40)).speeds] == ["A"]
    step_switch(journal, SwitchState.CHECKPOINTING)
    turn(journal, mode=Mode.OBSERVE, at=after(41))
    row = journal.runs.find("r", after(41))
    assert row is not None
    assert '"stay":null' in row.speeds
    last_word(journal, SwitchState.CONFIRMED, total_s=5.0)
    for at, there in ((110, False), (124, False), (126, True)):
        report(journal, step=at, layout=B, at=after(at))
        turn(journal, mode=Mode.OBSERVE, at=after(at))
        row = journal.runs.find("r", after(at))
        assert row is not None
        assert ('"point":"B"' in row.speeds) is there


@pytest.mark.parametrize(
    ("ours", "host", "kept"), [(True, "n1", True), (False, "n1", False), (True, "n2", False)]
)
def test_what_was_measured_holds_for_the_machines_it_was_measured_on(
    journal: Journal, ours: bool, host: str, kept: bool
) -> None:
    """A restart that we ordered keeps it; an outage and another host do not."""
    launch(journal, 2, "n1", 10)
    train_as(journal, 2, 20, 60)
    assert view(journal, after(60)).speeds
    end(journal, 2, after(61), "restart" if ours else "failed: a node was lost")
    launch(journal, 3, host, 90)
    assert bool(view(journal, after(90)).speeds) is kept


def launch(journal: Journal, attempt: int, host: str, seconds: float) -> None:
    """Start the run anew."""
    register(
        journal,
        now=after(seconds),
        plan=RunPlan(catalogue=CATALOGUE),
        incarnation=f"i{attempt}",
        attempt=attempt,
        boundary_every=20,
        gpus=(),
        host=host,
        supersedes=f"i{attempt - 1}",
    )


def train_as(journal: Journal, attempt: int, begin: int, end: int) -> None:
    """Report as another launch, and look."""
    for at in range(begin, end + 1, 20):
        report(journal, step=at, at=after(at), attempt=attempt)
        turn(journal, mode=Mode.OBSERVE, at=after(at))
