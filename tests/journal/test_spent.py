"""What was spent slot by slot: whatever is kept of old slots, it is what reading all would give."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete

from tests.builders.runs import T0
from tests.journal.test_ledger import EMISSION, ENERGY, SLOT
from wattmesh.controller.journal.database.tables import EMISSION_ROWS
from wattmesh.controller.journal.energy.spent import SpentSlots
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.accounting.budget import Spending

DAY = timedelta(days=1)
NOW = T0 + 10 * DAY

RUNS = (None, "r", "s")

writes = st.lists(
    st.tuples(
        st.sampled_from(["r", "s", ""]),
        st.integers(0, 480),
        st.none() | st.integers(0, 10**12),
        st.integers(0, 10**12),
    ),
    max_size=8,
)
looks = st.tuples(
    st.sampled_from(RUNS), st.integers(-2, 12), st.integers(0, 500), st.booleans(), st.booleans()
)


Written = tuple[str, int, int | None, int]
"""A slot of a run: its number, what it emitted, and what was first reported."""


def emit(journal: Journal, *written: Written) -> None:
    """Book slots of runs that are closed; of one that is written twice, the last."""
    energy, emissions = {}, {}
    for run, number, carbon_ug, first_ug in written:
        start = T0 + number * SLOT
        place: dict[str, Any] = {"run": run, "slot_start": start, "slot_end": start + SLOT}
        row = replace(
            EMISSION,
            **place,
            carbon_ug=carbon_ug,
            first_carbon_ug=None if carbon_ug is None else first_ug,
            quality="unpriced" if carbon_ug is None else "measured",
        )
        energy[run, number] = replace(ENERGY, **place)
        emissions[run, number] = row, replace(row, scenario="baseline")
    journal.ledger.book([*energy.values()], [])
    journal.ledger.emit([row for both in emissions.values() for row in both])
    for run in {run for run, *_ in written if run}:
        journal.ledger.close_run(run, {}, NOW)


def read(journal: Journal, run: str | None = None) -> tuple[Spending, ...]:
    """Look as budgets do, at the only signal there is."""
    found = journal.by_slot.spent(T0, NOW, run)
    assert set(found) <= {EMISSION.signal}
    return found.get(EMISSION.signal, ())


def test_two_signals_are_never_added(journal: Journal) -> None:
    """Slots of another signal are a sequence of their own, rolled up days too."""
    emit(journal, ("r", 0, 5, 5))
    start = T0 + SLOT
    other = replace(EMISSION, slot_start=start, slot_end=start + SLOT, signal="b", carbon_ug=7)
    journal.ledger.emit([other])
    for _ in range(2):
        found = journal.by_slot.spent(T0 - DAY, NOW)
        assert {name: [each.carbon_ug for each in spent] for name, spent in found.items()} == {
            EMISSION.signal: [5],
            "b": [7],
        }
        journal.retention.roll_up(NOW)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=st.lists(st.tuples(writes, looks), min_size=2, max_size=6))
def test_kept_slots_are_those_of_everything(journal: Journal, turns: list[Any]) -> None:
    """Whatever is written, rolled up and looked at in between, from wherever and until whenever."""
    for batch, (run, first_day, last_slot, rolls, elsewhere) in turns:
        emit(journal, *batch)
        if rolls:
            journal.retention.roll_up(T0 + DAY)
        start, end = T0 + first_day * DAY, T0 + last_slot * SLOT
        if elsewhere:
            journal.by_slot.spent(min(start, end), NOW, run)
        for one in {run, None}:
            kept = journal.by_slot.spent(start, end, one)
            assert kept == SpentSlots(journal.database).read(start, end, one)
            for spent in kept.values():
                assert list(spent) == sorted(spent, key=lambda each: each.start)


def test_what_is_spent_adds_up_to_the_ledger(journal: Journal) -> None:
    """Grams, joules without grams and restatements, of slots and of rolled up days."""
    for number in range(0, 480, 7):
        emit(journal, ("r" if number % 2 else "", number, None if number % 5 == 0 else 10, 7))
    for _ in range(2):
        spent = read(journal)
        rows = [r for r in journal.ledger.between(T0, NOW) if r.scenario == "actual"]
        assert sum(each.carbon_ug for each in spent) == sum(each.carbon_ug for each in rows)
        assert sum(each.restated_ug for each in spent) == sum(
            each.carbon_ug - each.first_carbon_ug for each in rows
        )
        assert sum(each.unpriced_mj for each in spent) == sum(
            each.energy_mj for each in rows if each.quality == "unpriced"
        )
        assert journal.retention.roll_up(T0 + 3 * DAY) >= 0


def test_old_slots_are_not_read_again(journal: Journal) -> None:
    """What another process writes is seen, and the sabotaged twin: a write not noted is not."""
    emit(journal, ("r", 0, 5, 5))
    before = read(journal)
    other = Journal.open(journal.database.url.render_as_string(hide_password=False))
    emit(other, ("r", 1, 7, 7))
    emit(other, ("r", 479, 9, 9))
    other.close()
    seen = read(journal)
    assert [each.carbon_ug for each in seen] == [5, 7, 9]
    assert before == seen[:1]
    with journal.database.writing() as connection:
        connection.execute(delete(EMISSION_ROWS))
    assert [each.carbon_ug for each in read(journal)] == [5, 7]


def test_a_late_delivery_of_a_node_is_seen(journal: Journal) -> None:
    """What this process writes below the end counts in the next look."""
    emit(journal, ("r", 0, 5, 5))
    read(journal)
    emit(journal, ("r", 0, 8, 5))
    (spent,) = read(journal)
    assert (spent.carbon_ug, spent.restated_ug) == (8, 3)
