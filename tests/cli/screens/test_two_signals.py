"""The accounting signal changed on a reload: grams of both, each on its own, and nowhere a sum."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.api.conftest import Served, open_folder, served, settings
from tests.builders.accounts import SLOT_S, Life, accounts, book, energy, intensity, slot
from tests.cli.test_marks import Show, metrics, show
from wattmesh.controller.accounting.budgets.periods import period_of
from wattmesh.controller.cli import formats
from wattmesh.controller.cli.accounting import report_picture
from wattmesh.controller.cycle.carbon_view import SignalFacts
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.loop_facts import Signals
from wattmesh.controller.settings.model import BudgetSection
from wattmesh.telemetry.carbon import Signal

__all__ = ["open_folder", "served", "settings", "show"]

DIRECT = Signal(provider="neso", zone="GB")
LIFECYCLE = Signal(provider="electricity_maps", zone="GB", factor="lifecycle", gas="CO2eq")
BOTH = (str(DIRECT), str(LIFECYCLE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grams:
    """Micrograms by signal, added up by hand from the rows."""

    run: Counter[str]
    idle: Counter[str]

    def sums(self) -> list[int]:
        """Give what nobody may say: each subject, and the cluster, over both signals."""
        return [self.run.total(), self.idle.total(), self.run.total() + self.idle.total()]


@pytest.fixture
def reloaded(served: Served) -> Grams:
    """Six slots in one signal, a reload, six slots in the other; idle GPUs beside."""
    journal, loop_facts = served.journal, served.loop_facts
    intensity(journal, [100.0 + 13 * n for n in range(40)], signal=DIRECT)
    intensity(journal, [171.0 + 17 * n for n in range(40)], signal=LIFECYCLE)
    life = Life(journal=journal, power_w=321.0, signal=DIRECT)
    life.begin()
    for signal in (DIRECT, LIFECYCLE):
        life.books = accounts(journal, signal)
        idle = energy(life.slots, 777_777, run="", line="idle", gpu_uuid="g9")
        book(journal, idle)
        life.live(6)
    served.clock.pass_s(12 * SLOT_S)
    facts = SignalFacts(signal=LIFECYCLE, interval_s=SLOT_S, stale_after_s=5400.0)
    loop_facts.signals = Signals(decision=facts, accounting=facts)
    limits = {"cluster": BudgetSection(grams=500.0), "llm": BudgetSection(grams=90.0)}
    loop_facts.settings = loop_facts.settings.model_copy(update={"budget": limits})
    PeriodRoll(journal, loop_facts).turn()
    served.cycle.turn()
    rows = journal.ledger.emissions(scenario="actual")
    run, idle_grams = Counter[str](), Counter[str]()
    for row in rows:
        (run if row.line == "run" else idle_grams)[row.signal] += row.carbon_ug or 0
    assert set(run) == set(idle_grams) == set(BOTH)
    return Grams(run=run, idle=idle_grams)


def added(answer: Any, grams: Grams) -> list[str]:
    """List the numbers of an answer that are a sum over both signals, in grams or micrograms."""
    forbidden = {round(each, 3) for ug in grams.sums() for each in (ug, ug / 1e6)}
    return [
        f"{path}: {number}" for path, number in numbers(answer) if round(number, 3) in forbidden
    ]


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Give every number of an answer."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from numbers(each, f"{path}.{key}")
    elif isinstance(value, list):
        for place, each in enumerate(value):
            yield from numbers(each, f"{path}[{place}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def said(text: str, grams: Grams) -> list[str]:
    """List the sums over both signals that a screen says."""
    sums = {formats.grams(ug / 1e6) for ug in grams.sums()} | {f"{ug:,} ug" for ug in grams.sums()}
    return [each for each in sums if re.search(rf"(?<![\d.]){re.escape(each)}", text)]


def by_signal(carbon: Any, name: str = "carbon_ug") -> dict[str, int]:
    """Give the micrograms of a list of signals."""
    scale = 1 if name.endswith("_ug") else 1e6
    return {each["signal"]: round(each[name] * scale) for each in carbon}


def test_no_answer_adds_two_signals(served: Served, reloaded: Grams) -> None:
    """Budget, report, audit: each signal on its own, and null where one figure stood."""
    budget = served.get("/v1/budget").body
    assert budget["total"]["carbon_g"] is None
    assert by_signal(budget["total"]["carbon"], "carbon_g") == reloaded.run + reloaded.idle
    (run,) = budget["runs"]
    assert (run["carbon_g"], run["saved_g"], budget["saved"]) == (None, None, [])
    assert by_signal(run["carbon"], "carbon_g") == reloaded.run
    assert run["unsettled"] == "its grams are in 2 signals, which are never added"
    cluster = next(each for each in budget["periods"] if each["name"] == "cluster")
    assert cluster["signal"] == str(LIFECYCLE)
    whole = reloaded.run + reloaded.idle
    assert round(cluster["spent_g"] * 1e6) == whole[str(LIFECYCLE)]
    assert by_signal(cluster["others"], "carbon_g") == {str(DIRECT): whole[str(DIRECT)]}
    report = served.get("/v1/report").body
    assert (report["carbon_ug"], report["first_carbon_ug"], report["sci_g"]) == (None, None, None)
    assert by_signal(report["carbon"]) == whole
    totals = [each for each in report["totals"] if each["scenario"] == "location"]
    assert by_signal(totals) == whole
    subjects = {each["subject"]: each for each in report["subjects"]}
    assert by_signal(subjects["llm"]["carbon"]) == reloaded.run
    assert subjects["llm"]["carbon_ug"] is None
    day = next(each for each in report["days"] if each["energy_mj"])
    assert by_signal(day["carbon"]) == whole
    assert day["carbon_ug"] is None
    audit = served.get("/v1/runs/r/audit").body
    assert (audit["actual_ug"], audit["saved_ug"], audit["signals"]) == (None, None, sorted(BOTH))
    assert by_signal(audit["carbon"], "carbon_g") == reloaded.run
    for answer in (budget, report, audit):
        assert added(answer, reloaded) == []


def test_no_screen_adds_two_signals(served: Served, show: Show, reloaded: Grams) -> None:
    """Two lines with their names, in text, in the table for spreadsheets and in the picture."""
    whole = reloaded.run + reloaded.idle
    budget, report = show("budget"), show("report")
    audit = show("budget", "--audit", "llm")
    for text, grams in ((budget, whole), (report, whole), (report, reloaded.run)):
        for signal in BOTH:
            figure = formats.grams(grams[signal] / 1e6)
            assert [each for each in text.splitlines() if figure in each and signal in each], text
    for text in (budget, report, audit, show("status")):
        assert said(text, reloaded) == []
    assert f"{reloaded.run[BOTH[0]]:,} ug in {BOTH[0]}" in audit
    rows = list(csv.DictReader(io.StringIO(show("report", "--format", "csv"))))
    table: Counter[str] = Counter()
    for row in rows:
        table[row["signal"]] += int(row["carbon_gco2"].replace(".", ""))
    assert table == whole
    answer = served.get("/v1/report").body
    title = report_picture._title(answer)
    assert " and " in title
    assert said(title + report_picture._subtitle(answer), reloaded) == []
    assert report_picture._signals(answer) == sorted(BOTH)


def test_no_metric_adds_two_signals(served: Served, reloaded: Grams) -> None:
    """A series for each; a budget's is in the signal of its limit."""
    samples = [one for each in metrics(served) for one in each.samples]
    forbidden = {round(ug / 1e6, 6) for ug in reloaded.sums()}
    assert not [each for each in samples if round(each.value, 6) in forbidden]
    for name in ("wattmesh_carbon_first_reported_grams_total", "wattmesh_carbon_restated_grams"):
        found = {
            (each.labels["line"], each.labels["signal"]): round(each.value * 1e6)
            for each in samples
            if each.name == name
        }
        for signal in BOTH:
            assert found["run", signal] == reloaded.run[signal]
            assert found["idle", signal] == reloaded.idle[signal]
    whole = reloaded.run + reloaded.idle
    spent = {
        each.labels["signal"]: round(each.value * 1e6)
        for each in samples
        if each.name == "wattmesh_budget_spent_grams" and each.labels["budget"] == "cluster"
    }
    assert spent == whole
    assert not [each for each in samples if each.name == "wattmesh_carbon_saved_grams"]


def test_the_end_of_a_period_is_told_in_both(served: Served, reloaded: Grams) -> None:
    """An event a month later: the limit's own signal, and the other one beside."""
    served.clock.pass_s(period_of(slot(0), "month", "UTC").end.timestamp() - slot(12).timestamp())
    served.clock.pass_s(3600.0)
    PeriodRoll(served.journal, served.loop_facts).turn()
    ended = [
        each.detail
        for each in served.journal.events.list(50)
        if each.kind == "period" and each.detail.startswith("2026-11 of budget cluster")
    ]
    whole = reloaded.run + reloaded.idle
    assert len(ended) == 1
    assert f"{formats.grams(whole[str(LIFECYCLE)] / 1e6)} of 500 g" in ended[0]
    assert f"{formats.grams(whole[str(DIRECT)] / 1e6)} in {DIRECT}" in ended[0]


def test_a_sum_that_is_said_is_caught(served: Served, show: Show, reloaded: Grams) -> None:
    """The sabotaged twin: put into an answer, or onto a screen."""
    total = reloaded.sums()[-1]
    for name in ("budget", "report"):
        answer = served.get(f"/v1/{name}").body
        assert added({**answer, "carbon_g": total / 1e6}, reloaded)
        assert added({**answer, "carbon_ug": total}, reloaded)
        assert said(f"{show(name)}\nin all {formats.grams(total / 1e6)}", reloaded)
