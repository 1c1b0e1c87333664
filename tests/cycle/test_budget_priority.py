"""Safety > cap > deadline > SLA > budget > grams: an exhausted budget alerts, and no more."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.builders.cycles import SIGNAL, turn
from tests.builders.runs import T0
from tests.cycle.test_cycle import journal
from tests.journal.test_ledger import EMISSION, ENERGY
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import Lead, LoopFacts, Signals
from wattmesh.controller.process.loops import Clock
from wattmesh.controller.settings.read import parse
from wattmesh.policies.decision import Mode

__all__ = ["journal"]


def exhaust(journal: Journal, folder: Path) -> LoopFacts:
    """Spend more than the month's limit, and let the daemon see it."""
    place: dict[str, Any] = {"run": "r", "slot_start": T0 - timedelta(hours=1), "slot_end": T0}
    journal.ledger.book([replace(ENERGY, **place)], [])
    journal.ledger.emit([replace(EMISSION, **place, carbon_ug=9_000_000, signal=str(SIGNAL))])
    text = "[runs.llm]\n[budget.cluster]\ngrams = 5.0\n[budget.llm]\ngrams = 5.0\n"
    settings = parse(text, where=folder / "wattmesh.toml")
    loop_facts = LoopFacts(clock=Clock(now=lambda: T0), settings=settings, started_s=0.0)
    facts = SignalFacts(signal=SIGNAL, interval_s=1800.0, stale_after_s=5400.0)
    loop_facts.signals, loop_facts.lead = Signals(decision=facts, accounting=facts), Lead(epoch=1)
    PeriodRoll(journal, loop_facts).turn()
    return loop_facts


def test_an_exhausted_budget_alerts_and_changes_no_action(journal: Journal, tmp_path: Path) -> None:
    """The same decision, to the word, before and after the limit of run and cluster is gone."""
    (before,) = turn(journal, mode=Mode.ADVISE).decisions
    loop_facts = exhaust(journal, tmp_path)
    assert [each.urgency for each in loop_facts.budgets.lines] == ["exhausted", "exhausted"]
    assert all("a budget stops no run" in each.alert for each in loop_facts.budgets.lines)
    (after,) = turn(journal, mode=Mode.ADVISE).decisions
    assert after == before
    assert journal.switches.history("r") == ()
    row = journal.runs.find("r", T0)
    assert row is not None
    assert (row.frozen, row.deadline) == ("", T0 + timedelta(hours=5))


def test_the_comparison_would_see_another_decision(journal: Journal) -> None:
    """The sabotaged twin: what does outrank the policy, a freeze, changes what is compared."""
    (before,) = turn(journal, mode=Mode.ADVISE).decisions
    journal.runs.freeze(None, reason="by hand", by="ada", now=T0)
    (after,) = turn(journal, mode=Mode.ADVISE).decisions
    assert after != before
