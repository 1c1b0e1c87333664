"""Budgets in a whole daemon: plans frozen once, alerts said everywhere, months closed, no act."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from tests.builders.carbon import intensities
from tests.daemon.clocks import SteppedClock
from tests.journal.test_ledger import EMISSION, ENERGY
from wattmesh.controller.accounting.report.closing import close
from wattmesh.controller.accounting.report.reported import plans_of, reported
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import Lead, LoopFacts, Signals
from wattmesh.controller.metrics.budgets import budget_metrics
from wattmesh.controller.process.loops import Loop
from wattmesh.controller.settings.read import parse
from wattmesh.controller.status.status import status
from wattmesh.errors import FixInput
from wattmesh.telemetry.carbon import Signal

SIGNAL = Signal(provider="neso", zone="GB")
HOUR = timedelta(hours=1)
G = 1_000_000
RULES = Path(__file__).parents[3] / "integrations/prometheus/rules/budget.yml"
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that stands still, at noon of 20 November 2026."""
    return SteppedClock()


@pytest.fixture
def loop_facts(tmp_path: Path, clock: SteppedClock) -> LoopFacts:
    """A daemon's facts, leading, with one budget."""
    made = LoopFacts(clock=clock.clock, settings=_settings(tmp_path, 1000.0), started_s=0.0)
    facts_of = SignalFacts(signal=SIGNAL, interval_s=3600.0, stale_after_s=7200.0)
    made.signals = Signals(decision=facts_of, accounting=facts_of)
    made.lead = Lead(epoch=1)
    cycle = Loop("cycle", 5.0, lambda: None, clock.clock)
    made.loops["cycle"] = lambda: cycle.state
    return made


def _settings(folder: Path, grams: float) -> Any:
    """Settings with a budget of the month."""
    return parse(f"[budget.cluster]\ngrams = {grams}\n", where=folder / "wattmesh.toml")


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """A journal that remembers four weeks of a grid with a dirty evening."""
    day = [100.0] * 17 + [300.0] * 7
    first = NOVEMBER - 28 * 24 * HOUR
    sqlite_journal.carbon.store(intensities(SIGNAL, day * 28, first, at=NOVEMBER))
    return sqlite_journal


def book(journal: Journal, start: datetime, *grams: float, quality: str = "measured") -> None:
    """Book hours that follow each other."""
    joules, rows = [], []
    for number, carbon_g in enumerate(grams):
        at = start + number * HOUR
        place: dict[str, Any] = {"run": "", "slot_start": at, "slot_end": at + HOUR, "line": "idle"}
        joules.append(replace(ENERGY, **place, energy_mj=1_000_000))
        grams_ug = round(carbon_g * G)
        told: dict[str, Any] = {"carbon_ug": grams_ug, "first_carbon_ug": grams_ug}
        row = replace(EMISSION, **place, **told, energy_mj=1_000_000, signal=str(SIGNAL))
        rows.append(replace(row, quality=quality, energy_quality=ENERGY.quality))
    journal.ledger.book(joules, [])
    journal.ledger.emit(rows)


def events(journal: Journal, kind: str) -> list[str]:
    """List what was told, oldest first."""
    return [each.detail for each in journal.events.list(50) if each.kind == kind][::-1]


def sample(metrics: list[Metric], name: str, **labels: str) -> float | None:
    """Find one sample."""
    for metric in metrics:
        for each in metric.samples:
            if each.name == name and labels.items() <= each.labels.items():
                return each.value
    return None


def test_a_plan_is_frozen_once_and_says_when_it_was_late(
    journal: Journal, loop_facts: LoopFacts
) -> None:
    """Nobody ran when the month began: it is planned from what was known then, and only once."""
    roll = PeriodRoll(journal, loop_facts)
    for _ in range(3):
        roll.turn()
    (row,) = journal.budgets.plans("cluster", NOVEMBER)
    assert row.why.startswith("made late, at 2026-11-20 12:00 UTC; rests on 28 days of neso:GB:")
    assert (row.curve.limit_ug, len(row.curve.sums_ug)) == (1000 * G, 721)
    evening, noon = NOVEMBER + 18 * HOUR, NOVEMBER + 12 * HOUR
    ratio = (row.curve.by(evening + HOUR) - row.curve.by(evening)) / (
        row.curve.by(noon + HOUR) - row.curve.by(noon)
    )
    assert ratio == pytest.approx(3.0, rel=1e-3)
    assert len(events(journal, "plan")) == 1


def test_a_plan_waits_a_turn_for_the_history_it_rests_on(
    journal: Journal, loop_facts: LoopFacts, clock: SteppedClock
) -> None:
    """A daemon that was just set up is still fetching; when nothing comes, it plans evenly."""
    clock.pass_s(60 * 86_400)
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    assert journal.budgets.plans("cluster", clock.wall) == ()
    assert loop_facts.budgets.lines[0].planned_at is None
    roll.turn()
    (row,) = journal.budgets.plans("cluster", clock.wall)
    assert row.why.endswith("rests on an even intensity and an even load")


def test_a_new_month_is_planned_at_its_border(
    journal: Journal, loop_facts: LoopFacts, clock: SteppedClock
) -> None:
    """In the first hour of December there is a plan of it; November's stays."""
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    clock.pass_s((datetime(2026, 12, 1, 0, 30, tzinfo=UTC) - clock.wall).total_seconds())
    roll.turn()
    november, december = journal.budgets.plans("cluster", NOVEMBER)
    assert (november.period, december.period) == ("2026-11", "2026-12")
    assert december.why.startswith("made at the start;")
    assert december.curve.start == november.curve.end


def test_another_limit_is_another_plan_and_the_old_one_stays(
    journal: Journal, loop_facts: LoopFacts, tmp_path: Path
) -> None:
    """A reload with another limit: a new row, with what it was before."""
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    loop_facts.settings = _settings(tmp_path, 1500.0)
    roll.turn()
    roll.turn()
    old, new = journal.budgets.plans("cluster", NOVEMBER)
    assert (old.curve.limit_ug, new.curve.limit_ug) == (1000 * G, 1500 * G)
    assert new.why.startswith("the limit of 1000 g became one of 1500 g;")
    assert loop_facts.budgets.lines[0].limit_g == 1500.0


def test_who_does_not_lead_writes_nothing_but_looks(
    journal: Journal, loop_facts: LoopFacts
) -> None:
    """A standby's status tells alerts too."""
    loop_facts.lead = replace(loop_facts.lead, epoch=None)
    book(journal, NOVEMBER, 1200.0)
    PeriodRoll(journal, loop_facts).turn()
    assert journal.budgets.plans("cluster", NOVEMBER) == ()
    assert journal.events.list(10) == ()
    assert loop_facts.budgets.lines[0].urgency == "exhausted"
    assert loop_facts.budgets.lines[0].planned_at is None


def test_an_exhausted_budget_is_said_everywhere_and_once(
    journal: Journal, loop_facts: LoopFacts, tmp_path: Path
) -> None:
    """Status, metrics and one event; when the limit is raised, one more that it is over."""
    book(journal, NOVEMBER + 5 * HOUR, 1200.0)
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    roll.turn()
    view = status(journal, loop_facts)
    (said,) = (each for each in view.trouble if each.startswith("budget cluster: 1.2 kg sim of"))
    assert "a budget stops no run" in said
    metrics = list(budget_metrics(loop_facts))
    assert sample(metrics, "wattmesh_budget_alert", urgency="exhausted") == 1.0
    assert sample(metrics, "wattmesh_budget_alert", urgency="fast") == 0.0
    assert sample(metrics, "wattmesh_budget_residual_grams", budget="cluster") == -200.0
    ended = sample(metrics, "wattmesh_budget_exhausted_timestamp_seconds")
    assert ended == (NOVEMBER + 6 * HOUR).timestamp()
    assert len(events(journal, "budget")) == 1
    loop_facts.settings = _settings(tmp_path, 5000.0)
    roll.turn()
    assert events(journal, "budget")[1:] == ["Budget cluster is on course again."]


def test_what_is_not_known_has_no_sample(journal: Journal, loop_facts: LoopFacts) -> None:
    """Nothing was booked: no burn, no course, no end; the limit and the plan are known."""
    PeriodRoll(journal, loop_facts).turn()
    metrics = list(budget_metrics(loop_facts))
    assert sample(metrics, "wattmesh_budget_limit_grams", budget="cluster") == 1000.0
    assert (sample(metrics, "wattmesh_budget_planned_grams") or 0) > 0
    for name in ("burn_ratio", "on_course_grams", "exhausted_timestamp_seconds"):
        assert sample(metrics, f"wattmesh_budget_{name}") is None


def test_a_budget_planned_anew_accepts_what_was_spent(
    journal: Journal, loop_facts: LoopFacts, clock: SteppedClock
) -> None:
    """The burn is 1 again and the limit is what it was; with nothing left it is refused."""
    book(journal, NOVEMBER, *[1.9] * (19 * 24 + 12))
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    assert loop_facts.budgets.lines[0].urgency == "slow"
    plans = plans_of(journal, loop_facts.settings, loop_facts.signals)
    journal.budgets.add(plans.anew("cluster", clock.wall, "ada (uid 7)"))
    roll.turn()
    line = loop_facts.budgets.lines[0]
    assert "made anew by ada (uid 7) after 889 g" in line.plan
    assert line.expected_g == pytest.approx(line.spent_g, rel=1e-6)
    assert line.limit_g == 1000.0
    assert line.burns[0].ratio == pytest.approx(1.0)
    book(journal, clock.wall - HOUR / 2, 200.0)
    with pytest.raises(FixInput, match="nothing is left to plan with"):
        plans.anew("cluster", clock.wall, "ada")


def test_windows_reach_over_the_border_of_a_month(
    journal: Journal, loop_facts: LoopFacts, clock: SteppedClock
) -> None:
    """On the second of December a week's burn is known: November's plan is its other half."""
    roll = PeriodRoll(journal, loop_facts)
    roll.turn()
    clock.pass_s((datetime(2026, 12, 2, tzinfo=UTC) - clock.wall).total_seconds())
    plan = journal.budgets.plans("cluster", NOVEMBER)[0].curve
    first = plan.end - 9 * 24 * HOUR
    hours = [first + number * HOUR for number in range(10 * 24)]
    book(journal, first, *((plan.by(at + HOUR) - plan.by(at)) / G or 1.0 for at in hours))
    roll.turn()
    ratios = [each.ratio for each in loop_facts.budgets.lines[0].burns]
    assert None not in ratios
    assert ratios[3] == pytest.approx(1.0, rel=0.1)


def test_an_ended_month_is_closed_by_the_leader_once_it_is_settled(
    journal: Journal, loop_facts: LoopFacts, clock: SteppedClock
) -> None:
    """Not within 48 hours, not while a row is provisional; then there is an event and a row."""
    book(journal, NOVEMBER + HOUR, 5.0)
    book(journal, NOVEMBER + 2 * HOUR, 5.0, quality="provisional")
    roll = PeriodRoll(journal, loop_facts)
    clock.pass_s((datetime(2026, 12, 2, tzinfo=UTC) - clock.wall).total_seconds())
    roll.turn()
    clock.pass_s(3 * 86_400)
    roll.turn()
    assert journal.budgets.closed("2026-11", "UTC") is None
    book(journal, NOVEMBER + 2 * HOUR, 6.0)
    book(journal, datetime(2026, 12, 1, tzinfo=UTC), 1.0)
    roll.turn()
    roll.turn()
    closed = journal.budgets.closed("2026-11", "UTC")
    assert closed is not None
    assert closed.figures["carbon_ug"] == 11 * G
    assert events(journal, "closed") == [
        f"Closed 2026-11 (UTC): 11 g sim in {SIGNAL} for 2 kJ sim."
    ]
    book(journal, NOVEMBER + 2 * HOUR, 7.0)
    site = reported(loop_facts.settings, loop_facts.signals)
    assert close(journal, site, clock.wall) == ()
    assert journal.budgets.closed("2026-11", "UTC") == closed


def asked(rules: str, metrics: list[Metric]) -> set[str]:
    """Name what alerts ask for and nobody exports: metrics, and words of labels."""
    found = [each for metric in metrics for each in metric.samples]
    words = {f'{name}="{word}"' for each in found for name, word in each.labels.items()}
    expressions = " ".join(re.findall(r"expr: (.+)", rules))
    names = set(re.findall(r"wattmesh_\w+", expressions)) - {each.name for each in found}
    return names | (set(re.findall(r'\w+="\w+"', expressions)) - words)


def test_alerts_ask_only_for_what_is_exported(journal: Journal, loop_facts: LoopFacts) -> None:
    """A rule on a metric or a word that nobody exports never fires: the sabotaged twins."""
    PeriodRoll(journal, loop_facts).turn()
    rules, metrics = RULES.read_text(), list(budget_metrics(loop_facts))
    assert rules.count("- alert:") == 3
    assert asked(rules, metrics) == set()
    assert asked(rules.replace("budget_alert", "budgets_alert"), metrics)
    assert asked(rules.replace('urgency="fast"', 'urgency="quick"'), metrics)
