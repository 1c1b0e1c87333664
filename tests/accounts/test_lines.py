"""The cluster's lines add up whatever is booked and revised, and one PUE stays with its row."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.accounts.test_budget import off, view
from tests.audit import independent
from tests.builders.accounts import (
    GPUS,
    GRID,
    SIGNAL,
    T0,
    accounts,
    after,
    book,
    counters,
    energy,
    finish,
    intensity,
    progress,
    register,
)
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.audit import audit
from wattmesh.controller.accounting.budget import budget
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.metrics.figures import GramsFigure, grams
from wattmesh.controller.views import as_json
from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.telemetry.energy.ledger import EnergyRow

LINES = ("run", "idle", "unattributed", "idle_after_release", "profiling")

FOUND = st.lists(
    st.builds(
        lambda number, gpu, line, energy_mj, unobserved_ms, upper_mj: energy(
            number,
            energy_mj,
            gpu_uuid=gpu,
            line=line,
            run="r" if line in ("run", "profiling") else "",
            unobserved_ms=unobserved_ms,
            upper_mj=upper_mj,
        ),
        number=st.integers(0, 3),
        gpu=st.sampled_from(("g0", "g1", "cpu:n1:package-0")),
        line=st.sampled_from(LINES),
        energy_mj=st.none() | st.integers(0, 10**9),
        unobserved_ms=st.integers(0, 30_000),
        upper_mj=st.integers(0, 10**9),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: (row.gpu_uuid, row.run, row.slot_start, row.line),
)
PRICES = st.lists(st.none() | st.integers(1, 900), min_size=4, max_size=4)


def counted(journal: Journal) -> Mapping[tuple[str, ...], GramsFigure]:
    """Give the grams as the metrics have them."""
    found = grams(journal.ledger.totals(), {})
    return {(each.run_id, each.line, each.signal): each for each in found}


@settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(rows=FOUND, rounds=st.lists(PRICES, min_size=1, max_size=3))
def test_lines_add_up_and_first_reports_never_fall(
    journal: Journal, rows: list[EnergyRow], rounds: list[list[int | None]]
) -> None:
    """Every joule, gram and dark second is in one line; what was first reported stays reported."""
    book(journal, *rows)
    before: Mapping[tuple[str, ...], GramsFigure] = {}
    for prices in rounds:
        for number, value in enumerate(prices):
            if value is not None:
                intensity(journal, (float(value),), first=number)
        accounts(journal).price(after(200))
        found = view(journal)
        assert not off(found.lines, found.total)
        now = counted(journal)
        for key, each in before.items():
            if each.first_ug:
                assert now[key].first_ug >= each.first_ug
        before = now


def test_a_slot_that_changed_its_line_has_a_row_for_each(journal: Journal) -> None:
    """First idle, then nobody's: both are priced, and neither takes the other's joules."""
    idle = energy(0, 3_600_000, run="", line="idle")
    nobodys = energy(0, 1_800_000, run="", line="unattributed")
    book(journal, idle, nobodys)
    intensity(journal, (100.0,))
    accounts(journal).price(after(60))
    lines = {line.line: line for line in view(journal).lines}
    assert (lines["idle"].carbon_g, lines["unattributed"].carbon_g) == (0.1, 0.05)


def facility(journal: Journal, pue_milli: int) -> Accounts:
    """Make the accounts of a site whose boundary is the facility."""
    return Accounts(journal, SIGNAL, GRID, pue_milli)


def ran(journal: Journal, pue_milli: int) -> Any:
    """Book and price a run of three slots; give its audit as a reader gets it."""
    counters(journal, T0)
    register(journal, tokens=1_000)
    progress(journal, now=after(90), tokens=86_000)
    finish(journal, now=after(90), tokens=86_000)
    for number in range(3):
        book(journal, *(energy(number, 9_999_999 + number, gpu_uuid=gpu) for gpu in GPUS))
    book(journal, energy(1, None, gpu_uuid="g9", unobserved_ms=40, upper_mj=28_000))
    intensity(journal, (101.0, 203.0, 307.0, 400.0, 400.0))
    counters(journal, after(150))
    facility(journal, pue_milli).price(after(150))
    row = journal.runs.find("r", after(200))
    assert row is not None
    return as_json(audit(journal, row, str(SIGNAL)))


def test_a_facilitys_grams_are_those_of_its_machines_times_the_pue(journal: Journal) -> None:
    """Both scenarios, the unobserved upper bound and the saving; recomputed by a stranger."""
    found = ran(journal, 1_375)
    priced = [row for row in (*found["actual"], *found["reference"]) if row["carbon_ug"]]
    assert {row["pue_milli"] for row in priced} == {1_375}
    row = next(each for each in found["actual"] if each["energy_mj"])
    plain_ug = price_ug(row["energy_mj"], row["g_milli_per_kwh"])
    assert row["carbon_ug"] == pytest.approx(plain_ug * 1.375, abs=1)
    assert found["saved_ug"] is not None
    assert independent.differences(found) == []
    found["actual"][0]["pue_milli"] = 1_000
    assert independent.differences(found) != []


def test_another_pue_rewrites_no_history(journal: Journal) -> None:
    """Settings changed: slots that have a price keep its PUE, also through a restatement.

    So do joules that come late to a slot in which anything has a price.
    """
    ran(journal, 1_250)
    for slot in (3, 5):
        book(journal, energy(slot, 3_600_000, run="", line="idle"))
    intensity(journal, (150.0,), first=0)
    intensity(journal, (150.0,), first=5)
    facility(journal, 1_100).price(after(200))
    rows = journal.ledger.emissions()
    assert {row.pue_milli for row in rows if row.carbon_ug and row.line == "run"} == {1_250}
    assert [row.pue_milli for row in rows if row.line == "idle"] == [1_250, 1_100]
    assert any(row.g_milli_per_kwh == 150_000 for row in rows)


def test_the_boundary_and_the_pue_are_told(journal: Journal) -> None:
    """A reader of the budget sees what the grams are of."""
    assert view(journal).boundary == "GPUs, as the power source measures them"
    found = budget(journal, after(10), str(SIGNAL), pue=1.3)
    assert found.boundary.endswith("x PUE 1.3")
    assert asdict(found)["pue"] == 1.3


def test_savings_are_estimated_below_full_coverage_or_with_dark_time(journal: Journal) -> None:
    """56 of 64 GPUs, or 40 ms of one: not the word of somebody who saw everything."""
    ran(journal, 1_000)
    found = budget(journal, after(200), str(SIGNAL), covered=(64, 64))
    assert (found.estimated, found.runs[0].estimated) == (True, True)
    journal.ledger.book([energy(1, 28_000, gpu_uuid="g9")], [])
    facility(journal, 1_000).price(after(200))
    assert not budget(journal, after(200), str(SIGNAL), covered=(64, 64)).estimated
    found = budget(journal, after(200), str(SIGNAL), covered=(56, 64))
    assert (found.estimated, found.covered) == (True, (56, 64))
