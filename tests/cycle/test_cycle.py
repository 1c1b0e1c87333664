"""The cycle on a real journal: what it sees, what it orders, and what it survives."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.builders.cycles import FACTS, acting, dirty_day, live, report, step_switch, turn, view
from tests.builders.journals import fresh_file
from tests.builders.runs import T0, B
from wattmesh.controller.cycle import cycle
from wattmesh.controller.journal.journal import Journal
from wattmesh.migrations import HEAD
from wattmesh.policies.decision import (
    Action,
    Decision,
    Mode,
    Observation,
    PolicySettings,
)
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig.switch import SwitchState


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A journal of each kind, with one live run at point A and a day of intensities."""
    return dirty_day(journal)


def test_a_dirty_grid_now_and_a_clean_one_later_orders_the_smaller_layout(
    journal: Journal,
) -> None:
    """The decision, the intent row and the sentence agree."""
    said = turn(journal)
    switch = journal.switches.open("r")
    assert switch is not None
    assert (switch.from_point, switch.to_point) == ("A", "B")
    assert switch.order.ranks == (0, 1)
    assert switch.reason in said.sentence
    assert journal.decisions.list("r")[0].reason == switch.reason


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_below_act_the_same_decision_is_only_said(journal: Journal, mode: Mode) -> None:
    """The trust ladder: nothing is ordered, the reason is remembered."""
    said = turn(journal, mode=mode)
    assert journal.switches.open("r") is None
    assert journal.decisions.list("r")[0].action == "switch"
    assert "only said" in said.sentence


def test_a_second_cycle_orders_nothing_more(journal: Journal) -> None:
    """Level-triggered: repeating a cycle repeats no act."""
    turn(journal)
    turn(journal)
    assert len(journal.switches.history("r")) == 1


@pytest.mark.parametrize("last", [None, *list(SwitchState)[1:7]])
def test_a_daemon_killed_at_any_state_of_a_switch_goes_on_from_the_journal(
    journal: Journal, journal_url: str, last: SwitchState | None
) -> None:
    """A new process with the old one's journal orders nothing twice, and hears the end."""
    turn(journal)
    reached = [SwitchState.ANNOUNCED, SwitchState.CHECKPOINTING, SwitchState.REBUILDING]
    reached += [SwitchState.LOADED, SwitchState.VERIFIED]
    for state in reached:
        if last is None or state is last:
            break
        step_switch(journal, state)
    journal.close()
    again = Journal.open(journal_url)
    turn(again)
    assert len(again.switches.history("r")) == 1
    for state in (*reached, SwitchState.CONFIRMED):
        step_switch(again, state)
    assert again.switches.open("r") is None
    assert again.switches.history("r")[0].state is SwitchState.CONFIRMED
    row = again.runs.find("r", T0)
    assert row is not None
    assert row.layout == B
    again.close()


def test_a_switch_that_a_stepped_clock_puts_in_the_future_has_no_age(journal: Journal) -> None:
    """After a step back the dwell is no longer than it was: it does not wait for the old time."""
    turn(journal)
    step_switch(journal, SwitchState.CONFIRMED)
    ages = []
    for at in (T0 + timedelta(seconds=40), T0 + timedelta(seconds=20)):
        ages.append(view(journal, at).since_switch_s)
    assert ages == [10.0, None]


def test_a_stopped_feed_means_hold(journal: Journal) -> None:
    """Said in the sentence, with the age; nothing is ordered."""
    report(journal, step=7201)
    said = turn(journal, at=T0 + timedelta(seconds=7201))
    assert journal.switches.open("r") is None
    assert journal.decisions.list("r")[0].kind == "stale_signal"
    assert "7201 s ago" in said.sentence


def test_an_order_from_an_older_epoch_is_not_written(journal: Journal) -> None:
    """Another daemon took over between observing and acting: nothing happens, and it is said."""
    turn(journal, mode=Mode.OBSERVE)
    epoch = journal.leadership.acquire("test", 60.0)
    assert epoch is not None
    journal.leadership.release("test", epoch)
    assert journal.leadership.acquire("other", 60.0) == epoch + 1
    said = live(journal, acting(facts=FACTS), epoch).run(T0)
    assert "Standing by" in said.sentence
    assert journal.switches.open("r") is None


def test_two_failed_switches_freeze_the_run_and_call_a_human(journal: Journal) -> None:
    """Nothing is tried a third time before someone thawed it."""
    for second in range(2):
        turn(journal, at=T0 + timedelta(seconds=second))
        step_switch(journal, SwitchState.REBUILDING)
        step_switch(journal, SwitchState.ROLLED_BACK)
    said = turn(journal, at=T0 + timedelta(seconds=3))
    assert "wattmesh thaw llm" in said.sentence
    assert journal.runs.all(T0)[0].frozen
    turn(journal)
    assert len(journal.switches.history("r")) == 2
    journal.runs.thaw("r", now=T0 + timedelta(minutes=1))
    turn(journal)
    assert len(journal.switches.history("r")) == 3


def test_a_journal_that_is_gone_means_hold_and_says_so(tmp_path: Path) -> None:
    """The daemon lives; the sentence tells what to do."""
    opened = fresh_file(tmp_path / "journal.db")
    opened.database.engine.dispose()
    path = opened.database.url.database
    assert path is not None
    Path(path).rename(path + ".taken")
    said = live(opened, acting(switch_timeout_s=1.0), 1).run(T0)
    assert "Holding every run" in said.sentence
    assert "gone" in said.trouble
    assert not Path(path).exists()
    opened.close()


def test_a_database_upgraded_under_the_daemon_means_hold_and_says_so(journal: Journal) -> None:
    """A newer wattmesh took something away; where it only added, this one decides."""
    with journal.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert turn(journal).decisions, "it was only added to"
    with journal.database.writing() as connection:
        connection.exec_driver_sql("UPDATE schema_floor SET oldest = '9999'")
    said = turn(journal)
    assert "newer than this wattmesh" in said.sentence
    assert said.decisions == ()
    with journal.database.writing() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{HEAD}'")
    assert turn(journal).decisions


@pytest.mark.parametrize("action", list(Action))
def test_what_nobody_carries_out_is_an_error_and_not_a_silence(
    journal: Journal,
    action: Action,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever may be decided is carried out; sleep without a time to wake is refused, and told."""

    def decided(seen: Observation) -> tuple[Decision, ...]:
        hold = decide(seen)[0]
        return (replace(hold, action=action, target="B", kind="test", wakes_at=None),)

    monkeypatch.setattr(cycle, "decide", decided)
    turn(journal)
    assert ("until when it is to sleep" in caplog.text) == (action is Action.SUSPEND)
    ordered = action in (Action.SWITCH, Action.RESUME)
    assert (journal.switches.open("r") is not None) == ordered
    assert bool(journal.runs.all(T0)[0].frozen) == (action is Action.FREEZE)


def test_a_wish_for_where_the_run_is_already_binds_nobody_afterwards(journal: Journal) -> None:
    """It is acknowledged once, then the policy decides again."""
    journal.runs.order_point("r", "A", reason="stay", by="anna")
    assert turn(journal).decisions[0].kind == "operator"
    assert journal.runs.all(T0)[0].ordered_point == ""
    turn(journal)
    assert journal.switches.open("r") is not None


def test_what_stays_as_it_was_is_logged_once_an_hour(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """A quiet day is no book of equal lines; another decision is told at once."""
    caplog.set_level("INFO", "wattmesh.controller.cycle.cycle")
    settings = acting(mode=Mode.ADVISE, policy=PolicySettings(dwell_s=600.0), facts=FACTS)
    epoch = journal.leadership.acquire("test", 60.0)
    cycle = live(journal, settings, epoch)
    for seconds in range(0, 3605, 300):
        report(journal, step=2 + seconds)
        cycle.run(T0 + timedelta(seconds=seconds))
    told = [each.message for each in caplog.records]
    assert len(told) < 6, told
    report(journal, step=3700)
    journal.runs.freeze("r", reason="look", by="op", now=T0)
    cycle.run(T0 + timedelta(seconds=3700))
    assert "frozen" in caplog.records[-1].message
    assert len(caplog.records) == len(told) + 1
