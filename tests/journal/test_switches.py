"""The intent row is the order; reports move it forwards or change nothing."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from tests.builders.runs import T0, UID, B, after, order, put_order, register, transition
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import Fenced, InputInvalid, Refused
from wattmesh.reconfig.switch import REFUSED, SwitchState
from wattmesh.reconfig.wire.messages import SwitchMode

STEPS = (
    SwitchState.ANNOUNCED,
    SwitchState.CHECKPOINTING,
    SwitchState.REBUILDING,
    SwitchState.LOADED,
    SwitchState.VERIFIED,
    SwitchState.CONFIRMED,
)


@pytest.fixture
def epoch(journal: Journal) -> int:
    """Lead, with a registered run."""
    register(journal)
    epoch = journal.leadership.acquire("one", 60.0)
    assert epoch == 1
    return epoch


def test_an_order_comes_back_as_it_was_written(journal: Journal, epoch: int) -> None:
    """Grams are kept as whole micrograms."""
    assert put_order(journal, order(epoch))
    row = journal.switches.open("r")
    assert row is not None
    assert row.order == order(epoch)
    assert (row.predicted_ug, row.switch_cost_ug) == (500_000, 100_000)


def test_a_run_has_one_open_switch(journal: Journal, epoch: int) -> None:
    """A second order is not written; after the end of the first it is."""
    assert put_order(journal, order(epoch))
    assert not put_order(journal, order(epoch, "p2"))
    assert not put_order(journal, order(epoch))
    journal.switches.close("p1", SwitchState.ABANDONED, detail="late", now=T0, epoch=epoch)
    assert put_order(journal, order(epoch, "p2"))


def test_no_order_without_the_leaders_epoch(journal: Journal, epoch: int) -> None:
    """A daemon that lost its lease writes nothing and ends nothing."""
    put_order(journal, order(epoch))
    journal.leadership.release("one", epoch)
    assert journal.leadership.acquire("two", 60.0) == epoch + 1
    with pytest.raises(Fenced, match="epoch 1 is over"):
        put_order(journal, order(epoch, "p2", run="q"))
    with pytest.raises(Fenced):
        journal.switches.close("p1", SwitchState.FAILED, detail="", now=T0, epoch=epoch)
    assert journal.switches.open("q") is None
    assert journal.switches.open("r") is not None


@pytest.mark.parametrize("prefix", range(len(STEPS) + 1))
def test_any_prefix_of_reports_may_be_sent_again(journal: Journal, epoch: int, prefix: int) -> None:
    """The crash test: killed after any report, everything is sent again from the start."""
    put_order(journal, order(epoch))
    for state in itertools.chain(STEPS[:prefix], STEPS):
        journal.switches.record(transition(state), owner_uid=UID, now=after(1))
    row = journal.switches.history("r")[0]
    assert row.state is SwitchState.CONFIRMED
    assert row.total_s == 1.5
    assert journal.switches.open("r") is None
    assert [each.state for each in journal.switches.transitions("p1")].count(STEPS[0]) == 1
    run = journal.runs.find("r", after(1))
    assert run is not None
    assert run.layout == B


def test_reports_of_strangers_and_unknown_switches_are_refused(
    journal: Journal, epoch: int
) -> None:
    """By owner, by incarnation, by name."""
    put_order(journal, order(epoch))
    report = transition(SwitchState.ANNOUNCED)
    with pytest.raises(Refused):
        journal.switches.record(report, owner_uid=UID + 1, now=T0)
    old = transition(SwitchState.ANNOUNCED, attempt=0)
    with pytest.raises(Fenced):
        journal.switches.record(old, owner_uid=UID, now=T0)
    with pytest.raises(InputInvalid, match="has no switch p9"):
        journal.switches.record(transition(STEPS[0], "p9"), owner_uid=UID, now=T0)


def failures(journal: Journal) -> int:
    """Failed switches of the run in a row."""
    row = journal.runs.find("r", after(0))
    assert row is not None
    return journal.switches.histories().of("r").failures_in_a_row(row.thawed_at)


def test_failures_in_a_row_end_with_a_success_or_a_thaw(journal: Journal, epoch: int) -> None:
    """Abandoned orders are nobody's failure."""
    ends = [
        (SwitchState.FAILED, 1),
        (SwitchState.ABANDONED, 1),
        (SwitchState.ROLLED_BACK, 2),
        (SwitchState.CONFIRMED, 0),
        (SwitchState.FAILED, 1),
    ]
    for n, (state, count) in enumerate(ends):
        put_order(journal, order(epoch, f"p{n}"), after(n))
        journal.switches.record(transition(state, f"p{n}"), owner_uid=UID, now=after(n))
        assert failures(journal) == count
    journal.runs.thaw("r", now=after(10))
    assert failures(journal) == 0


def test_what_a_launcher_refused_is_no_failure(journal: Journal, epoch: int) -> None:
    """The run left nothing; only for its own word, and only where it went back."""
    refused, suspend = {REFUSED: "Slurm does not answer"}, SwitchMode.SUSPEND
    for n in range(3):
        ordered = replace(order(epoch, f"p{n}"), mode=suspend)
        put_order(journal, ordered, after(n))
        told = replace(transition(SwitchState.ROLLED_BACK, f"p{n}"), evidence=refused)
        journal.switches.record(told, owner_uid=UID, now=after(n))
    history = journal.switches.histories().of("r")
    assert failures(journal) == 0
    assert history.refusal is not None
    assert (history.refusal.switch_id, history.refusal.refused) == ("p2", "Slurm does not answer")
    for n, state in enumerate((SwitchState.FAILED, SwitchState.ROLLED_BACK), 3):
        put_order(journal, replace(order(epoch, f"p{n}"), mode=suspend), after(n))
        said = refused if state is SwitchState.FAILED else {}
        told = replace(transition(state, f"p{n}"), evidence=said)
        journal.switches.record(told, owner_uid=UID, now=after(n))
        assert failures(journal) == n - 2
        assert journal.switches.histories().of("r").refusal is None


def test_a_stepped_clock_reorders_nothing(journal: Journal, epoch: int) -> None:
    """Failed while the clock was an hour ahead, confirmed after it was set right."""
    story = [(SwitchState.FAILED, 3600, 10), (SwitchState.CONFIRMED, 0, 20)]
    for n, (state, seconds, step) in enumerate(story):
        made = replace(order(epoch, f"p{n}"), not_before_step=step)
        put_order(journal, made, after(seconds))
        journal.switches.record(transition(state, f"p{n}"), owner_uid=UID, now=after(seconds))
    assert [row.switch_id for row in journal.switches.history("r")] == ["p1", "p0"]
    assert failures(journal) == 0


@pytest.mark.parametrize("ahead_s", [400 * 86_400.0, -400 * 86_400.0])
def test_a_thaw_under_a_stepped_clock_forgets_what_was_and_nothing_else(
    journal: Journal, epoch: int, ahead_s: float
) -> None:
    """Dated a year ahead or behind: two failures after it freeze the run as ever."""
    for n in range(4):
        if n == 2:
            journal.runs.thaw("r", now=after(ahead_s))
            assert failures(journal) == 0
        put_order(journal, order(epoch, f"p{n}"), after(n))
        if n % 2:
            ended = transition(SwitchState.FAILED, f"p{n}")
            journal.switches.record(ended, owner_uid=UID, now=after(n))
        else:
            late: dict[str, Any] = {"detail": "", "now": after(n), "epoch": epoch}
            assert journal.switches.close(f"p{n}", SwitchState.FAILED, **late)
    assert failures(journal) == 2


def test_steps_are_listed_as_they_were_lived(journal: Journal, epoch: int) -> None:
    """Though the clock was stepped back between two of them."""
    put_order(journal, order(epoch))
    for n, state in enumerate(STEPS):
        journal.switches.record(transition(state), owner_uid=UID, now=after(-n * 600))
    assert tuple(each.state for each in journal.switches.transitions("p1")) == STEPS
