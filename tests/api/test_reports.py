"""The report of a month and the plan made anew, asked over the socket."""

from datetime import timedelta

import pytest

from tests.api.conftest import Served
from tests.api.stranger import as_stranger, needs_root
from tests.api.test_reading import SIGNAL, carbon
from wattmesh.controller.settings.model import BudgetSection
from wattmesh.telemetry.ledger import EnergyRow

REPLAN = "/v1/budget/cluster/replan"


@pytest.fixture
def budgeted(served: Served) -> Served:
    """The interface of a daemon with a budget, and half an hour of idle joules."""
    limits = {"budget": {"cluster": BudgetSection(grams=50_000.0)}}
    served.pulse.settings = served.pulse.settings.model_copy(update=limits)
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
    budgeted.pulse.epoch = None
    assert budgeted.post(REPLAN, {}).status == 503
    assert budgeted.journal.budgets.plans("cluster", budgeted.clock.wall) == ()


@needs_root
def test_a_stranger_reads_the_report_and_plans_nothing(budgeted: Served) -> None:
    """Whoever may open the socket may read; a plan is for operators."""
    assert as_stranger(budgeted.socket, "GET", "/v1/report").status == 200
    refused = as_stranger(budgeted.socket, "POST", REPLAN, {})
    assert refused.status == 403
    assert "may not plan a budget anew" in refused.body["error"]
