"""The report of a month and the plan made anew, asked over the socket."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.api.conftest import Served
from tests.api.stranger import as_stranger, needs_root
from tests.api.test_reading import SIGNAL, carbon
from wattmesh.controller.accounting.budgets.periods import month_named
from wattmesh.controller.cli.main import main
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.journal.energy.budgets import ClosedRow
from wattmesh.controller.settings.model import BudgetSection
from wattmesh.telemetry.energy.ledger import EnergyRow

REPLAN = "/v1/budget/cluster/replan"


@pytest.fixture
def budgeted(served: Served) -> Served:
    """The interface of a daemon with a budget, and half an hour of idle joules."""
    limits = {"budget": {"cluster": BudgetSection(grams=50_000.0)}}
    served.loop_facts.settings = served.loop_facts.settings.model_copy(update=limits)
    carbon(served, 212.0, 150.0)
    now = served.clock.wall
    row = EnergyRow(
        gpu_uuid="g0",
        run="",
        incarnation="",
        slot_start=now - timedelta(minutes=30),
        slot_end=now,
        energy_mj=3_600_000_000,
        unobserved_ms=0,
        upper_mj=0,
        source="nvml",
        quality="measured",
        line="idle",
    )
    served.journal.ledger.book([row], [])
    return served


def test_the_running_month_is_reported_by_default(budgeted: Served) -> None:
    """Joules that the accounts have not seen yet are there, unpriced, and no grams are made up."""
    view = budgeted.get("/v1/report").body
    assert (view["month"], view["running"], view["closed_at"]) == ("2026-11", True, None)
    assert view["energy_mj"] == view["unpriced_mj"] == 3_600_000_000
    assert view["carbon_ug"] == 0
    assert view["qualities"] == {"unpriced": 1.0}
    (line,) = view["lines"]
    assert (line["subject"], line["scenario"], line["signal"]) == ("idle", "location", str(SIGNAL))
    assert budgeted.get("/v1/report?month=2026-11").body["lines"] == view["lines"]
    assert budgeted.get("/v1/report?month=2026-10").body["energy_mj"] == 0


@pytest.mark.parametrize(
    ("month", "words"),
    [("2026-13", "is no month"), ("2026-12", "has not begun"), ("x", "no month")],
)
def test_a_month_that_cannot_be_reported_is_refused(
    budgeted: Served, month: str, words: str
) -> None:
    """With what was asked and what to write."""
    answer = budgeted.get(f"/v1/report?month={month}")
    assert answer.status == 422
    assert words in answer.body["error"]


def test_a_budget_is_planned_anew_by_an_operator(budgeted: Served) -> None:
    """The plan and the event say who asked; a budget that is none is named."""
    answer = budgeted.post(REPLAN, {})
    assert answer.status == 200
    assert "Planned budget cluster anew for 2026-11" in answer.body["done"]
    (row,) = budgeted.journal.budgets.plans("cluster", budgeted.clock.wall)
    assert row.why.startswith("made anew by ")
    assert row.curve.limit_ug == 50_000_000_000
    (event,) = (each for each in budgeted.journal.events.list(5) if each.kind == "plan")
    assert event.detail.startswith("Budget cluster: made anew by ")
    wrong = budgeted.post("/v1/budget/llama/replan", {})
    assert (wrong.status, "there is: cluster" in wrong.body["error"]) == (404, True)
    assert budgeted.get("/v1/budget").body["periods"][0]["planned_at"] is not None


def test_who_stands_by_plans_nothing(budgeted: Served) -> None:
    """Only the leader writes."""
    budgeted.loop_facts.lead = replace(budgeted.loop_facts.lead, epoch=None)
    assert budgeted.post(REPLAN, {}).status == 503
    assert budgeted.journal.budgets.plans("cluster", budgeted.clock.wall) == ()


@needs_root
def test_a_stranger_reads_the_report_and_plans_nothing(budgeted: Served) -> None:
    """Whoever may open the socket may read; a plan is for operators."""
    assert as_stranger(budgeted.socket, "GET", "/v1/report").status == 200
    refused = as_stranger(budgeted.socket, "POST", REPLAN, {})
    assert refused.status == 403
    assert "may not plan a budget anew" in refused.body["error"]


def close_month(served: Served, name: str) -> None:
    """Close a month with seven grams, as a daemon with a wrong clock does."""
    month = month_named(name, "UTC")
    figures = {"carbon": [{"signal": str(SIGNAL), "carbon_ug": 7_000_000}], "flags": ["simulated"]}
    row = ClosedRow(
        period=name,
        timezone="UTC",
        start=month.start,
        end=month.end,
        closed_at=served.clock.wall,
        figures=figures,
    )
    assert served.journal.budgets.close(row)


@needs_root
def test_a_wrongly_closed_month_is_called_out_and_reopened(
    budgeted: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an operator, with a reason; who, when and why stay in the report, and in audits."""
    for name in ("2026-11", "2027-03"):
        close_month(budgeted, name)
    PeriodRoll(budgeted.journal, budgeted.loop_facts).turn()
    budgeted.cycle.turn()

    def said() -> list[str]:
        found = budgeted.get("/v1/status").body["trouble"]
        return [each for each in found if "is closed and has not ended" in each]

    assert [each[:7] for each in said()] == ["2026-11", "2027-03"]
    assert "`wattmesh reopen 2027-03 --reason" in said()[1]
    call, reason = "/v1/report/2027-03/reopen", {"reason": "the clock was a year ahead"}
    assert as_stranger(budgeted.socket, "POST", call, reason).status == 403
    assert budgeted.post(call, {}).status == 422
    socket = ("--socket", str(budgeted.socket))
    for name in ("2026-11", "2027-03"):
        assert main(["reopen", name, "--reason", reason["reason"], *socket]) == 0
        assert f"Reopened {name}" in capsys.readouterr().out
    assert said() == []
    assert main(["reopen", "2027-03", "--reason", "again", *socket]) == 1
    assert "is not closed" in capsys.readouterr().err
    (trace,) = budgeted.get("/v1/report?month=2026-11").body["reopened"]
    assert (trace["reason"], "uid 0" in trace["by"]) == (reason["reason"], True)
    assert trace["carbon_ug"] == {str(SIGNAL): 7_000_000}
    assert main(["report", "--month", "2026-11", *socket]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "reopened" in each]
    assert "2026-11 by root (uid 0)" in line
    assert "with 7 g sim in" in line
    budgeted.register()
    assert budgeted.get("/v1/runs/llama-8b/audit").body["reopened"] == [trace]
    assert main(["budget", "--audit", "llama-8b", *socket]) == 0
    assert line in capsys.readouterr().out
    kinds = [each["kind"] for each in budgeted.get("/v1/events").body["events"]]
    assert kinds.count("reopened") == 2
