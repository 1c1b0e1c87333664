"""Which price a slot gets when its signal is late, silent or revised, and what stays of it."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.builders.accounts import (
    GRID,
    SIGNAL,
    SLOT_S,
    T0,
    B,
    after,
    book,
    counters,
    energy,
    intensity,
    progress,
    register,
    slot,
)
from tests.builders.carbon import intensities
from wattmesh.controller.accounting.accounts import Accounts
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.slot_prices import Fallback, Tariff, cover
from wattmesh.telemetry.carbon import CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

OTHER = Signal(provider="eia930", zone="GB")
HOUR_MJ = 3_600_000
"""Millijoules whose micrograms are the intensity in mg/kWh."""

DAY_S = 96 * SLOT_S
"""A day of 96 slots, so that days pass in the time of a test."""

SERIES = Series(interval_s=SLOT_S, origin=T0, cadence_s=SLOT_S, day_s=DAY_S)
SETTLED = timedelta(seconds=2 * DAY_S)


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """An empty journal; that both databases do the same is test_accounts's."""
    return sqlite_journal


def books(journal: Journal, *, scale: float | None = 1.1, late_s: float = 2 * SLOT_S) -> Accounts:
    """Make the accounts with one fallback, or with none."""
    fallbacks = (Fallback(signal=OTHER, scale=scale),) if scale is not None else ()
    tariff = Tariff(signal=SIGNAL, series=SERIES, fallbacks=fallbacks, late_s=late_s)
    return Accounts(journal, SIGNAL, GRID, 1000, tariff)


def booked(journal: Journal, slots: int = 4) -> None:
    """A run with joules in each of the first slots; it is at B, so its baseline has its own."""
    counters(journal, T0)
    register(journal, layout=B)
    progress(journal, now=slot(slots), tokens=int(slots * SLOT_S * 500), layout=B)
    book(journal, *(energy(number, HOUR_MJ) for number in range(slots)))
    counters(journal, slot(slots))


def actual(journal: Journal, number: int) -> EmissionRow:
    """Give the row of a slot in the actual scenario."""
    (row,) = journal.ledger.emissions(None, slot(number), slot(number + 1), "actual")
    return row


def baseline(journal: Journal, number: int) -> EmissionRow:
    """Give the row of a slot in the baseline."""
    (row,) = journal.ledger.emissions(None, slot(number), slot(number + 1), "baseline")
    return row


def test_a_fallback_stands_in_only_once_the_slot_is_late(journal: Journal) -> None:
    """Before that the slot waits, unpriced; then it has the other's value times the scale."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER)
    accounts = books(journal)
    accounts.price(slot(3))
    assert actual(journal, 0).quality == "estimated"
    assert actual(journal, 2).quality == "unpriced"
    row = actual(journal, 0)
    assert (row.stand_in, row.g_milli_per_kwh, row.carbon_ug) == (str(OTHER), 110_000, 110_000)
    assert (row.signal, row.model) == (str(SIGNAL), "fallback x1.1")
    assert baseline(journal, 0).stand_in == str(OTHER)


@pytest.mark.parametrize(
    ("told", "quality"),
    [
        (Quality.ESTIMATED, "estimated"),
        (Quality.STATIC, "static"),
        (Quality.PROVISIONAL, "unpriced"),
    ],
)
def test_a_fallback_is_never_called_measured(journal: Journal, told: Quality, quality: str) -> None:
    """A static number stays one; what the fallback does not know itself yet is not taken."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER, quality=told)
    books(journal).price(slot(9))
    assert {row.quality for row in journal.ledger.emissions(scenario="actual")} == {quality}


def test_without_a_declared_fallback_nothing_stands_in(journal: Journal) -> None:
    """The twin: the other signal's values are there, and are not taken."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER)
    books(journal, scale=None).price(slot(9))
    assert {row.quality for row in journal.ledger.emissions(scenario="actual")} == {"unpriced"}


def test_the_first_signal_takes_its_slots_back(journal: Journal) -> None:
    """Its late value replaces the fallback's in both scenarios; what was reported first stays."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER)
    accounts = books(journal)
    accounts.price(slot(9))
    intensity(journal, (120.0,), first=1)
    accounts.price(slot(9))
    row = actual(journal, 1)
    assert (row.signal, row.stand_in, row.quality, row.model) == (str(SIGNAL), "", "measured", "")
    assert (row.carbon_ug, row.first_carbon_ug) == (120_000, 110_000)
    assert (baseline(journal, 1).stand_in, baseline(journal, 1).g_milli_per_kwh) == ("", 120_000)
    assert actual(journal, 2).stand_in == str(OTHER)


def test_a_fallback_that_went_from_the_settings_leaves_its_rows(journal: Journal) -> None:
    """A reload rewrites no history: its price stands until the first signal tells."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER)
    books(journal).price(slot(9))
    before = journal.ledger.emissions()
    books(journal, scale=None).price(slot(9))
    assert journal.ledger.emissions() == before
    intensity(journal, (120.0,))
    books(journal, scale=None).price(slot(9))
    assert actual(journal, 0).stand_in == ""


def test_what_a_dead_provider_forecast_stands_in_provisionally(journal: Journal) -> None:
    """A slot that no signal tells of has what the newest forecast said of it, and says so."""
    booked(journal)
    intensity(journal, (130.0, 140.0), quality=Quality.FORECAST)
    books(journal).price(slot(9))
    row = actual(journal, 1)
    assert (row.quality, row.g_milli_per_kwh, row.model) == (
        "provisional",
        140_000,
        "forecast of csv",
    )
    assert actual(journal, 2).quality == "unpriced"


def test_after_two_days_nothing_is_provisional(journal: Journal) -> None:
    """A day of history: the profile settles the slot, once and for good."""
    intensity(journal, [200.0] * (2 * 96), first=-2 * 96)
    booked(journal)
    intensity(journal, (130.0,) * 4, quality=Quality.FORECAST)
    accounts = books(journal)
    accounts.price(slot(9))
    assert actual(journal, 0).quality == "provisional"
    accounts.price(slot(4) + SETTLED)
    row = actual(journal, 0)
    assert (row.quality, row.model) == ("estimated", "settled: anchored profile")
    assert row.g_milli_per_kwh == 200_000
    assert (row.carbon_ug, row.first_carbon_ug) == (200_000, 130_000)
    assert not [each for each in journal.ledger.emissions() if each.quality == "provisional"]
    intensity(journal, (700.0,), first=-1)
    accounts.price(slot(4) + SETTLED)
    assert actual(journal, 0) == row
    intensity(journal, (150.0,))
    accounts.price(slot(4) + SETTLED)
    late = actual(journal, 0)
    assert (late.quality, late.carbon_ug, late.first_carbon_ug) == ("measured", 150_000, 130_000)


def test_without_history_the_stand_in_is_settled_as_an_estimate(journal: Journal) -> None:
    """It keeps its value and names what it was; a slot of which nothing is known stays unpriced."""
    booked(journal)
    intensity(journal, (130.0, 130.0), quality=Quality.PROVISIONAL)
    accounts = books(journal, scale=None)
    accounts.price(slot(9))
    accounts.price(slot(4) + SETTLED)
    row = actual(journal, 0)
    assert (row.quality, row.g_milli_per_kwh) == ("estimated", 130_000)
    assert row.model == "settled: the provider's stand-in"
    lost = actual(journal, 3)
    assert (lost.quality, lost.energy_mj, lost.carbon_ug) == ("unpriced", HOUR_MJ, None)


def test_a_value_that_comes_after_weeks_prices_a_slot_that_had_none(journal: Journal) -> None:
    """However late: what drives restating is the new row, not the age of the slot."""
    booked(journal)
    accounts = books(journal, scale=None)
    accounts.price(slot(9))
    weeks = slot(4) + 20 * SETTLED
    accounts.price(weeks)
    accounts.price(weeks)
    intensity(journal, (90.0,))
    accounts.price(weeks)
    assert actual(journal, 0).carbon_ug == 90_000


@pytest.mark.parametrize("days", [0, 30])
def test_a_revision_restates_both_scenarios_however_old_the_slot_is(
    journal: Journal, days: int
) -> None:
    """The same daemon that priced it: a further row of the interval is enough."""
    booked(journal)
    intensity(journal, (100.0,) * 4)
    accounts = books(journal)
    now = slot(9) + timedelta(days=days)
    accounts.price(now)
    accounts.price(now)
    intensity(journal, (160.0,), first=1)
    accounts.price(now)
    for row in (actual(journal, 1), baseline(journal, 1)):
        assert row.g_milli_per_kwh == 160_000
        assert row.first_carbon_ug is not None
        assert row.carbon_ug is not None
        assert row.carbon_ug / row.first_carbon_ug == pytest.approx(1.6, rel=1e-6)
    assert actual(journal, 2).g_milli_per_kwh == 100_000


def test_what_is_remembered_gives_what_a_fresh_start_gives(journal: Journal) -> None:
    """Oracle: accounts that were kept through every change, and ones that look at everything."""
    booked(journal, slots=6)
    kept = books(journal)
    intensity(journal, (130.0,) * 6, quality=Quality.FORECAST)
    kept.price(slot(7))
    for step, (value, first, signal) in enumerate(
        [(110.0, 0, OTHER), (120.0, 0, SIGNAL), (90.0, 1, SIGNAL), (95.0, 1, SIGNAL)]
    ):
        intensity(journal, (value,) * 2, first=first, signal=signal)
        now = slot(8 + step)
        kept.price(now)
        found = journal.ledger.emissions()
        books(journal).price(now)
        assert journal.ledger.emissions() == found


def test_a_slot_whose_rows_differ_is_caught(journal: Journal) -> None:
    """The sabotaged twin: a row that was changed behind our back is put right by a fresh start."""
    booked(journal)
    intensity(journal, (100.0,) * 4)
    books(journal).price(slot(9))
    whole = journal.ledger.emissions()
    with journal.database.writing() as connection:
        connection.exec_driver_sql(
            "UPDATE emission_rows SET g_milli_per_kwh = 1, carbon_ug = 1 "
            "WHERE carbon_ug IS NOT NULL"
        )
    assert journal.ledger.emissions() != whole
    books(journal).price(slot(9))
    assert [row.carbon_ug for row in journal.ledger.emissions()] == [row.carbon_ug for row in whole]


def test_what_was_first_reported_never_falls_by_signal(journal: Journal) -> None:
    """A slot that goes back to its own signal takes its first report along: it was never away."""
    booked(journal)
    intensity(journal, (100.0,) * 4, signal=OTHER)
    accounts = books(journal)
    accounts.price(slot(9))

    def first(by: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for row in journal.ledger.totals():
            if row.scenario == "actual":
                found[getattr(row, by)] += row.first_carbon_ug
        return found

    before, naive = first("signal"), first("stand_in")
    assert before == {str(SIGNAL): 440_000}
    intensity(journal, (120.0,))
    accounts.price(slot(9))
    assert first("signal") == before
    # The sabotaged twin: by the series that spoke the counter falls.
    assert first("stand_in")[str(OTHER)] < naive[str(OTHER)]


def point(start_s: float, end_s: float, value: float, quality: Quality) -> CarbonPoint:
    """Make one point."""
    length = after(end_s) - after(start_s)
    (made,) = intensities(OTHER, [value], after(start_s), length, quality=quality, at=T0)
    return made


@pytest.mark.parametrize(
    ("points", "mean"),
    [
        ([(0, 60, 100.0)], 100_000),
        ([(0, 10, 100.0), (10, 30, 400.0)], 300_000),
        ([(-60, 15, 100.0), (15, 45, 200.0)], 150_000),
        ([(0, 10, 100.0), (20, 30, 400.0)], None),
        ([(5, 60, 100.0)], None),
        ([(0, 29, 100.0)], None),
        ([], None),
    ],
)
def test_a_slot_is_averaged_over_finer_and_coarser_intervals(
    points: list[tuple[float, float, float]], mean: int | None
) -> None:
    """By time; an interval that is missing anywhere in the slot leaves it without a value."""
    told = cover([point(*each, Quality.MEASURED) for each in points], slot(0), slot(1))
    assert (told.g_milli_per_kwh if told else None) == mean


def test_the_weakest_part_of_a_slot_says_its_quality() -> None:
    """One provisional minute makes the mean provisional."""
    parts = [point(0, 29, 100.0, Quality.MEASURED), point(29, 30, 100.0, Quality.PROVISIONAL)]
    told = cover(parts, slot(0), slot(1))
    assert told is not None
    assert told.quality is Quality.PROVISIONAL
