"""The ledger is absolute, idempotent, and loses nothing when it is rolled up."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from tests.builders.carbon import intensities
from tests.builders.runs import T0, UID, after, register
from wattmesh.controller.journal.database.tables import EMISSION_ROWS
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.energy import sums as journal_sums
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.controller.journal.energy.ledger import EmissionRow, TokenMark, TotalRow
from wattmesh.controller.journal.energy.sums import Sums
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.wire.messages import Finish
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import Quality

SLOT = timedelta(minutes=30)
ENERGY = EnergyRow(
    gpu_uuid="g0",
    run="r",
    incarnation="i1",
    slot_start=T0,
    slot_end=T0 + SLOT,
    energy_mj=5_000,
    unobserved_ms=0,
    upper_mj=0,
    source="simulated",
    quality="simulated",
    line="run",
)
COUNTER = CounterBaseline(gpu_uuid="g0", energy_mj=123, at=T0, monotonic_s=1.5, boot_id="b")
EMISSION = EmissionRow(
    scenario="actual",
    run="r",
    gpu_uuid="g0",
    slot_start=T0,
    slot_end=T0 + SLOT,
    signal="csv:GB:average:direct:CO2",
    quality="simulated",
    energy_mj=5_000,
    g_milli_per_kwh=100_000,
    carbon_ug=139,
    first_carbon_ug=139,
)


def test_booking_twice_counts_once(journal: Journal) -> None:
    """Rows are replaced whole, with the counters they came from."""
    for energy_mj in (1_000, 5_000, 5_000):
        journal.ledger.book([replace(ENERGY, energy_mj=energy_mj)], [COUNTER])
    assert journal.ledger.energy() == (ENERGY,)
    assert journal.ledger.baselines() == {"g0": COUNTER}


def test_unknown_energy_stays_unknown(journal: Journal) -> None:
    """None is stored as NULL, with its seconds beside."""
    row = replace(ENERGY, energy_mj=None, unobserved_ms=60_000, upper_mj=42_000_000)
    journal.ledger.book([row], [])
    assert journal.ledger.energy(run="r") == (row,)


def test_rows_are_found_by_the_beginning_of_their_slot(journal: Journal) -> None:
    """Half-open: [start, end)."""
    later = replace(ENERGY, slot_start=T0 + SLOT, slot_end=T0 + 2 * SLOT)
    journal.ledger.book([ENERGY, later], [])
    assert journal.ledger.energy(T0, T0 + SLOT) == (ENERGY,)
    assert journal.ledger.energy(T0 + SLOT) == (later,)
    assert journal.ledger.energy(run="nobody") == ()


def sums(rows: tuple[TotalRow, ...]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Key totals by what they are of."""
    return {
        (row.scenario, row.run, row.line, row.signal, row.quality): (
            row.energy_mj,
            row.unobserved_ms,
            row.upper_mj,
            row.carbon_ug,
            row.first_carbon_ug,
            row.tokens,
        )
        for row in rows
    }


amounts = st.integers(min_value=0, max_value=10**12)
slots = st.lists(
    st.tuples(st.sampled_from(["r", ""]), st.integers(0, 400), amounts, amounts),
    max_size=12,
    unique_by=lambda each: each[:2],
)


@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(slots=slots, cut=st.integers(0, 400))
def test_totals_are_the_same_after_any_roll_up(
    journal: Journal, slots: list[tuple[str, int, int, int]], cut: int
) -> None:
    """Whatever was booked and wherever it is cut; also when it is rolled up again."""
    for run, number, energy_mj, carbon_ug in slots:
        start = T0 + number * SLOT
        place: dict[str, Any] = {"run": run, "slot_start": start, "slot_end": start + SLOT}
        journal.ledger.book([replace(ENERGY, **place, energy_mj=energy_mj)], [])
        journal.ledger.emit([replace(EMISSION, **place, carbon_ug=carbon_ug, tokens=number)])
    before = sums(journal.ledger.totals())
    assert before == sums(Sums(journal.database).totals())
    journal.retention.roll_up(T0 + cut * SLOT)
    journal.retention.roll_up(T0 + cut * SLOT)
    assert sums(journal.ledger.totals()) == before
    assert sums(Sums(journal.database).totals()) == before


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(slots, min_size=2, max_size=4))
def test_kept_sums_are_those_of_everything(
    journal: Journal, writes: list[list[tuple[str, int, int, int]]]
) -> None:
    """Whatever was written between two readings, however long ago its slot."""
    for batch in writes:
        for run, number, energy_mj, carbon_ug in batch:
            start = T0 + number * SLOT
            place: dict[str, Any] = {"run": run, "slot_start": start, "slot_end": start + SLOT}
            journal.ledger.book([replace(ENERGY, **place, energy_mj=energy_mj)], [])
            journal.ledger.emit([replace(EMISSION, **place, carbon_ug=carbon_ug)])
        assert journal.ledger.totals() == Sums(journal.database).totals()


def test_what_every_run_may_ask_for_itself_is_one_look_for_all(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what all sums have of the run, and is kept for some times what the look took."""

    def whole(run: str) -> tuple[TotalRow, ...]:
        return tuple(row for row in journal.ledger.totals() if row.run == run)

    monkeypatch.setattr(journal_sums, "LOOKS", 0)
    journal.ledger.book([replace(ENERGY, run=run) for run in ("a", "b")], [])
    assert journal.ledger.lately("a") == whole("a") != ()
    assert journal.ledger.lately("c") == ()
    monkeypatch.setattr(journal_sums, "LOOKS", 1e9)
    before = journal.ledger.lately("b")
    later = replace(ENERGY, run="b", slot_start=T0 + SLOT, slot_end=T0 + 2 * SLOT)
    journal.ledger.book([later], [])
    assert journal.ledger.lately("b") == before != whole("b")


def test_whatever_another_process_writes_is_in_the_next_sums(journal: Journal) -> None:
    """Every way in, however old the slot; a baseline that loses rows and gets none, too."""
    late = replace(ENERGY, slot_start=T0 + 400 * SLOT, slot_end=T0 + 401 * SLOT)
    unread = replace(ENERGY, gpu_uuid="g1", energy_mj=None, unobserved_ms=5, line="unobserved")
    idle = replace(ENERGY, gpu_uuid="g2", run="", incarnation="", line="idle")
    batch = EnergyBatch(node="n1", boot_id="b", seq=1, at=T0, rows=(idle,))
    journal.ledger.book([late], [])
    other = Journal.open(journal.database.url.render_as_string(hide_password=False))
    baseline = replace(EMISSION, scenario="baseline", gpu_uuid="")
    writes: tuple[Callable[[], object], ...] = (
        lambda: other.ledger.book([ENERGY], []),
        lambda: other.ledger.emit([EMISSION]),
        lambda: other.ledger.mark("r", [], T0, [baseline]),
        lambda: other.ledger.mark("r", [], T0, []),
        lambda: other.coverage.book([unread], ()),
        lambda: other.coverage.book((), [("g1", "r", T0)]),
        lambda: other.nodes.deliver("n1", Report(batch=batch), batch.rows, T0),
    )
    for number, write in enumerate(writes):
        before = journal.ledger.totals()
        write()
        assert journal.ledger.totals() == Sums(journal.database).totals() != before, number
    other.close()
    with journal.database.writing() as connection:  # the sabotaged twin: a write not noted
        connection.execute(delete(EMISSION_ROWS))
    assert journal.ledger.totals() != Sums(journal.database).totals()


def test_a_roll_up_by_another_process_is_seen_at_once(journal: Journal) -> None:
    """Counters made from the sums never fall, not even for one reading."""
    old = replace(ENERGY, run="")
    new = replace(old, slot_start=T0 + 400 * SLOT, slot_end=T0 + 401 * SLOT)
    journal.ledger.book([old, new], [])
    before = journal.ledger.totals()
    other = Journal.open(journal.database.url.render_as_string(hide_password=False))
    assert other.retention.roll_up(T0 + 2 * SLOT) == 1
    other.close()
    assert journal.ledger.totals() == before


def test_a_run_that_is_not_closed_keeps_its_slots(journal: Journal) -> None:
    """Its baseline and its audit need them; after its end they go, and the sums stay."""
    register(journal)
    journal.ledger.book([ENERGY], [])
    journal.ledger.emit([EMISSION])
    before = sums(journal.ledger.totals())
    assert journal.retention.roll_up(after(10**7)) == 0
    done = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=1, reason="done")
    journal.runs.finish(done, owner_uid=UID, now=after(5))
    assert journal.retention.roll_up(after(10**7)) == 0
    journal.ledger.close_run("r", {}, after(6))
    assert journal.retention.roll_up(after(10**7)) == 2
    assert journal.ledger.energy() == ()
    assert sums(journal.ledger.totals()) == before


def test_pruning_keeps_the_sums(journal: Journal) -> None:
    """Old detail goes; joules and grams do not."""
    journal.ledger.book([ENERGY], [])
    journal.events.add("test", "an old event", T0)
    before = sums(journal.ledger.totals())
    assert journal.retention.prune(after(10)) == 1
    assert journal.events.list() == ()
    assert sums(journal.ledger.totals()) == before


def test_a_run_keeps_its_marks_until_it_is_closed(journal: Journal) -> None:
    """Its baseline can be reckoned anew until then, finished or not; the first stays for good."""
    register(journal, now=T0)
    marks = [
        TokenMark(
            slot_start=T0 + n * SLOT, slot_end=T0 + (n + 1) * SLOT, tokens=n, at=T0 + n * SLOT
        )
        for n in range(1, 4)
    ]
    journal.ledger.mark("r", marks, T0, [])
    done = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=3, reason="done")
    journal.runs.finish(done, owner_uid=UID, now=T0 + 4 * SLOT)
    before = journal.ledger.token_marks("r")
    journal.retention.prune(T0 + 9 * SLOT)
    assert journal.ledger.token_marks("r") == before
    journal.ledger.close_run("r", {}, T0 + 9 * SLOT)
    journal.retention.prune(T0 + 9 * SLOT)
    assert journal.ledger.token_marks("r") == before[:1]


def test_a_run_that_goes_on_keeps_the_intensities_of_its_hours(journal: Journal) -> None:
    """Its bound is reckoned at its end; forecasts and what was before it may go."""
    register(journal, now=T0 + SLOT)
    signal = Signal(provider="csv", zone="GB")
    (point,) = intensities(signal, [100.0], T0 - SLOT, SLOT, at=T0)
    kept = replace(point, start=T0 + SLOT, end=T0 + 2 * SLOT)
    journal.carbon.store([point, kept, replace(kept, quality=Quality.FORECAST)])
    assert journal.retention.prune(T0 + 9 * SLOT) == 1
    assert journal.forecasts.prune(T0 + 9 * SLOT) == 1
    assert journal.carbon.observed(point.signal, T0 - SLOT, T0 + 9 * SLOT) == (kept,)
    done = Finish(run="r", incarnation="i1", attempt=1, step=1, tokens=1, reason="done")
    journal.runs.finish(done, owner_uid=UID, now=after(5))
    assert journal.retention.prune(T0 + 9 * SLOT) == 1


def test_devices_of_a_run_are_those_whose_joules_it_has(journal: Journal) -> None:
    """GPUs and processors; not what is idle, another run's, or known only by its absence."""
    assert journal.by_slot.devices_read("r") == frozenset()
    rows = [
        replace(ENERGY, gpu_uuid="g1"),
        replace(ENERGY, gpu_uuid="g1", slot_start=T0 + SLOT, slot_end=T0 + 2 * SLOT),
        replace(ENERGY, gpu_uuid="cpu:n1:package-0"),
        replace(ENERGY, gpu_uuid="g2", run="other"),
        replace(ENERGY, gpu_uuid="g3", line="idle_after_release"),
        replace(ENERGY, gpu_uuid="g4", energy_mj=None, unobserved_ms=60_000),
    ]
    journal.ledger.book(rows, [])
    assert journal.by_slot.devices_read("r") == {"g1", "cpu:n1:package-0"}
    assert journal.by_slot.devices_read("other") == {"g2"}


@pytest.mark.parametrize("step_s", [3600.0, 400 * 86_400.0])
def test_a_wall_clock_that_was_ahead_leaves_no_time_to_come_as_read(
    journal: Journal, step_s: float
) -> None:
    """Back again, a device is covered up to its newest counter: what nobody reads then is dark."""
    baseline = replace(COUNTER, gpu_uuid="g0", since_us=to_us(T0))
    ahead = [after(60), after(70 + step_s), after(80)]
    for at in ahead:
        journal.ledger.book([], [replace(baseline, at=at)])
    assert journal.coverage.covered()["g0"] == ((T0, after(80)),)
    # It may begin another stretch as it is set right; a node's date may be ahead of ours.
    stretch = replace(baseline, since_us=to_us(after(20)))
    journal.ledger.book([], [replace(baseline, at=after(80 + step_s))])
    journal.ledger.book([], [replace(stretch, at=after(80))])
    node = replace(stretch, gpu_uuid="g1", at=after(80 + step_s))
    with journal.database.writing() as connection:
        extend(connection, [node], now_us=to_us(after(85)))
    covered = journal.coverage.covered()
    assert covered["g0"] == ((T0, after(80)), (after(20), after(80)))
    assert covered["g1"] == ((after(20), after(85)),)
    # The twin: what comes a little late takes nothing back.
    for at in (after(300), after(250)):
        journal.ledger.book([], [replace(baseline, at=at)])
    assert journal.coverage.covered()["g0"][0] == (T0, after(300))
