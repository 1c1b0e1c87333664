"""Parts that have to cover a whole, and do not: each is told or counted, none is passed over.

Each test is the sabotaged case of one check in the books that no other test would miss.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.accounts.test_budget import PLAN_300, one, view
from tests.builders.accounts import (
    GPUS,
    SIGNAL,
    SLOT_S,
    T0,
    Life,
    accounts,
    after,
    book,
    energy,
    finish,
    intensity,
    slot,
)
from wattmesh.controller.accounting.constant_pue import slots_at
from wattmesh.controller.accounting.saving import EARLIER_VERSION, Saving, saving
from wattmesh.controller.accounting.spread import SlotSpread, bounded
from wattmesh.controller.accounting.unclaimed import unclaimed, unclaimed_ug
from wattmesh.controller.journal.database.values import to_us
from wattmesh.controller.journal.energy.coverage import extend
from wattmesh.controller.journal.energy.ledger import EmissionRow
from wattmesh.controller.journal.energy.scenario_slots import PueGrams, ScenarioSlot
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.stays import LaunchRow
from wattmesh.policies.accounting.baseline import Slot, price_ug
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.energy.meter import UNKNOWN_LIMIT_W

HALF = timedelta(seconds=SLOT_S / 2)


@pytest.mark.parametrize("told", ["all", "a gap", "an overlap"])
def test_a_bound_needs_intensities_that_follow_each_other_to_the_deadline(
    journal: Journal, told: str
) -> None:
    """A schedule could use the time that no interval covers, or one that two do, for nothing."""
    intensity(journal, (400.0,) * 5)
    intensity(journal, (400.0,) * 4, first=6)
    if told == "all":
        intensity(journal, (400.0,), first=5)
    elif told == "an overlap":
        intensity(journal, (400.0,), first=5)
        point = journal.carbon.observed(SIGNAL, slot(7), slot(8))[0]
        longer = replace(point, start=point.start - HALF, end=point.end - HALF, fetched_at=slot(9))
        journal.carbon.store([longer])
    life = Life(journal=journal)
    life.begin(plan=PLAN_300, tokens_total=100_000)
    life.live(3)
    finish(journal, now=slot(3), tokens=90_000)
    life.books.price(after(400))
    assert one(journal).saved_g == 0
    assert (one(journal).bound_g is not None) == (told == "all")


@pytest.mark.parametrize("priced", [True, False])
def test_a_line_has_an_upper_bound_in_grams_only_if_all_its_dark_joules_have_a_price(
    journal: Journal, *, priced: bool
) -> None:
    """The grams of some of them are no bound of all."""
    intensity(journal, (100.0, 100.0) if priced else (100.0,))
    rows = (energy(n, None, unobserved_ms=1000, upper_mj=3_600_000) for n in (0, 1))
    book(journal, *rows)
    accounts(journal).price(after(120))
    (line,) = (each for each in view(journal).lines if each.line == "run")
    assert line.upper_j == 7_200
    assert line.upper_g == (pytest.approx(0.2) if priced else None)


EMITTED = EmissionRow(
    scenario="actual",
    run="",
    gpu_uuid="g0",
    slot_start=T0,
    slot_end=slot(1),
    signal=str(SIGNAL),
    quality="measured",
    energy_mj=10_000,
    g_milli_per_kwh=100_000,
    carbon_ug=1000,
    first_carbon_ug=1000,
    line="unattributed",
)
LAUNCH = LaunchRow(start=T0, end=slot(4), ours=False, gpus=GPUS)


@pytest.mark.parametrize("priced", [True, False])
def test_joules_of_nobody_are_known_in_grams_only_if_all_of_a_slot_have_a_price(
    journal: Journal, *, priced: bool
) -> None:
    """Of two GPUs that the run held, one may have none; in whichever order they are read."""
    bare: dict[str, Any] = {} if priced else {"carbon_ug": None, "g_milli_per_kwh": None}
    for number, gpus in enumerate((("g0", "g1"), ("g1", "g0"))):
        place: dict[str, Any] = {"slot_start": slot(number), "slot_end": slot(number + 1)}
        rows = [replace(EMITTED, **place, gpu_uuid=gpus[0])]
        rows += [replace(EMITTED, **place, gpu_uuid=gpus[1], **bare)]
        journal.ledger.emit(rows)
    found = [each.carbon_ug for each in unclaimed_ug(journal, [LAUNCH]).values()]
    assert found == ([2000, 2000] if priced else [None, None])


def test_all_lines_of_a_board_together_are_bounded_by_what_it_can_draw_while_held(
    journal: Journal,
) -> None:
    """Held for a tenth of the slot: a line takes from what the line before it leaves."""
    board_mj = round(UNKNOWN_LIMIT_W) * 3000
    held = replace(LAUNCH, start=T0 + 9 * timedelta(seconds=SLOT_S / 10), end=slot(1))
    rows = [
        replace(EMITTED, line=line, energy_mj=energy_mj, carbon_ug=energy_mj)
        for line, energy_mj in (("idle", board_mj - 1000), ("unattributed", 9_000_000))
    ]
    journal.ledger.emit(rows)
    found = unclaimed(journal, [held])
    assert [each.energy_mj for each in found] == [board_mj - 1000, 1000]


def test_a_slot_that_overlaps_another_measures_nothing(journal: Journal) -> None:
    """Whose joules are whose cannot be told, where the length of slots was changed."""
    apart = energy(5, 9_000)
    longer = energy(0, 9_000, slot_end=slot(1) + HALF)
    book(journal, energy(1, 5_000), longer, apart)
    assert set(journal.by_slot.powers("r", T0, slot(9))) == {(slot(5), slot(6))}


def test_what_others_drew_on_a_gpu_may_have_been_the_run_s(journal: Journal) -> None:
    """It is in the upper bound of the slot; what another GPU drew is not."""
    others = [energy(0, 700, run="s", upper_mj=30), energy(0, 9_000, run="s", gpu_uuid="g9")]
    book(journal, energy(0, 5_000, upper_mj=100), *others)
    (power,) = journal.by_slot.powers("r", T0, slot(1)).values()
    assert (power.energy_mj, power.upper_mj, power.gpus) == (5_000, 830, 1)


def test_the_time_of_a_gpu_is_shared_out_once(journal: Journal) -> None:
    """Its runs' parts of a slot add up to the slot; of a slot under way counts what has passed."""
    rows: list[EnergyRow] = [energy(0, 1), energy(0, 1, run="s"), energy(1, 1)]
    rows += [energy(0, 1, gpu_uuid="cpu:n1:package-0")]
    book(journal, *rows)
    assert journal.by_slot.gpu_s(T0, slot(1)) == {"r": SLOT_S / 2, "s": SLOT_S / 2}
    assert journal.by_slot.gpu_s(slot(1), slot(1) + HALF) == {"r": SLOT_S / 2}


def test_spent_slots_are_read_again_from_further_back_and_end_with_the_look(
    journal: Journal,
) -> None:
    """Slots that are kept of a later beginning are not all; one under way is not over."""
    later = T0 + timedelta(days=9)
    for at in (T0, later):
        end = at + timedelta(seconds=SLOT_S)
        row = replace(EMITTED, run="r", line="run", slot_start=at, slot_end=end)
        journal.ledger.book([energy(0, 10_000, slot_start=at, slot_end=end)], [])
        journal.ledger.emit([row])
    under_way = journal.by_slot.spent(later, later + HALF, "r")[str(SIGNAL)]
    assert [each.end for each in under_way] == [later + HALF]
    long_after = later + timedelta(days=9)
    for begin, count in ((later, 1), (T0, 2)):
        assert len(journal.by_slot.spent(begin, long_after, "r")[str(SIGNAL)]) == count


def test_a_counter_that_begins_in_time_to_come_covers_nothing(journal: Journal) -> None:
    """A node whose clock is far ahead: no span begins after it ends."""
    ahead = CounterBaseline(
        gpu_uuid="g0",
        energy_mj=1,
        at=after(10_000),
        since_us=to_us(after(9_000)),
        monotonic_s=0.0,
        boot_id="b",
    )
    with journal.database.writing() as connection:
        extend(connection, [ahead], now_us=to_us(after(60)))
    assert journal.coverage.covered() == {}


OWN = ScenarioSlot(
    slot_start=T0,
    slot_end=slot(1),
    scenario="actual",
    kind="",
    tokens=0,
    carbon_ug=100,
    upper_ug=0,
    read=True,
    hosts=0,
    signals=frozenset({str(SIGNAL)}),
    qualities=frozenset({"measured"}),
    by_pue=(PueGrams(pue_milli=1000, carbon_ug=100, upper_ug=0),),
)


def saved(*slots: ScenarioSlot) -> Saving:
    """Compute the saving of two slots in which a run was at its baseline."""
    return saving(slots, 2, baseline="A", known=True, launches=[T0])


def pair(number: int, *, kind: str = "as_run", **changes: Any) -> tuple[ScenarioSlot, ScenarioSlot]:
    """Give a slot of the run itself, and of its baseline."""
    own = replace(OWN, slot_start=slot(number), slot_end=slot(number + 1), **changes)
    other = replace(own, scenario="baseline", kind=kind, tokens=1, carbon_ug=0, by_pue=())
    return own, other


def test_a_saving_needs_the_same_meters_and_known_rows_in_every_slot() -> None:
    """Processors in half of its slots, or a baseline's row of an unknown kind: no figure."""
    assert saved(*pair(0), *pair(1)).saved_ug == 0
    assert "memory were read in 1 of its 2 slots only" in saved(*pair(0), *pair(1, hosts=2)).why
    assert saved(*pair(0), *pair(1, kind="run")).why == EARLIER_VERSION


def test_with_another_pue_what_has_no_price_has_none_still() -> None:
    """Its parts with a price are not all of it."""
    (found,) = slots_at([replace(OWN, carbon_ug=None, upper_ug=None)], 1500)
    assert (found.carbon_ug, found.upper_ug) == (None, None)
    (found,) = slots_at([OWN], 1500)
    assert (found.carbon_ug, found.upper_ug) == (150, 0)


RATES = (90_000_000, 50_000_000)
"""Prices of two slots, mg/kWh x PUE x 1000."""


def test_joules_spread_over_slots_may_all_be_of_one_or_of_none() -> None:
    """In those that are the run's own they cancel, so each bounds them by the dearest price."""
    own = Slot(
        tokens=1, carbon_ug=0, upper_ug=0, own_ug=500, own_upper_ug=0, as_run=True, settled=True
    )
    other = replace(own, as_run=False, carbon_ug=400)
    laid = [SlotSpread(energy_mj=10_000_000, carbon_ug=100, rates=(rate,)) for rate in RATES]
    most_ug = price_ug(20_000_000, RATES[1], 1)
    assert most_ug > 0
    first, second = bounded([own, other], laid)
    assert (first.own_ug, first.own_upper_ug) == (500, most_ug)
    assert (second.own_ug, second.own_upper_ug) == (400, most_ug)
