"""Joules become grams: once, exactly, restated in both scenarios, on both databases."""

from dataclasses import replace
from datetime import timedelta

from tests.builders.accounts import (
    SIGNAL,
    T0,
    B,
    accounts,
    after,
    book,
    counters,
    energy,
    finish,
    intensity,
    progress,
    register,
    slot,
    trained,
)
from wattmesh.controller.accounting.closing_runs import close_runs
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.accounting.baseline import price_ug
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

NOW = after(95)


def busy(journal: Journal, *, quality: Quality = Quality.MEASURED) -> None:
    """A run that trained for 95 s, with joules and intensities of its first three slots.

    It is at B, so that its baseline has joules of its own.
    """
    counters(journal, T0)
    register(journal, layout=B)
    counters(journal, NOW)
    progress(journal, now=NOW, tokens=90_000, layout=B)
    book(journal, *(energy(number, 40_000_000 + number) for number in range(4)))
    intensity(journal, (100.0, 200.5, 300.0), quality=quality)


def rows(journal: Journal) -> tuple[EmissionRow, ...]:
    """List every emission row that has joules of its own: B is the best single point too."""
    return tuple(row for row in journal.ledger.emissions() if row.line != "as_run")


def scenario(journal: Journal, name: str) -> list[EmissionRow]:
    """List the rows of a scenario."""
    return [row for row in rows(journal) if row.scenario == name]


def wrong(found: tuple[EmissionRow, ...]) -> list[EmissionRow]:
    """List rows whose grams are not what their joules and their intensity say."""
    return [
        row
        for row in found
        if row.carbon_ug
        != (
            None
            if row.energy_mj is None or row.g_milli_per_kwh is None
            else price_ug(row.energy_mj, row.g_milli_per_kwh)
        )
        or (row.g_milli_per_kwh is None) != (row.quality == "unpriced")
    ]


def test_pricing_again_changes_nothing(journal: Journal) -> None:
    """Twice by one daemon, then by one that has just started: the same rows, byte for byte."""
    busy(journal)
    one = accounts(journal)
    one.price(NOW)
    found = rows(journal)
    assert len(found) == 8
    assert not wrong(found)
    one.price(NOW)
    assert rows(journal) == found
    accounts(journal).price(NOW)
    assert rows(journal) == found


def test_the_check_of_rows_catches_a_wrong_one(journal: Journal) -> None:
    """Sabotaged twins: a microgram too many, and zero instead of unknown."""
    busy(journal)
    accounts(journal).price(NOW)
    first, *_, last = scenario(journal, "actual")
    assert wrong((replace(first, carbon_ug=(first.carbon_ug or 0) + 1),))
    assert wrong((replace(last, carbon_ug=0),))


def test_a_slot_without_an_intensity_has_no_grams(journal: Journal) -> None:
    """NULL and `unpriced`, in both scenarios; it gets its grams when the intensity is known."""
    busy(journal)
    one = accounts(journal)
    one.price(NOW)
    unpriced = [row for row in rows(journal) if row.quality == "unpriced"]
    assert {(row.scenario, row.slot_start) for row in unpriced} == {
        ("actual", slot(3)),
        ("baseline", slot(3)),
    }
    assert all(row.carbon_ug is None and row.first_carbon_ug is None for row in unpriced)
    intensity(journal, (50.0,), first=3)
    one.price(NOW)
    assert all(row.carbon_ug for row in rows(journal))
    assert not wrong(rows(journal))


def test_joules_that_nobody_measured_stay_unknown(journal: Journal) -> None:
    """None has no grams, even where the intensity is known; the most it can have been has."""
    register(journal)
    intensity(journal, (100.0,))
    book(journal, energy(0, None, unobserved_ms=30_000, upper_mj=9_000_000))
    accounts(journal).price(NOW)
    (row,) = scenario(journal, "actual")
    assert (row.energy_mj, row.carbon_ug, row.upper_ug) == (None, None, 250_000)
    book(journal, energy(0, 3_600_000))
    accounts(journal).price(NOW)
    (row,) = scenario(journal, "actual")
    assert (row.carbon_ug, row.upper_ug) == (100_000, 0)


def test_a_measured_intensity_replaces_a_provisional_one_in_both_scenarios(
    journal: Journal,
) -> None:
    """Together; what was reported first stays beside, and a late provisional changes nothing."""
    busy(journal, quality=Quality.PROVISIONAL)
    one = accounts(journal)
    one.price(NOW)
    before = {(row.scenario, row.slot_start): row for row in rows(journal)}
    assert before["actual", slot(1)].quality == "provisional"
    intensity(journal, (100.0, 250.0), quality=Quality.MEASURED)
    one.price(NOW)
    for name in ("actual", "baseline"):
        after_it = {row.slot_start: row for row in scenario(journal, name)}
        revised, confirmed = after_it[slot(1)], after_it[slot(0)]
        assert (revised.quality, revised.g_milli_per_kwh) == ("measured", 250_000)
        assert revised.first_carbon_ug == before[name, slot(1)].carbon_ug
        assert revised.carbon_ug != revised.first_carbon_ug
        assert confirmed == replace(before[name, slot(0)], quality="measured")
    found = rows(journal)
    intensity(journal, (1.0, 1.0, 1.0), quality=Quality.PROVISIONAL)
    accounts(journal).price(NOW)
    assert [row for row in rows(journal) if row.slot_start < slot(2)] == [
        row for row in found if row.slot_start < slot(2)
    ]


def test_the_first_report_is_about_intensities_only(journal: Journal) -> None:
    """Joules that come later count at the price of the day they came."""
    register(journal)
    one = accounts(journal)
    intensity(journal, (100.0,), quality=Quality.PROVISIONAL)
    for energy_mj in (3_600_000, 7_200_000):
        book(journal, energy(0, energy_mj))
        one.price(NOW)
        (row,) = scenario(journal, "actual")
        assert row.first_carbon_ug == row.carbon_ug
    intensity(journal, (150.0,))
    one.price(NOW)
    book(journal, energy(0, 10_800_000))
    one.price(NOW)
    (row,) = scenario(journal, "actual")
    assert (row.carbon_ug, row.first_carbon_ug) == (450_000, 350_000)


def test_simulated_joules_stay_simulated(journal: Journal) -> None:
    """Whatever the intensity is: each has a word of its own, and neither displaces the other."""
    register(journal)
    intensity(journal, (100.0,), quality=Quality.ESTIMATED)
    book(journal, energy(0, 5, quality="estimated+simulated"))
    accounts(journal).price(NOW)
    (row,) = scenario(journal, "actual")
    assert (row.quality, row.energy_quality) == ("estimated", "estimated+simulated")


def test_another_signal_never_takes_the_place_of_the_one_a_slot_was_priced_in(
    journal: Journal,
) -> None:
    """A reload names another provider: priced slots keep their signal, the others take it."""
    busy(journal)
    accounts(journal).price(NOW)
    found = rows(journal)
    other = Signal(provider="neso", zone="GB")
    intensity(journal, (7.0, 7.0, 7.0, 7.0), signal=other)
    accounts(journal, other).price(NOW)
    assert [row for row in rows(journal) if row.signal == str(SIGNAL)] == [
        row for row in found if row.quality != "unpriced"
    ]
    assert {row.slot_start for row in rows(journal) if row.signal == str(other)} == {slot(3)}


def test_a_price_outlives_the_intensity_it_came_from(journal: Journal) -> None:
    """Retention lets intensities go before a long run's slots."""
    busy(journal)
    accounts(journal).price(NOW)
    found = rows(journal)
    journal.retention.prune(after(10**7))
    accounts(journal).price(NOW)
    assert rows(journal) == found


def test_joules_that_come_days_late_are_priced(journal: Journal) -> None:
    """A daemon that was gone for a week books the gap; so does an intensity that comes then."""
    register(journal)
    week = NOW + timedelta(days=7)
    book(journal, energy(0, 3_600_000))
    one = accounts(journal)
    one.price(week)
    assert scenario(journal, "actual")[0].quality == "unpriced"
    intensity(journal, (100.0,))
    accounts(journal).price(week)
    assert scenario(journal, "actual")[0].carbon_ug == 100_000


def test_joules_delivered_after_weeks_are_priced_by_the_daemon_that_runs(journal: Journal) -> None:
    """A node that was cut off delivers; the daemon has long priced everything else."""
    register(journal)
    intensity(journal, (100.0,) * 8)
    book(journal, energy(7, 1))
    one, weeks = accounts(journal), NOW + timedelta(days=21)
    one.price(weeks)
    one.price(weeks)
    book(journal, energy(0, 3_600_000))
    one.price(weeks)
    assert scenario(journal, "actual")[0].carbon_ug == 100_000


def test_an_intensity_prices_only_slots_that_lie_within_it(journal: Journal) -> None:
    """One that ends within a slot says nothing about the rest of it."""
    register(journal)
    intensity(journal, (100.0,))
    book(journal, energy(0, 3_600_000, slot_start=slot(1)))
    accounts(journal).price(NOW)
    assert scenario(journal, "actual")[0].carbon_ug is None


def test_a_finished_run_whose_slots_were_rolled_up_is_left_alone(journal: Journal) -> None:
    """Its baseline does not begin again; the totals stay what they were."""
    busy(journal)
    intensity(journal, (50.0,), first=3)
    finish(journal, now=NOW, tokens=90_000)
    later = NOW + timedelta(days=100)
    accounts(journal).price(NOW + timedelta(seconds=60))
    totals = journal.ledger.totals()
    assert trained(journal) == 90_000
    assert journal.retention.roll_up(later) == 0
    assert close_runs(journal, later, later) == ("r",)
    assert close_runs(journal, later, later) == ()
    journal.retention.roll_up(later)
    journal.retention.prune(later)
    assert rows(journal) == ()
    accounts(journal).price(later + timedelta(days=1))
    assert rows(journal) == ()
    assert journal.ledger.totals() == totals


def test_nothing_is_written_when_nothing_is_new(journal: Journal) -> None:
    """A turn that finds nothing reads a few sums and writes no row."""
    busy(journal)
    one = accounts(journal)
    one.price(NOW)
    assert T0 < NOW
    assert journal.ledger.unemitted(None, "actual") == ()
    assert one._stale_slots(NOW, everything=False) == set()
    assert one._stale_slots(NOW, everything=True) == set()
