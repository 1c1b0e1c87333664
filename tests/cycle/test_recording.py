"""What a turn writes: all runs' decisions and speeds together, and none is lost by another's."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.builders.cycles import CATALOGUE, FACTS, acting, introduce, live
from tests.builders.runs import T0, progress, register
from wattmesh.controller.cycle.act import JournalActor
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.cycle.observe import JournalObserver
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import Action, Decision
from wattmesh.policies.rules.decide import decide

UNWRITABLE = "\ud800"
"""Half of a surrogate pair: no database takes it as text."""


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A journal of each kind with one live run."""
    introduce(journal)
    return journal


def further(journal: Journal, names: Sequence[str]) -> None:
    """Register more runs, each with its first report."""
    plan = RunPlan(catalogue=CATALOGUE, deadline=T0 + timedelta(hours=5))
    for name in names:
        register(journal, plan=plan, run=name, name=name, incarnation=f"{name}-1", gpus=())
        progress(journal, now=T0, tokens=1000, run=name, incarnation=f"{name}-1")


def written(journal: Journal, at_s: float) -> list[str]:
    """Run one leading turn; give the statements that write."""
    epoch = journal.leadership.acquire("test", 60.0)
    asked: list[str] = []

    def note(*told: Any) -> None:
        asked.append(str(told[2]).lstrip().split()[0])

    event.listen(journal.database.engine, "before_cursor_execute", note)
    try:
        report = live(journal, acting(facts=FACTS), epoch).run(T0 + timedelta(seconds=at_s))
    finally:
        event.remove(journal.database.engine, "before_cursor_execute", note)
    assert report.trouble == ""
    assert len(report.decisions) == len(journal.runs.all(T0))
    return [each for each in asked if each in ("INSERT", "UPDATE")]


def test_more_runs_take_no_more_statements_to_write(journal: Journal) -> None:
    """First decisions, repeated ones and speeds are each one statement, for six runs as for one."""
    first, again = written(journal, 10), written(journal, 15)
    assert "INSERT" in first
    assert "UPDATE" in again
    further(journal, [f"x{number}" for number in range(5)])
    assert len(written(journal, 20)) <= len(first) + len(again)
    assert len(written(journal, 25)) == len(again)
    assert {(row.run, row.count) for row in journal.decisions.list()} == {
        ("r", 4),
        *((f"x{number}", 2) for number in range(5)),
    }


def test_a_turn_that_wrote_run_by_run_would_be_seen(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin."""
    whole = journal.decisions.record

    def one_by_one(decisions: Sequence[Decision], **given: Any) -> None:
        for each in decisions:
            whole([each], **given)

    written(journal, 10)
    again = written(journal, 15)
    monkeypatch.setattr(journal.decisions, "record", one_by_one)
    further(journal, ["x", "y"])
    written(journal, 20)
    assert len(written(journal, 25)) > len(again)


def test_a_decision_that_cannot_be_written_is_not_carried_out_and_takes_no_other_with_it(
    journal: Journal,
) -> None:
    """No intent, no act: that run alone goes without, is counted, and the others are recorded."""
    further(journal, ["x", "y"])
    epoch, isolation = journal.leadership.acquire("test", 60.0), Isolation()
    settings = acting(facts=FACTS)
    seen = JournalObserver(journal, lambda: settings, lambda: epoch, lambda _: Fleet()).observe(T0)
    switches = {
        each.run: replace(each, action=Action.SWITCH, current="A", target="B")
        for each in decide(seen.observation)
    }
    spoilt = switches | {"x": replace(switches["x"], reason=UNWRITABLE)}
    JournalActor(journal, isolation).act(seen, tuple(spoilt.values()))
    assert {row.run for row in journal.decisions.list()} == {"r", "y"}
    assert set(journal.switches.all_open()) == {"r", "y"}
    assert isolation.count == 1
