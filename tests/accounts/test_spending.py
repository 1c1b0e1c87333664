"""Where a budget stands in its running period."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders.accounts import SIGNAL, register
from tests.journal.test_ledger import EMISSION, ENERGY
from wattmesh.controller.accounting.budgets.budget_plans import BudgetPlans
from wattmesh.controller.accounting.budgets.spending import PeriodLine, spending
from wattmesh.controller.journal.journal import Journal
from wattmesh.errors import FixInput

HOUR = timedelta(hours=1)
MONTH = datetime(2026, 11, 1, tzinfo=UTC)
G = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A budget as the settings give it."""

    grams: float = 3000.0
    period: str = "month"


def booked(
    journal: Journal, start: datetime, carbon_g: float | None, run: str = "r", first_g: float = 0.0
) -> None:
    """Book one slot of an hour: 1 kJ and its grams."""
    end = start + HOUR
    row = replace(ENERGY, run=run, slot_start=start, slot_end=end, energy_mj=1_000_000)
    journal.ledger.book([row], [])
    known = carbon_g is not None
    journal.ledger.emit(
        [
            replace(
                EMISSION,
                run=run,
                slot_start=start,
                slot_end=end,
                signal=str(SIGNAL),
                energy_mj=1_000_000,
                quality="measured" if known else "unpriced",
                g_milli_per_kwh=1 if known else None,
                carbon_ug=round(carbon_g * G) if carbon_g is not None else None,
                first_carbon_ug=round((first_g or carbon_g or 0) * G) if known else None,
            )
        ]
    )


def cluster(journal: Journal, now: datetime, limit: Limit | None = None) -> PeriodLine:
    """Give the cluster's line."""
    (line,) = spending(journal, {"cluster": limit or Limit()}, "UTC", now, signal=str(SIGNAL))
    return line


def test_a_period_counts_the_slots_that_begin_in_it(journal: Journal) -> None:
    """The one before midnight is last month's; whoever drew, it is the cluster's."""
    booked(journal, MONTH - HOUR, 100.0)
    booked(journal, MONTH, 7.0)
    booked(journal, MONTH + HOUR, 5.0, run="")
    line = cluster(journal, MONTH + timedelta(days=3))
    assert (line.period, line.start, line.spent_g) == ("2026-11", MONTH, 12.0)
    assert line.expected_g == pytest.approx(300.0)
    assert line.burn == pytest.approx(12 / 300)
    assert line.alert == ""


def test_what_has_no_grams_stands_beside(journal: Journal) -> None:
    """Unknown is not zero: its joules are named."""
    booked(journal, MONTH, 7.0)
    booked(journal, MONTH + HOUR, None)
    line = cluster(journal, MONTH + timedelta(days=3))
    assert (line.spent_g, line.unpriced_j) == (7.0, 1000.0)


def test_a_restatement_is_told(journal: Journal) -> None:
    """What revised intensities added to what was first reported."""
    booked(journal, MONTH, 7.0, first_g=6.5)
    assert cluster(journal, MONTH + timedelta(days=3)).restated_g == pytest.approx(0.5)


def test_the_rate_of_the_newest_days_is_carried_on(journal: Journal) -> None:
    """Two days at 5 g an hour: the 28 days to come are reckoned like them."""
    for hour in range(48):
        booked(journal, MONTH + hour * HOUR, 5.0)
    line = cluster(journal, MONTH + timedelta(days=2))
    assert line.on_course_g == pytest.approx(30 * 24 * 5.0)
    assert [each.ratio for each in line.burns] == [
        pytest.approx(1.2),
        pytest.approx(1.2),
        None,
        None,
    ]
    assert line.low_g is None
    assert line.alert == ""


def test_a_week_above_the_plan_alerts_with_when_it_is_used_up(journal: Journal) -> None:
    """Three and seven days at 1.2 times the plan; the sentence says what to do."""
    for hour in range(8 * 24):
        booked(journal, MONTH + hour * HOUR, 5.0)
    line = cluster(journal, MONTH + timedelta(days=8))
    assert line.urgency == "slow"
    assert "(6 h 1.2x, 24 h 1.2x, 3 d 1.2x, 7 d 1.2x of the plan's rate)" in line.alert
    assert "on course for 3.6 kg of 3 kg by the end of 2026-11" in line.alert
    assert "used up by 2026-11-26 00:00 UTC" in line.alert
    assert "raise budget.cluster.grams" in line.alert
    assert line.low_g == pytest.approx(3600.0)
    assert line.high_g == pytest.approx(3600.0)


def test_deadlines_that_do_not_fit_are_said_at_once(journal: Journal) -> None:
    """The cheapest plan of a run that must be done this month needs more than is left."""
    register(journal, now=MONTH)
    booked(journal, MONTH, 7.0)
    limits, now = {"cluster": Limit(), "llm": Limit(grams=9000.0)}, MONTH + timedelta(days=1)
    bounds = {"r": 2_995.0}
    cluster_line, run_line = spending(
        journal, limits, "UTC", now, bounds=bounds, signal=str(SIGNAL)
    )
    assert "even the cheapest plans that keep the deadlines end above 3 kg" in cluster_line.alert
    assert (cluster_line.urgency, run_line.alert) == ("", "")


def test_nothing_is_carried_on_from_too_little(journal: Journal) -> None:
    """A quarter of an hour is no rate; nor is nothing."""
    assert cluster(journal, MONTH + timedelta(days=2)).on_course_g is None
    booked(journal, MONTH, 5.0)
    assert cluster(journal, MONTH + timedelta(minutes=15)).on_course_g is None


def test_an_exhausted_budget_says_what_to_do(journal: Journal) -> None:
    """It alerts; no run is stopped."""
    booked(journal, MONTH, 11.0)
    line = cluster(journal, MONTH + timedelta(hours=2), Limit(grams=10.0, period="day"))
    assert "11 g of 10 g are spent before the end of 2026-11-01" in line.alert
    assert "a budget stops no run" in line.alert


def test_a_runs_budget_counts_its_own_slots(journal: Journal) -> None:
    """By its name; a run that never registered has spent nothing."""
    register(journal, now=MONTH)
    booked(journal, MONTH, 7.0)
    booked(journal, MONTH, 5.0, run="other")
    limits = {"llm": Limit(), "never": Limit()}
    lines = spending(journal, limits, "UTC", MONTH + timedelta(days=1), signal=str(SIGNAL))
    assert [(line.name, line.spent_g) for line in lines] == [("llm", 7.0), ("never", 0.0)]


def test_every_run_of_a_name_spends_its_budget(journal: Journal) -> None:
    """A rerun under the name goes on where the first was, in each figure, and at a plan anew.

    A run of an earlier period has not spent this one's.
    """
    now = MONTH + timedelta(days=1)
    for day, run in ((-40, "long ago"), (0, "first"), (0.5, "second")):
        at = MONTH + timedelta(days=day)
        register(journal, now=at, run=run, incarnation=run)
        booked(journal, at, 1.0, run=run)
    booked(journal, MONTH, 1600.0, run="second", first_g=1500.0)
    dark(journal, MONTH, 7.0, run="first")
    (line,) = spending(journal, {"llm": Limit()}, "UTC", now, signal=str(SIGNAL))
    assert (line.spent_g, line.upper_g, line.restated_g) == (1602.0, 7.0, 100.0)
    assert line.unobserved_s == 3600.0
    for each in ("first", "second"):
        booked(journal, MONTH + HOUR, 1600.0, run=each)
    (line,) = spending(journal, {"llm": Limit()}, "UTC", now, signal=str(SIGNAL))
    assert line.urgency == "exhausted"
    plans = BudgetPlans(journal, {"llm": Limit()}, "UTC", str(SIGNAL))
    with pytest.raises(FixInput, match=r"4.8 kg of 3 kg are spent"):
        plans.anew("llm", now, "ada")


def test_a_period_begins_at_midnight_of_the_site(journal: Journal) -> None:
    """In Kolkata that is 18:30 UTC of the day before."""
    booked(journal, MONTH - timedelta(hours=6), 3.0)
    booked(journal, MONTH - timedelta(hours=5), 4.0)
    now = MONTH + HOUR
    limits = {"cluster": Limit()}
    (line,) = spending(journal, limits, "Asia/Kolkata", now, signal=str(SIGNAL))
    assert (line.start, line.spent_g) == (MONTH - timedelta(hours=5.5), 4.0)


def test_rolled_up_slots_still_count(journal: Journal) -> None:
    """In a year's period the oldest slots are daily sums by now."""
    booked(journal, MONTH, 7.0, run="")
    before = cluster(journal, MONTH + timedelta(days=9), Limit(period="year"))
    assert journal.retention.roll_up(MONTH + timedelta(days=5)) == 2
    after = cluster(journal, MONTH + timedelta(days=9), Limit(period="year"))
    assert (after.spent_g, after.period) == (before.spent_g, "2026") == (7.0, "2026")


SIMULATED = ("simulated",)
"""What is not told of the dark is: the grid of these tests is a recording."""


def dark(journal: Journal, start: datetime, upper_g: float, run: str = "r") -> None:
    """Book an hour of one GPU that nobody read."""
    end = start + HOUR
    place: dict[str, Any] = {"run": run, "gpu_uuid": "g9", "slot_start": start, "slot_end": end}
    unread = replace(
        ENERGY,
        **place,
        energy_mj=None,
        unobserved_ms=3_600_000,
        upper_mj=1,
        line="unobserved",
        quality="estimated",
    )
    journal.ledger.book([unread], [])
    row = replace(
        EMISSION,
        **place,
        signal=str(SIGNAL),
        energy_mj=None,
        carbon_ug=None,
        first_carbon_ug=None,
        upper_mj=1,
        upper_ug=round(upper_g * G),
        line="unobserved",
        energy_quality="estimated",
    )
    journal.ledger.emit([row])


def test_a_budget_sees_the_dark(journal: Journal) -> None:
    """Little was read, and five times the limit may have been emitted by what was not.

    What was spent is told as it was read; alerts burn on the most that it can have been.
    """
    booked(journal, MONTH, 0.44)
    line = cluster(journal, MONTH + timedelta(hours=2), Limit(grams=5.0, period="day"))
    assert (line.urgency, line.upper_g, line.unobserved_s, line.flags) == ("", 0.0, 0.0, SIMULATED)
    dark(journal, MONTH, 27.6)
    line = cluster(journal, MONTH + timedelta(hours=2), Limit(grams=5.0, period="day"))
    assert (line.spent_g, line.upper_g, line.unobserved_s) == (0.44, 27.6, 3600.0)
    assert line.urgency == "exhausted"
    assert "28 g of 5 g are spent, 27.6 g of it at most emitted unobserved" in line.alert
    assert line.residual_g == pytest.approx(5.0 - 28.04)
    assert "estimated" in line.flags


def test_a_budget_is_in_one_signal(journal: Journal) -> None:
    """Grams of another one of the same period stand beside, and are never added."""
    booked(journal, MONTH, 7.0)
    other = "electricity_maps:GB:average:lifecycle:CO2eq"
    (line,) = spending(
        journal, {"cluster": Limit()}, "UTC", MONTH + timedelta(days=1), signal=other
    )
    assert (line.signal, line.spent_g) == (other, 0.0)
    assert [(each.signal, each.carbon_g) for each in line.others] == [(str(SIGNAL), 7.0)]
