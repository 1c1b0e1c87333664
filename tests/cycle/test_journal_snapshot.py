"""One snapshot of the live cycle: one state of the journal, and no statement more for more runs."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from tests.builders.cycles import CATALOGUE, FACTS, acting, introduce, live
from tests.builders.runs import T0, register
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.journal_snapshot import read_snapshot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import PolicySettings


@pytest.fixture
def journal(journal: Journal) -> Journal:
    """A journal of each kind with one live run."""
    introduce(journal)
    return journal


def further(journal: Journal, name: str) -> None:
    """Register one more run."""
    plan = RunPlan(catalogue=CATALOGUE, deadline=T0 + timedelta(hours=5))
    register(journal, plan=plan, run=name, name=name, incarnation=f"{name}-1", gpus=())


def statements(journal: Journal, **changes: Any) -> list[str]:
    """Run one turn of a cycle that stands by; give what it asked the database."""
    asked: list[str] = []

    def note(*told: Any) -> None:
        asked.append(f"{told[2]} {told[3]}")

    event.listen(journal.database.engine, "before_cursor_execute", note)
    try:
        policy = PolicySettings(sla_throughput_share=0.5)
        report = live(journal, acting(policy=policy, facts=FACTS, **changes), None).run(T0)
    finally:
        event.remove(journal.database.engine, "before_cursor_execute", note)
    assert report.trouble == ""
    return asked


def test_more_runs_ask_no_more(journal: Journal) -> None:
    """With a service level and all: the same statements for one run and for six."""
    alone = statements(journal)
    for number in range(5):
        further(journal, f"x{number}")
    assert len(statements(journal)) == len(alone)
    assert [each for each in alone if alone.count(each) > 1] == []


def test_a_turn_that_asked_run_by_run_would_be_seen(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sabotaged twin: one history for each run."""
    whole = journal.runs.looked_at

    def one_by_one(*given: Any) -> Any:
        rows = whole(*given)
        for row in rows:
            journal.switches.history(row.run)
        return rows

    monkeypatch.setattr(journal.runs, "looked_at", one_by_one)
    alone = statements(journal)
    further(journal, "x")
    assert len(statements(journal)) > len(alone)


@pytest.mark.parametrize("one", [True, False])
def test_what_is_written_meanwhile_is_seen_by_the_next_look(journal: Journal, one: bool) -> None:
    """All of a snapshot is one state; two snapshots are two."""
    other = Journal.open(journal.database.url.render_as_string(hide_password=False))

    def meanwhile(_: Any) -> Fleet:
        journal.runs.all(T0)
        further(other, "x")
        return Fleet()

    if one:
        seen = read_snapshot(journal, acting(), meanwhile, T0)
        assert [each.run for each in seen.runs] == ["r"]
        with journal.database.one_state(), journal.database.one_state():
            before = len(journal.runs.all(T0))
            further(other, "y")
            assert len(journal.runs.all(T0)) == before
    else:
        meanwhile(None)
    assert {each.run for each in read_snapshot(journal, acting(), lambda _: Fleet(), T0).runs} >= {
        "r",
        "x",
    }
    other.close()
