"""Budgets: lines that add up exactly, and savings that may be claimed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.accounts.test_as_run import PROMPT, leader
from tests.builders.accounts import (
    GPUS,
    SIGNAL,
    T0,
    B,
    Life,
    accounts,
    after,
    book,
    counters,
    energy,
    finish,
    intensity,
    moved,
    progress,
    register,
    slot,
)
from wattmesh.controller.accounting.audit import Audit, audit
from wattmesh.controller.accounting.budget import BudgetView, ClusterLine, RunBudget, budget
from wattmesh.controller.accounting.closing_runs import close_runs
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.errors import InputInvalid
from wattmesh.policies.accounting.baseline import BEHIND, NO_PRICE
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

PLAN_300 = RunPlan(catalogue=PROMPT.catalogue, deadline_after_s=300.0)
FIELDS = ("energy_j", "carbon_g", "unobserved_s", "unpriced_j", "upper_j")
DONE = after(90)


def view(journal: Journal) -> BudgetView:
    """Add everything up."""
    return budget(journal, after(10**6), str(SIGNAL))


def one(journal: Journal) -> RunBudget:
    """Add the only run up."""
    (run,) = view(journal).runs
    return run


def laid_open(journal: Journal) -> Audit:
    """Audit the only run."""
    row = journal.runs.find("r", after(10**6))
    assert row is not None
    return audit(journal, row, str(SIGNAL))


def finished(journal: Journal, *, quality: Quality = Quality.MEASURED, until: int = 10) -> None:
    """A run that finished after 90 s: two slots at A, one at B, all of it read and priced.

    It was moved between two slots, in no time; at A it drew 1600 W and trained 1000 tokens/s.
    """
    intensity(journal, (100.0, 200.0, 300.0, *[400.0] * (until - 3)), quality=quality)
    life = Life(journal=journal)
    life.begin(plan=PLAN_300, tokens_total=100_000)
    life.live(2)
    moved(journal, leader(journal), begun=slot(2), ended=slot(2))
    life.layout, life.power_w, life.rate = B, 8_000 / 30, 2500 / 3
    life.live()
    finish(journal, now=DONE, tokens=85_000)
    life.books.price(after(120))


def off(lines: Sequence[ClusterLine], whole: ClusterLine) -> list[str]:
    """Name what does not add up, in whole thousandths and micrograms."""
    return [
        name
        for name in FIELDS
        if round(1e6 * getattr(whole, name))
        != sum(round(1e6 * getattr(line, name)) for line in lines)
    ]


def test_the_lines_add_up_to_the_cluster(journal: Journal) -> None:
    """Runs, idle, unattributed and unobserved; and each line has the grams of its own joules."""
    finished(journal)
    book(
        journal,
        energy(0, 3_600_000, gpu_uuid="g4", run="", line="idle"),
        energy(1, 1_800_000, gpu_uuid="g5", run="", line="unattributed"),
        energy(2, None, gpu_uuid="g6", run="", line="idle", unobserved_ms=7, upper_mj=9_000),
        energy(50, 1_234, gpu_uuid="g4", run="", line="idle"),
    )
    accounts(journal).price(after(120))
    found = view(journal)
    lines = {line.line: line for line in found.lines}
    assert not off(found.lines, found.total)
    assert lines["idle"].carbon_g == 0.1
    assert (lines["idle"].unpriced_j, lines["idle"].unobserved_s) == (1.234, 0.007)
    assert lines["unattributed"].carbon_g == 0.1
    assert lines["run"].carbon_g == found.runs[0].carbon_g
    assert found.total.energy_j == 128_000 + 3_600 + 1_800 + 1.234
    twin = [replace(line, carbon_g=(line.carbon_g or 0) + 1e-6) for line in found.lines]
    assert off(twin, found.total) == ["carbon_g"]
    assert off(found.lines[1:], found.total)


def test_joules_that_were_not_priced_yet_are_told(journal: Journal) -> None:
    """Booked since grams were last: joules without grams, not joules of zero grams."""
    finished(journal)
    book(journal, energy(3, 5_000, gpu_uuid="g0", run="", line="idle"))
    lines = {line.line: line for line in view(journal).lines}
    assert lines["idle"].unpriced_j == 5.0


def test_a_settled_saving_is_the_baseline_less_what_was_spent(journal: Journal) -> None:
    """At its submitted point it is its baseline; then 25 s at 1600 W, less a slot of four GPUs."""
    finished(journal)
    found = laid_open(journal)
    at_a, at_b = (12_000_000, (100, 200)), (8_000_000, (300,))
    assert found.actual_ug == 4 * sum(
        (each_mj * g + 1_800) // 3_600 for each_mj, intensities in (at_a, at_b) for g in intensities
    )
    assert found.reference_ug == pytest.approx(
        (100 * 30 + 200 * 30 + 300 * 25) * 1600 / 3.6, rel=1e-5
    )
    assert found.saved_ug == (found.reference_ug or 0) - found.actual_ug
    assert (found.settled, found.unbooked_mj, found.unobserved_ug) == (True, 0, 0)
    run = one(journal)
    assert run.saved_g == found.saved_ug / 1e6
    assert run.carbon_g == found.actual_ug / 1e6


def test_a_saving_is_not_told_while_the_baseline_is_behind(journal: Journal) -> None:
    """Less work is no saving."""
    intensity(journal, (100.0,) * 9)
    life = Life(journal=journal)
    life.begin(plan=PLAN_300)
    life.live(2)
    moved(journal, leader(journal), begun=slot(2), ended=slot(2))
    life.layout, life.rate = B, 1200.0
    life.live()
    run = one(journal)
    assert (run.saved_g, run.settled, view(journal).unsettled) == (None, False, ("llm",))
    assert run.unsettled == BEHIND
    life.rate = 700.0
    life.live()
    assert one(journal).saved_g is not None
    assert view(journal).unsettled == ()


@pytest.mark.parametrize("hole", ["actual", "baseline"])
def test_a_saving_is_not_told_while_a_slot_has_no_grams(journal: Journal, hole: str) -> None:
    """Whichever scenario needs the missing intensity."""
    finished(journal, until=3)
    assert one(journal).saved_g is not None
    if hole == "actual":
        book(journal, energy(3, 5_000))
    else:  # the run trained more than its baseline had in the slots that have a price
        with journal.database.writing() as connection:
            connection.exec_driver_sql("UPDATE token_marks SET tokens = 95000 WHERE tokens = 85000")
            connection.exec_driver_sql("UPDATE runs SET tokens = 95000")
    accounts(journal).price(after(130))
    assert (one(journal).saved_g, one(journal).unsettled) == (None, NO_PRICE)
    assert laid_open(journal).saved_ug is None


def test_what_nobody_measured_counts_against_the_saving(journal: Journal) -> None:
    """At the most it can have been, and only where that is known."""
    finished(journal)
    saved_g = one(journal).saved_g
    assert saved_g is not None
    book(journal, energy(1, None, gpu_uuid="g7", unobserved_ms=30_000, upper_mj=3_600_000))
    accounts(journal).price(after(130))
    assert one(journal).saved_g == pytest.approx(saved_g, abs=1e-9)  # at its submitted point
    book(journal, energy(2, None, gpu_uuid="g7", unobserved_ms=30_000, upper_mj=3_600_000))
    accounts(journal).price(after(130))
    assert one(journal).saved_g == pytest.approx(saved_g - 0.3, abs=1e-9)
    # That GPU may have drawn at the submitted point too, so its measured watts have a band: 120 W
    # beside 1600, and of the two slots measured the one is out of the usual, seen from the other.
    high_g = one(journal).saved_high_g
    assert high_g is not None
    assert high_g > saved_g
    assert one(journal).upper_g == pytest.approx(0.5)
    assert laid_open(journal).saved_ug == round((saved_g - 0.3) * 1e6)


def test_the_bound_is_told_only_when_everything_to_the_deadline_is_measured(
    journal: Journal,
) -> None:
    """The deadline is 300 s after the registration: ten slots."""
    finished(journal, until=9)
    assert one(journal).saved_g is not None
    assert one(journal).bound_g is None
    intensity(journal, (400.0,), first=9, quality=Quality.PROVISIONAL)
    assert one(journal).bound_g is None
    intensity(journal, (400.0,), first=9)
    bound_g, baseline_g = one(journal).bound_g, one(journal).baseline_g
    assert bound_g is not None
    assert baseline_g is not None
    assert 0 < bound_g <= baseline_g


def test_a_provisional_interval_before_the_deadline_holds_the_bound_back(journal: Journal) -> None:
    """The saving is told, in provisional grams; the bound is not."""
    finished(journal, quality=Quality.PROVISIONAL)
    run = one(journal)
    assert run.saved_g is not None
    assert run.bound_g is None
    assert set(run.qualities) == {"provisional+simulated"}  # the grid is a recording


def test_retention_keeps_every_figure(journal: Journal) -> None:
    """A run is closed as a whole, once its newest slot is old; what it came to then stays."""
    finished(journal)
    book(journal, energy(0, 3_600_000, gpu_uuid="g4", run="", line="unattributed"))
    accounts(journal).price(after(120))
    before, whole = view(journal), laid_open(journal)
    for until in (slot(2), after(1000)):
        close_runs(journal, until, until)
        journal.retention.roll_up(until + timedelta(microseconds=1))
        journal.retention.prune(until)
        assert replace(view(journal), runs=()) == replace(before, runs=())
        assert replace(one(journal), bound_g=None) == replace(before.runs[0], bound_g=None)
        found = laid_open(journal)
        assert (found.saved_ug, found.tokens) == (whole.saved_ug, 85_000)
        assert found.summed_up == (found.actual == ()) == (until > slot(2))


def test_a_run_without_a_baseline_has_no_saving_to_audit(journal: Journal) -> None:
    """The message says what to set."""
    register(journal)
    row = journal.runs.find("r", after(1))
    assert row is not None
    with pytest.raises(InputInvalid, match="no baseline"):
        audit(journal, replace(row, baseline=""), "")


def test_work_from_before_the_registration_is_in_no_saving(journal: Journal) -> None:
    """A job attached half way: both sides count what was trained since."""
    counters(journal, T0)
    register(journal, tokens=50_000)
    progress(journal, now=after(20), tokens=70_000)
    book(journal, *(energy(0, 8_000_000, gpu_uuid=gpu) for gpu in GPUS))
    counters(journal, after(20))
    intensity(journal, (100.0,) * 9)
    finish(journal, now=after(20), tokens=70_000)
    accounts(journal).price(after(40))
    found = laid_open(journal)
    assert found.tokens == 20_000
    assert found.reference_ug == pytest.approx(20 * 1600 * 100 / 3.6, rel=1e-5)


def test_what_was_given_back_is_taken_from_the_cluster_s_saving(journal: Journal) -> None:
    """GPUs that nobody has yet draw on: not the run's joules, but they were not saved either."""
    finished(journal)
    before = view(journal)
    book(
        journal,
        energy(2, 3_600_000, gpu_uuid="g3", run="", line="idle_after_release"),
        energy(2, 3_600_000, gpu_uuid="g9", run="", line="idle"),
    )
    accounts(journal).price(after(130))
    found = view(journal)
    assert found.runs[0].saved_g == before.runs[0].saved_g
    assert before.saved_g == before.runs[0].saved_g
    assert found.saved_g == pytest.approx((before.saved_g or 0) - 0.3)
    (line,) = found.saved
    assert line.released_g == pytest.approx(0.3)
    assert line.better_point_g + line.carbon_aware_g + line.unsplit_g == pytest.approx(line.saved_g)


def test_grams_of_two_signals_are_two_lines(journal: Journal) -> None:
    """After a reload named another one: no sum of both is told anywhere."""
    finished(journal)
    other = Signal(provider="electricity_maps", zone="GB", factor="lifecycle", gas="CO2eq")
    intensity(journal, (50.0,) * 9, signal=other)
    book(journal, energy(5, 3_600_000))
    accounts(journal, other).price(after(200))
    found = view(journal)
    assert found.total.carbon_g is None
    assert {each.signal for each in found.total.carbon} == {str(SIGNAL), str(other)}
    run = found.runs[0]
    assert (run.carbon_g, run.saved_g) == (None, None)
    assert "2 signals" in run.unsettled
    assert (found.saved, found.saved_g) == ((), None)
