"""The cycle on every rung, on a real journal: what it orders, remembers and says."""

from datetime import timedelta

import pytest

from tests.builders.carbon import slots
from tests.builders.cycles import SIGNAL, introduce, report, step_switch, store_day, turn
from tests.builders.runs import T0, B
from wattmesh.controller.journal.carbon.forecasts import PROFILE, Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.decision import Rung
from wattmesh.reconfig.switch import SwitchState

HALF_HOUR = timedelta(minutes=30)


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """A journal with one live run at point A and no intensity at all."""
    introduce(sqlite_journal)
    return sqlite_journal


def profile(journal: Journal, *, first_dirty: bool = True) -> None:
    """Store a profile: two dirty hours, then clean ones."""
    dirty, clean = (300.0, 60.0) if first_dirty else (60.0, 300.0)
    journal.forecasts.store(
        Forecast(
            signal=SIGNAL,
            rung=Rung.PROFILE,
            source=PROFILE,
            issued_at=T0,
            fetched_at=T0,
            slots=slots([dirty] * 4 + [clean] * 44, T0, HALF_HOUR),
        )
    )
    journal.carbon.fetched(SIGNAL, T0, ok=True)


def test_without_any_signal_the_cycle_holds_and_remembers_no_rung(journal: Journal) -> None:
    """A start is no change: what comes first counts at once."""
    said = turn(journal)
    assert said.decisions[0].kind == "stale_signal"
    assert journal.carbon.last_fetch(SIGNAL) is None
    store_day(journal, high_first=True)
    turn(journal)
    assert journal.switches.open("r") is not None
    fetch = journal.carbon.last_fetch(SIGNAL)
    assert fetch is not None
    assert (fetch.rung, fetch.rung_at) == ("issued", None)


def test_a_profile_moves_a_run_and_the_sentence_says_so(journal: Journal) -> None:
    """The provider offers no forecast: its history stands in."""
    profile(journal)
    said = turn(journal)
    assert journal.switches.open("r") is not None
    assert "so a profile of its last days stands in" in said.sentence
    assert said.decisions[0].reason in said.sentence


def test_the_decision_keeps_the_issue_it_rested_on(journal: Journal) -> None:
    """And the issue outlives the days that issues are kept."""
    profile(journal)
    turn(journal)
    (row,) = journal.decisions.list("r")
    assert row.forecast is not None
    issue = journal.forecasts.get(row.forecast)
    assert issue is not None
    assert issue.source == PROFILE
    store_day(journal, high_first=True)
    assert journal.forecasts.prune(T0 + timedelta(days=30)) == 1
    assert journal.forecasts.get(row.forecast) == issue


def test_a_rung_that_changes_holds_for_two_intervals_however_often_it_restarts(
    journal: Journal,
) -> None:
    """A provider that comes back moves nothing at once; then it does."""
    profile(journal, first_dirty=False)
    assert turn(journal).decisions[0].kind not in ("stale_signal", "signal_changed")
    store_day(journal, high_first=True)
    for seconds in (5.0, 3599.0):
        report(journal, step=2, at=T0 + timedelta(seconds=seconds))
        said = turn(journal, at=T0 + timedelta(seconds=seconds))
        assert said.decisions[0].kind == "signal_changed"
        assert journal.switches.open("r") is None
    later = T0 + timedelta(seconds=3606)
    report(journal, step=3, at=later)
    turn(journal, at=later)
    assert journal.switches.open("r") is not None


def test_a_provider_that_dies_at_a_boundary_harms_no_switch(journal: Journal) -> None:
    """A switch that was ordered is carried through; then the run stays where it is."""
    store_day(journal, high_first=True)
    turn(journal)
    ordered = journal.switches.open("r")
    assert ordered is not None
    journal.carbon.fetched(SIGNAL, T0, ok=False, detail="HTTP 503")
    journal.forecasts.prune(T0 + timedelta(days=30))
    with journal.database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM carbon_forecasts")
    said = turn(journal)
    assert said.decisions[0].kind == "switching"
    assert journal.switches.open("r") == ordered
    step_switch(journal, SwitchState.CONFIRMED)
    report(journal, step=40, layout=B)
    said = turn(journal)
    assert said.decisions[0].kind == "stale_signal"
    assert said.decisions[0].current == "B"
    assert journal.switches.open("r") is None
