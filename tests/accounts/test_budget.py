"""Budgets: lines that add up exactly, and savings that may be claimed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.accounts.build import (
    GPUS,
    SIGNAL,
    accounts,
    after,
    book,
    energy,
    finish,
    intensity,
    progress,
    register,
    slot,
)
from wattmesh.controller.books.budget import (
    Audit,
    BudgetView,
    ClusterLine,
    RunBudget,
    audit,
    budget,
)
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import InputInvalid
from wattmesh.telemetry.readings import Quality

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
    """A run that finished after 90 s at a lower power than its baseline, with everything known."""
    register(journal)
    progress(journal, now=DONE, tokens=85_000)
    finish(journal, now=DONE, tokens=85_000)
    for number in range(3):
        book(journal, *(energy(number, 10_000_000, gpu_uuid=gpu) for gpu in GPUS))
    intensity(journal, (100.0, 200.0, 300.0, *[400.0] * (until - 3)), quality=quality)
    accounts(journal).price(after(120))


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
    assert lines["run"].carbon_g == sum(run.carbon_g for run in found.runs)
    assert found.total.energy_j == 120_000 + 3_600 + 1_800 + 1.234
    twin = [replace(line, carbon_g=line.carbon_g + 1e-6) for line in found.lines]
    assert off(twin, found.total) == ["carbon_g"]
    assert off(found.lines[1:], found.total)


def test_joules_that_were_not_priced_yet_are_told(journal: Journal) -> None:
    """Booked since grams were last: joules without grams, not joules of zero grams."""
    finished(journal)
    book(journal, energy(3, 5_000, gpu_uuid="g0", run="", line="idle"))
    lines = {line.line: line for line in view(journal).lines}
    assert lines["idle"].unpriced_j == 5.0


def test_a_settled_saving_is_the_baseline_less_what_was_spent(journal: Journal) -> None:
    """The run was at its baseline's point: 90 s at 1600 W, less three slots of four GPUs."""
    finished(journal)
    found = laid_open(journal)
    assert found.actual_ug == 4 * sum((10_000_000 * g + 1_800) // 3_600 for g in (100, 200, 300))
    assert found.reference_ug == pytest.approx(
        (100 * 30 + 200 * 30 + 300 * 30) * 1600 / 3.6, rel=1e-5
    )
    assert found.saved_ug == (found.reference_ug or 0) - found.actual_ug
    assert (found.settled, found.unbooked_mj, found.unobserved_ug) == (True, 0, 0)
    run = one(journal)
    assert run.saved_g == found.saved_ug / 1e6
    assert run.carbon_g == found.actual_ug / 1e6


def test_a_saving_is_not_told_while_the_baseline_is_behind(journal: Journal) -> None:
    """Less work is no saving."""
    register(journal)
    progress(journal, now=after(30), tokens=31_000)
    intensity(journal, (100.0,) * 9)
    accounts(journal).price(after(30))
    run = one(journal)
    assert (run.saved_g, run.settled, view(journal).unsettled) == (None, False, ("llm",))
    progress(journal, now=after(32), tokens=31_500)
    accounts(journal).price(after(32))
    assert one(journal).saved_g is not None
    assert view(journal).unsettled == ()


@pytest.mark.parametrize("hole", ["actual", "baseline"])
def test_a_saving_is_not_told_while_a_slot_has_no_grams(journal: Journal, hole: str) -> None:
    """Whichever scenario needs the missing intensity."""
    register(journal)
    progress(journal, now=DONE, tokens=85_000)
    finish(journal, now=DONE, tokens=85_000)
    intensity(journal, (100.0, 200.0, 300.0) if hole == "actual" else (100.0, 200.0))
    book(journal, energy(3 if hole == "actual" else 1, 5_000))
    accounts(journal).price(after(130))
    assert one(journal).saved_g is None
    assert laid_open(journal).saved_ug is None


def test_what_nobody_measured_counts_against_the_saving(journal: Journal) -> None:
    """At the most it can have been, and only where that is known."""
    finished(journal)
    saved_g = one(journal).saved_g
    assert saved_g is not None
    book(journal, energy(1, None, gpu_uuid="g7", unobserved_ms=30_000, upper_mj=3_600_000))
    accounts(journal).price(after(130))
    assert one(journal).saved_g == pytest.approx(saved_g - 0.2, abs=1e-9)
    assert one(journal).unobserved_g == 0.2
    assert laid_open(journal).saved_ug == round((saved_g - 0.2) * 1e6)
    book(journal, energy(1, None, gpu_uuid="g7", unobserved_ms=30_000, upper_mj=0))
    accounts(journal).price(after(130))
    assert one(journal).saved_g is None


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
    assert set(run.qualities) == {"provisional"}


def test_retention_keeps_every_figure(journal: Journal) -> None:
    """All at once, or the oldest slots first: the sums of what went stay in the audit."""
    finished(journal)
    book(journal, energy(0, 3_600_000, gpu_uuid="g4", run="", line="unattributed"))
    accounts(journal).price(after(120))
    before, whole = view(journal), laid_open(journal)
    for until in (slot(2), after(1000)):
        journal.retention.roll_up(until + timedelta(microseconds=1))
        journal.retention.prune(until)
        assert replace(view(journal), runs=()) == replace(before, runs=())
        assert replace(one(journal), bound_g=None) == replace(before.runs[0], bound_g=None)
        found = laid_open(journal)
        assert found.saved_ug == whole.saved_ug
        assert found.earlier_tokens + sum(row.tokens for row in found.reference) == 85_000


def test_a_run_without_a_baseline_has_no_saving_to_audit(journal: Journal) -> None:
    """The message says what to set."""
    register(journal)
    row = journal.runs.find("r", after(1))
    assert row is not None
    with pytest.raises(InputInvalid, match="no baseline"):
        audit(journal, replace(row, baseline=""), "")


def test_work_from_before_the_registration_is_in_no_saving(journal: Journal) -> None:
    """A job attached half way: both sides count what was trained since."""
    register(journal, tokens=50_000)
    progress(journal, now=after(20), tokens=70_000)
    intensity(journal, (100.0,) * 9)
    finish(journal, now=after(20), tokens=70_000)
    accounts(journal).price(after(40))
    found = laid_open(journal)
    assert found.tokens == 20_000
    assert found.reference_ug == pytest.approx(20 * 1600 * 100 / 3.6, rel=1e-5)
