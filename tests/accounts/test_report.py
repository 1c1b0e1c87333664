"""The report of a month: every joule in every scenario, to the microgram, and never netted."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders.accounts import counters, energy
from tests.builders.carbon import intensities
from tests.builders.runs import CATALOGUE, UID, progress, register
from tests.journal.test_ledger import EMISSION
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.accounting.budgets.periods import Period, period_of
from wattmesh.controller.accounting.report.closing import close, waits_for
from wattmesh.controller.accounting.report.month import ReportSettings, report
from wattmesh.controller.accounting.report.views import MARKET, MonthReport
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.views import as_json
from wattmesh.errors import Fenced
from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.reconfig.wire.messages import Finish
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid
from wattmesh.telemetry.readings import Quality

ZONE = "Asia/Kolkata"
ACCOUNTING = Signal(provider="neso", zone="GB")
LIFECYCLE = replace(ACCOUNTING, factor="lifecycle")
MARGINAL = Signal(provider="watttime", zone="GB", kind="marginal")
HOUR = timedelta(hours=1)
NOVEMBER = period_of(datetime(2026, 11, 15, tzinfo=UTC), "month", ZONE)
START = NOVEMBER.start
GRID = SlotGrid(origin=datetime(2020, 1, 1, tzinfo=UTC), interval_s=3600.0, timezone=ZONE)
EMBODIED = RunPlan(catalogue=replace(CATALOGUE, embodied_g_per_gpu_hour=10.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A market-based factor as the settings give it."""

    label: str = "wind"
    g_per_kwh: float = 0.0
    share: float = 0.6
    starts: datetime = START
    ends: datetime = START + timedelta(days=400)


SITE = ReportSettings(
    timezone=ZONE,
    signal=str(ACCOUNTING),
    further=(LIFECYCLE, MARGINAL),
    contracts=(Contract(), Contract(label="residual mix", g_per_kwh=333.3, share=0.4)),
    pue=1.25,
)


def points(
    journal: Journal,
    signal: Signal,
    values: Sequence[float],
    first: datetime,
    *,
    quality: Quality = Quality.MEASURED,
    length: timedelta = HOUR,
) -> None:
    """Store intensities of intervals from `first`."""
    journal.carbon.store(intensities(signal, values, first, length, quality=quality))


def row(at: datetime, energy_mj: int | None, **changes: Any) -> EnergyRow:
    """Make the row of the slot that holds `at`."""
    start, end = GRID.slot(at)
    return energy(0, energy_mj, slot_start=start, slot_end=end, **changes)


def price(journal: Journal, now: datetime, pue_milli: int = 1250) -> None:
    """Turn joules into grams, as the daemon does; everything up to now is booked."""
    counters(journal, now)
    Accounts(journal, ACCOUNTING, GRID, pue_milli).price(now)


def measured_on(journal: Journal, at: datetime = NOVEMBER.end, **changes: Any) -> None:
    """Let a slot be measured that begins at `at`: after the month that is to be closed."""
    place: dict[str, Any] = {"run": "", "line": "idle", "quality": "measured", "model": ""}
    times = {"slot_start": at, "slot_end": at + HOUR, "signal": str(ACCOUNTING)}
    journal.ledger.emit([replace(EMISSION, **place | times | changes)])


def month(journal: Journal, now: datetime, site: ReportSettings = SITE) -> MonthReport:
    """Report November."""
    return report(journal, NOVEMBER, site, now)


@pytest.fixture
def booked(journal: Journal) -> Journal:
    """Four hours of a run on two GPUs, idle time, a host, and a slot that nobody measured.

    The first slot is half an hour long: the month begins at 18:30 UTC.
    """
    counters(journal, START - 10 * HOUR)
    register(
        journal,
        now=START - 10 * HOUR,
        plan=EMBODIED,
        ranks=(0, 1),
        world_size=2,
        gpus=("g0", "g1"),
        capabilities=(),
    )
    hour = START - HOUR / 2
    points(journal, ACCOUNTING, (200.0, 250.5, 301.0, 100.0, 90.0), hour - HOUR)
    points(journal, LIFECYCLE, (260.0, 310.0), hour)
    points(journal, LIFECYCLE, (150.0,), hour + 3 * HOUR)
    points(journal, MARGINAL, [500.0 + 10 * n for n in range(60)], hour, length=HOUR / 12)
    rows = [row(START - HOUR, 999_999_999)]
    for number in range(4):
        at = START + number * HOUR
        rows += [row(at, 1_234_567_891 + number, gpu_uuid=gpu) for gpu in ("g0", "g1")]
        rows.append(row(at, 55_555_555, gpu_uuid="cpu:n1:package-0"))
        rows.append(row(at, 77_777_777, gpu_uuid="g2", run="", line="idle"))
    rows.append(row(START + HOUR, 3_333, gpu_uuid="g3", run="", line="unattributed"))
    rows.append(row(START + HOUR, 4_444, gpu_uuid="g3", line="profiling"))
    rows.append(
        row(START, None, gpu_uuid="g4", run="", line="idle", unobserved_ms=7_000, upper_mj=9)
    )
    journal.ledger.book(rows, [])
    price(journal, START + 5 * HOUR)
    return journal


def test_lines_add_up_to_the_cluster_exactly(booked: Journal) -> None:
    """Joules, grams, unpriced joules: in whole units, in every scenario; and unobserved time."""
    found = month(booked, START + 5 * HOUR)
    names = [(each.kind, each.subject) for each in found.subjects]
    assert names == [
        ("line", "idle"),
        ("line", "profiling"),
        ("line", "unattributed"),
        ("run", "llm"),
    ]
    ledger = booked.ledger.between(START, START + 5 * HOUR)
    assert found.energy_mj == sum(each.energy_mj for each in ledger if each.scenario == "energy")
    assert found.carbon_ug == sum(each.carbon_ug for each in ledger if each.scenario == "actual")
    assert found.energy_mj == 4 * (2 * 1_234_567_891 + 55_555_555 + 77_777_777) + 12 + 7_777
    for total in found.totals:
        mine = [
            each
            for each in found.lines
            if (each.scenario, each.signal) == (total.scenario, total.signal)
        ]
        for name in ("energy_mj", "carbon_ug", "unpriced_mj"):
            assert getattr(total, name) == sum(getattr(each, name) for each in mine)
    market = [each for each in found.totals if each.scenario == MARKET]
    assert sum(each.energy_mj for each in market) == found.energy_mj
    assert sum(each.unobserved_ms for each in found.subjects) == 7_000
    assert found.unpriced_mj == 0
    assert found.qualities == {"measured": 1.0}


def test_the_slot_before_the_month_is_not_in_it(booked: Journal) -> None:
    """The hour from 18:00 UTC belongs to both months, half to each: one row of each."""
    october = period_of(START - HOUR, "month", ZONE)
    before = report(booked, october, SITE, START + 5 * HOUR)
    assert before.energy_mj == 999_999_999
    assert not before.running
    assert [each.slot_end for each in booked.ledger.energy(START - 2 * HOUR, START)] == [
        START - HOUR / 2
    ]


def test_further_signals_price_the_same_joules(booked: Journal) -> None:
    """Lifecycle with an hour missing, marginal in five minutes: by hand, from the rows."""
    found = month(booked, START + 5 * HOUR)
    lines = {(each.scenario, each.subject): each for each in found.lines}
    per_slot = [2 * 1_234_567_891 + 2 * n + 55_555_555 for n in range(4)]
    lifecycle = lines["lifecycle", "llm"]
    known = {0: 260_000, 1: 310_000, 3: 150_000}
    assert lifecycle.carbon_ug == sum(price_ug(per_slot[n], g, 1250) for n, g in known.items())
    assert lifecycle.energy_mj == sum(per_slot)
    assert lifecycle.unpriced_mj == per_slot[2]
    (total,) = (each for each in found.totals if each.scenario == "lifecycle")
    assert total.unpriced_h == 1.0
    assert total.signal == str(LIFECYCLE)
    marginal = lines["marginal", "llm"]
    five = [500_000 + 10_000 * n for n in range(60)]
    means = [sum(five[6:12]) // 6, *(sum(five[12 * n : 12 * n + 12]) // 12 for n in (1, 2, 3))]
    assert marginal.carbon_ug == sum(
        price_ug(mj, g, 1250) for mj, g in zip(per_slot, means, strict=True)
    )
    assert lines["location", "llm"].carbon_ug == found.subjects[-1].carbon_ug


def test_a_provisional_value_prices_no_further_line(booked: Journal) -> None:
    """A nowcast of a further signal is not reported; its joules are unpriced."""
    hour = START + 3 * HOUR / 2
    points(booked, LIFECYCLE, (280.0,), hour, quality=Quality.PROVISIONAL)
    (total,) = (
        each for each in month(booked, START + 5 * HOUR).totals if each.scenario == "lifecycle"
    )
    assert total.unpriced_h == 1.0
    points(booked, LIFECYCLE, (280.0,), hour)
    (total,) = (
        each for each in month(booked, START + 5 * HOUR).totals if each.scenario == "lifecycle"
    )
    assert total.unpriced_h == 0.0


def test_contracts_stand_beside_and_net_nothing(booked: Journal) -> None:
    """A contract of zero grams leaves the location-based figure as it is."""
    found = month(booked, START + 5 * HOUR)
    without = month(booked, START + 5 * HOUR, replace(SITE, contracts=()))
    assert found.carbon_ug == without.carbon_ug
    assert found.sci_g == without.sci_g
    totals = {each.signal: each for each in found.totals if each.scenario == MARKET}
    assert totals["wind"].carbon_ug == 0
    assert totals["residual mix"].carbon_ug > 0
    assert "not covered" not in totals
    ended = Contract(ends=START + 2 * HOUR)
    part = month(booked, START + 5 * HOUR, replace(SITE, contracts=(ended,)))
    totals = {each.signal: each for each in part.totals if each.scenario == MARKET}
    rest = totals["not covered"]
    assert rest.unpriced_mj == rest.energy_mj == part.energy_mj - totals["wind"].energy_mj
    assert rest.carbon_ug == 0


def test_grams_per_token_are_told_with_embodied_ones_or_not_at_all(booked: Journal) -> None:
    """SCI = (E x I + M) / R; facility energy is the machines' times PUE."""
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    booked.runs.finish(done, owner_uid=UID, now=START + 4 * HOUR)
    found = month(booked, START + 5 * HOUR)
    run = found.subjects[-1]
    assert run.gpu_hours == pytest.approx(2 * 3.5)
    assert run.embodied_ug == 70 * 1_000_000
    assert run.facility_mj == pytest.approx(run.energy_mj * 1.25, abs=1)
    assert found.facility_mj == sum(each.facility_mj or 0 for each in found.subjects)
    assert run.tokens is None
    assert run.sci_g is None
    whole = report(booked, period_of(START, "year", ZONE), SITE, START + 5 * HOUR)
    run = whole.subjects[-1]
    assert run.tokens == 88_000
    assert run.sci_g == pytest.approx(
        ((run.carbon_ug or 0) + (run.embodied_ug or 0)) / 88_000 * 1e3
    )
    assert whole.sci_g is not None
    assert whole.sci_g > (run.sci_g or 0.0)
    assert "Market-based factors are excluded" in whole.sci_boundary
    assert "x PUE 1.25" in whole.sci_boundary


def test_months_add_up_to_the_run(journal: Journal) -> None:
    """Tokens between the borders of months: none is lost, none counted twice."""
    counters(journal, START - 3 * HOUR)
    register(journal, now=START - 3 * HOUR)
    total = 0
    for number in range(12):
        now = START - 3 * HOUR + (number + 1) * HOUR / 2
        progress(journal, now=now, tokens=5_000 * (number + 1))
        journal.ledger.book([row(now - HOUR / 4, 1_000_000)], [])
        price(journal, now, 1000)
        total = 5_000 * (number + 1)
    now = START + 3 * HOUR
    october = period_of(START - HOUR, "month", ZONE)
    parts = [report(journal, each, SITE, now).subjects[-1].tokens for each in (october, NOVEMBER)]
    assert None not in parts
    assert sum(each or 0 for each in parts) == total
    assert parts[0] == pytest.approx(30_000, abs=5_000)


def test_a_month_is_closed_once_every_slot_is_settled(booked: Journal) -> None:
    """Not in its 48 hours, not with a provisional row, not with unbooked joules; then once."""
    site, end = replace(SITE, further=()), NOVEMBER.end
    points(booked, ACCOUNTING, (50.0,), START + 9 * HOUR / 2, quality=Quality.PROVISIONAL)
    booked.ledger.book([row(START + 5 * HOUR, 1_000_000)], [])
    assert "48 h after its end" in waits_for(booked, NOVEMBER, end + HOUR)
    later = end + 49 * HOUR
    measured_on(booked)
    assert "1 of its rows have not been priced" in waits_for(booked, NOVEMBER, later)
    price(booked, START + 6 * HOUR)
    assert "1 of its rows are provisional" in waits_for(booked, NOVEMBER, later)
    assert close(booked, replace(site, signal=""), later) == ()
    assert [each for each in close(booked, site, later) if "2026-11" in each] == []
    points(booked, ACCOUNTING, (60.0,), START + 9 * HOUR / 2)
    price(booked, later)
    assert waits_for(booked, NOVEMBER, later) == ""
    said = close(booked, site, later)
    assert len([each for each in said if "Closed 2026-11 (Asia/Kolkata):" in each]) == 1
    assert close(booked, site, later) == ()
    assert booked.by_slot.provisional(NOVEMBER.start, NOVEMBER.end) == 0


def test_no_clock_alone_closes_a_month(booked: Journal) -> None:
    """Whatever it reads: nothing is closed beyond the newest slot that was measured and priced."""
    far = NOVEMBER.end + timedelta(days=400)
    assert [each.split(" (")[0] for each in close(booked, SITE, far)] == ["Closed 2026-10"]
    assert waits_for(booked, NOVEMBER, far).startswith("no slot after its end is measured")
    for weak in (
        {"quality": "estimated", "model": "settled: anchored profile"},
        {"quality": "provisional"},
        {"quality": "unpriced"},
        {"energy_mj": None},
        {"scenario": "baseline"},
        {"slot_start": NOVEMBER.end - HOUR, "slot_end": NOVEMBER.end - HOUR / 2},
    ):
        measured_on(booked, NOVEMBER.end, **weak)
        assert waits_for(booked, NOVEMBER, far).startswith("no slot after its end"), weak
    measured_on(booked)
    assert [each.split(" (")[0] for each in close(booked, SITE, far)] == ["Closed 2026-11"]


def test_a_month_closed_wrongly_is_reopened_and_leaves_a_trace(booked: Journal) -> None:
    """Who, when, why and what it had been stay in its report; it is closed anew, once."""
    measured_on(booked)
    later = NOVEMBER.end + 49 * HOUR
    close(booked, SITE, later)
    epoch = booked.leadership.acquire("test", 60.0) or 0
    wrong = month(booked, later)

    def reopen(epoch: int, now: datetime) -> bool:
        return booked.budgets.reopen(
            "2026-11", ZONE, by="ada (uid 7)", reason="its clock was wrong", now=now, epoch=epoch
        )

    with pytest.raises(Fenced):
        reopen(epoch + 1, later)
    assert reopen(epoch, later + HOUR)
    assert not reopen(epoch, later + HOUR)
    after = month(booked, later + HOUR)
    assert (wrong.closed_at, after.closed_at, after.closed_carbon_ug) == (later, None, None)
    (trace,) = after.reopened
    assert (trace.month, trace.by, trace.reason) == (
        "2026-11",
        "ada (uid 7)",
        "its clock was wrong",
    )
    assert (trace.closed_at, trace.reopened_at) == (later, later + HOUR)
    assert trace.carbon_ug == {str(ACCOUNTING): wrong.carbon_ug}
    points(booked, ACCOUNTING, (999.0,), START + HOUR / 2)
    price(booked, later + 2 * HOUR)
    assert len(close(booked, SITE, later + 3 * HOUR)) == 1
    anew = month(booked, later + 3 * HOUR)
    assert (anew.closed_carbon_ug or 0) > (wrong.carbon_ug or 0)
    assert anew.reopened == after.reopened
    assert booked.budgets.closed_after(later) == ()
    assert booked.budgets.closed_after(NOVEMBER.start) == ("2026-11",)


def test_a_revision_after_the_closing_is_restated_against_it(booked: Journal) -> None:
    """What was closed stands; the report has the new figure beside it."""
    later = NOVEMBER.end + 49 * HOUR
    measured_on(booked)
    close(booked, SITE, later)
    closed = booked.budgets.closed("2026-11", ZONE)
    assert closed is not None
    before = month(booked, later)
    assert before.closed_carbon_ug == before.carbon_ug == closed.figures["carbon_ug"]
    points(booked, ACCOUNTING, (999.0,), START + HOUR / 2)
    price(booked, later + HOUR)
    after = month(booked, later + HOUR)
    assert after.closed_carbon_ug == before.carbon_ug
    assert (after.carbon_ug or 0) > (before.carbon_ug or 0) > 0
    assert booked.budgets.closed("2026-11", ZONE) == closed


def test_a_closed_month_outlives_its_slots(booked: Journal) -> None:
    """Retention sums its slots up: location-based from the sums, the rest as it was closed."""
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    booked.runs.finish(done, owner_uid=UID, now=START + 4 * HOUR)
    later = NOVEMBER.end + 49 * HOUR
    measured_on(booked)
    close(booked, SITE, later)
    before = month(booked, later)
    assert booked.retention.roll_up(later, ZONE) > 0
    after = month(booked, later)
    assert after.detail_of == "closing"
    assert after == replace(before, detail_of="closing")


def test_days_are_rolled_up_as_the_site_has_them(booked: Journal) -> None:
    """Summed up by days of UTC, the first evening would fall into October: the sabotaged twin."""
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    booked.runs.finish(done, owner_uid=UID, now=START + 4 * HOUR)
    october = period_of(START - HOUR, "month", ZONE)
    later = NOVEMBER.end + 49 * HOUR
    before = _energy(booked, NOVEMBER), _energy(booked, october)
    booked.retention.roll_up(later, ZONE)
    assert (_energy(booked, NOVEMBER), _energy(booked, october)) == before


def test_days_of_utc_would_move_joules_to_another_month(booked: Journal) -> None:
    """Sabotaged."""
    done = Finish(run="r", incarnation="i1", attempt=1, step=9, tokens=88_000, reason="done")
    booked.runs.finish(done, owner_uid=UID, now=START + 4 * HOUR)
    before = _energy(booked, NOVEMBER)
    booked.retention.roll_up(NOVEMBER.end + 49 * HOUR, "UTC")
    assert _energy(booked, NOVEMBER) != before


def _energy(journal: Journal, period: Period) -> int:
    """Sum a period's joules."""
    rows = journal.ledger.between(period.start, period.end)
    return sum(each.energy_mj for each in rows if each.scenario == "energy")


def test_a_report_without_any_signal_still_has_joules(journal: Journal) -> None:
    """No grams, and not zero grams: everything is unpriced."""
    journal.ledger.book([row(START, 1_000_000)], [])
    found = month(journal, START + HOUR, ReportSettings(timezone=ZONE, signal=""))
    assert (found.energy_mj, found.unpriced_mj, found.carbon_ug) == (1_000_000, 1_000_000, 0)
    assert found.qualities == {"unpriced": 1.0}
    assert found.sci_g is None
    assert found.facility_mj is None


def test_a_report_is_plain_json(booked: Journal) -> None:
    """Also the one that is kept when the month is closed."""
    found = as_json(month(booked, START + 5 * HOUR))
    assert json.loads(json.dumps(found)) == found
