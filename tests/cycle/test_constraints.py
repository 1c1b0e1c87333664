"""What plans must keep reaches the observation: what was trained lately, the run's own budget."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.builders.cycles import FACTS, SIGNAL, acting, live
from tests.builders.runs import T0
from tests.cycle.test_budget_priority import exhaust
from tests.cycle.test_cycle import journal
from wattmesh.controller.accounting.own_budgets import own_budgets
from wattmesh.controller.journal.energy.ledger import TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import LoopFacts, Signals
from wattmesh.controller.settings.model import PolicySection
from wattmesh.controller.settings.read import parse
from wattmesh.policies.decision import BudgetLeft, Mode, RunView

__all__ = ["journal"]
HOUR = timedelta(hours=1)


def mark(journal: Journal, ago_h: float, tokens: int) -> None:
    """Remember how far the run was so many hours before T0."""
    at = T0 - ago_h * HOUR
    row = TokenMark(slot_start=at - HOUR, slot_end=at, tokens=tokens, at=at)
    journal.ledger.mark("r", [row], at, [])


def observed(
    journal: Journal, share: float | None, budgets: dict[str, BudgetLeft] | None = None
) -> RunView:
    """The run as one cycle sees it."""
    section = PolicySection(sla_throughput_share=share, sla_window_s=6 * 3600.0)
    settings = acting(mode=Mode.ADVISE, policy=section.limits(), facts=FACTS, budgets=budgets or {})
    report = live(journal, settings, None).run(T0)
    assert report.observation is not None
    return report.observation.runs[0]


def test_what_was_trained_over_the_window_is_read_where_a_level_asks_for_it(
    journal: Journal,
) -> None:
    """One moment before the window begins, all within it, and none that is older or not yet."""
    for ago_h, tokens in ((9.0, 100), (7.0, 200), (5.0, 300), (1.0, 400), (-1.0, 999)):
        mark(journal, ago_h, tokens)
    trained = ((7 * 3600.0, 200), (5 * 3600.0, 300), (3600.0, 400))
    assert observed(journal, 0.5).trained == trained
    assert observed(journal, None).trained == ()


def test_a_run_hears_of_its_own_budget_and_of_no_other(journal: Journal, tmp_path: Path) -> None:
    """Nine grams of five are spent; the cluster's five are nobody's share."""
    loop_facts = exhaust(journal, tmp_path)
    (line,) = (each for each in loop_facts.budgets.lines if each.name == "llm")
    budgets = own_budgets(loop_facts)
    view = BudgetLeft(left_g=-4.0, unpriced_j=line.unpriced_j, until=line.end)
    assert budgets == {"llm": view}
    assert observed(journal, None, budgets).budget == view
    assert observed(journal, None, {"other": view}).budget is None


@pytest.mark.parametrize("kind", ["marginal", None])
def test_grams_of_another_signal_are_never_a_plans_budget(
    journal: Journal, tmp_path: Path, kind: str | None
) -> None:
    """Decided on marginal intensities, or without any."""
    loop_facts: LoopFacts = exhaust(journal, tmp_path)
    facts = loop_facts.signals.decision
    assert facts is not None
    other = None
    if kind is not None:
        text = str(SIGNAL).replace(":average:", f":{kind}:")
        assert text != str(SIGNAL)
        other = replace(facts, signal=type(SIGNAL).parse(text))
    loop_facts.signals = Signals(decision=other, accounting=facts)
    assert own_budgets(loop_facts) == {}


def test_grams_of_a_budget_are_those_where_power_is_measured(
    journal: Journal, tmp_path: Path
) -> None:
    """A facility of PUE 1.25 has four grams left of five."""
    loop_facts = exhaust(journal, tmp_path)
    text = (
        '[site]\nenergy_boundary = "facility"\npue = 1.25\n'
        "[runs.llm]\n[budget.cluster]\ngrams = 5.0\n[budget.llm]\ngrams = 5.0\n"
    )
    loop_facts.settings = parse(text, where=tmp_path / "wattmesh.toml")
    assert own_budgets(loop_facts)["llm"].left_g == pytest.approx(-4.0 / 1.25)
