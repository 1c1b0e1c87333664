"""A saving says what a run did otherwise than its baseline: nothing, where it was not touched."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.builders.accounts import (
    GPUS,
    SLOT_S,
    T0,
    A,
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
    register,
    saved,
    slot,
    trained,
)
from tests.builders.runs import CATALOGUE
from wattmesh.controller.accounting.saving import NOTHING_READ, SINGLE_BEHIND, UNKNOWN_GPUS
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.accounting.baseline import UNCALIBRATED
from wattmesh.reconfig.catalogue import SwitchCost

GRID = [100.0 + 37 * (number % 5) for number in range(60)]
PROMPT = RunPlan(
    catalogue=replace(CATALOGUE, switch=SwitchCost(layout_s=0.0)), deadline_after_s=3000.0
)
"""The run's speed is steady as soon as a switch has ended."""


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """On SQLite alone: `test_accounts` asks the same queries of both kinds of database."""
    return sqlite_journal


def leader(journal: Journal) -> int:
    """Lead, so that orders may be written."""
    epoch = journal.leadership.acquire("d", 60.0)
    assert epoch is not None
    return epoch


@pytest.mark.parametrize(("power", "rate"), [(0.5, 2.0), (1.0, 1.0), (1.7, 0.6), (2.0, 1.3)])
def test_a_run_that_was_never_touched_has_saved_nothing(
    journal: Journal, power: float, rate: float
) -> None:
    """Whatever its catalogue says: at every settled instant, from the first slot on."""
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=400 * power, rate=1000 * rate)
    life.begin()
    for _ in range(6):
        life.live()
        found = saved(journal, slot(life.slots))
        assert (found.saved_ug, found.high_ug, found.why) == (0, 0, "")
    assert found.actual_ug > 0


def test_an_untouched_run_that_crashed_and_went_back_has_saved_nothing(journal: Journal) -> None:
    """Its baseline would have crashed as well: what it trained twice is in both."""
    intensity(journal, GRID)
    life = Life(journal=journal)
    life.begin()
    life.live(3)
    life.slots, life.tokens, life.attempt = life.slots + 4, life.tokens - 70_000, 2
    register(journal, now=slot(life.slots), incarnation="i2", attempt=2, tokens_total=10**9)
    for _ in range(6):
        life.live()
        assert saved(journal, slot(life.slots)).saved_ug == 0
    assert trained(journal) == life.tokens


def test_darkness_of_an_untouched_run_is_on_both_sides(journal: Journal) -> None:
    """One GPU of four that nobody reads: it emitted, and so did its baseline, as much.

    No board tells its limit here, so it is bounded by what the others drew in whole slots.
    """
    intensity(journal, GRID)
    life = Life(journal=journal, unread=("g3",))
    life.begin()
    life.live(5)
    found = saved(journal, slot(5))
    assert (found.saved_ug, found.high_ug) == (0, 0)
    assert found.upper_ug == pytest.approx(found.actual_ug / 3, rel=1e-6)
    assert "estimated" in found.flags


@pytest.mark.parametrize("ended", [False, True])
def test_a_run_of_which_nothing_was_read_has_no_saving(journal: Journal, *, ended: bool) -> None:
    """Not a number: neither while it lives nor once it has ended."""
    intensity(journal, GRID)
    life = Life(journal=journal, unread=GPUS)
    life.begin(plan=PROMPT)
    life.live(4)
    moved(journal, leader(journal), begun=slot(4), ended=slot(5))
    life.layout, life.slots = B, 5
    life.live(4)
    if ended:
        finish(journal, now=slot(9), tokens=life.tokens)
        life.books.price(slot(30))
    found = saved(journal, slot(9))
    assert (found.saved_ug, found.high_ug, found.why) == (None, None, NOTHING_READ)
    assert found.upper_ug
    assert journal.by_slot.unobserved_s(T0, slot(30), "r") == 4 * 9 * SLOT_S


def test_a_rank_whose_gpu_is_not_known_leaves_no_saving(journal: Journal) -> None:
    """And it says so, in other words than a GPU that is known and dark."""
    register(journal, gpus=("", ""), world_size=2, ranks=(0, 1))
    accounts(journal).price(slot(2))
    assert saved(journal, slot(2)).why == UNKNOWN_GPUS


def switched(journal: Journal, *, unread: tuple[str, ...] = ()) -> Life:
    """Six slots at A, one of switching, six at B; true watts are 0.8 of what A's catalogue says."""
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=320.0, rate=900.0, unread=unread)
    life.begin(plan=PROMPT, tokens_total=1_500_000)
    life.live(6)
    moved(journal, leader(journal), begun=slot(6), ended=slot(7))
    life.layout, life.power_w, life.rate, life.slots = B, 150.0, 500.0, 7
    book(journal, *(energy(6, 3_000_000, gpu_uuid=gpu) for gpu in GPUS if gpu not in unread))
    life.live(6)
    return life


def test_a_switched_run_is_compared_with_what_was_measured_where_it_was(journal: Journal) -> None:
    """Its own first slots, then 900 tokens/s at 1280 W in the hours that followed them."""
    life = switched(journal)
    found = saved(journal, slot(13))
    needed = life.tokens
    reference_ug = 0.0
    for g_per_kwh in GRID:
        tokens = min(needed, 27_000)
        reference_ug += 1280 * 30 * (tokens / 27_000) * g_per_kwh / 3.6
        needed -= tokens
    assert found.reference_ug == pytest.approx(reference_ug, rel=1e-4)
    assert found.saved_ug == (found.reference_ug or 0) - found.actual_ug
    assert found.saved_ug == found.high_ug


def test_darkness_is_a_band_that_narrows_when_the_joules_arrive(journal: Journal) -> None:
    """Half of the GPUs fall silent after the switch: the headline counts them at their most.

    Then their agent, which was cut off, delivers what the counters know.
    """
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=320.0)
    life.begin(plan=PROMPT)
    life.live(4)
    moved(journal, leader(journal), begun=slot(4), ended=slot(5))
    life.layout, life.power_w, life.rate, life.slots = B, 150.0, 500.0, 5
    life.unread = ("g2", "g3")
    book(journal, *(energy(4, 9_000_000, gpu_uuid=gpu) for gpu in ("g0", "g1")))
    life.live(4)
    dark = saved(journal, slot(9))
    assert dark.saved_ug is not None
    assert dark.high_ug is not None
    assert dark.saved_ug < dark.high_ug
    for number, each_mj in ((4, 9_000_000), *((each, 4_500_000) for each in range(5, 9))):
        book(journal, *(energy(number, each_mj, gpu_uuid=gpu) for gpu in ("g2", "g3")))
    counters(journal, slot(9))
    life.books.price(slot(9))
    found = saved(journal, slot(9))
    assert found.saved_ug is not None
    assert found.high_ug is not None
    assert dark.saved_ug <= found.saved_ug == found.high_ug <= dark.high_ug
    assert journal.by_slot.unobserved_s(T0, slot(30)) == 0


def test_a_saving_is_not_told_before_its_submitted_point_was_measured(journal: Journal) -> None:
    """Switched within its first slot: what it would have drawn there nobody has seen.

    Back there for a whole slot, that holds for every row from the first one on.
    """
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=320.0)
    life.begin(plan=PROMPT)
    epoch = leader(journal)
    moved(journal, epoch, begun=after(5), ended=after(20))
    life.layout, life.power_w, life.rate = B, 150.0, 500.0
    life.live(4)
    assert saved(journal, slot(4)).why == UNCALIBRATED
    kinds = {row.line for row in journal.ledger.emissions("r", scenario="baseline")}
    assert kinds == {"assumed"}
    moved(journal, epoch, begun=slot(4), ended=slot(5), to="A", switch_id="p2", step=400)
    life.layout, life.power_w, life.rate, life.slots = A, 320.0, 800.0, 5
    life.live(3)
    found = saved(journal, slot(8))
    assert found.saved_ug is not None
    rows = journal.ledger.emissions("r", scenario="baseline")
    assert {row.line for row in rows} == {"as_run", "modelled"}
    assert [row.tokens for row in rows if row.line == "modelled"][1] == 800 * 30


def test_a_saving_is_parted_by_the_best_single_point(journal: Journal) -> None:
    """B is the thriftier point, and in time: choosing it once had saved most of it.

    The two parts add up, to the microgram; a run that stays there is that point.
    """
    life = switched(journal)
    row = journal.runs.find("r", slot(13))
    assert row is not None
    assert row.best_single == "B"
    assert saved(journal, slot(13)).split_why == SINGLE_BEHIND
    finish(journal, now=slot(13), tokens=life.tokens)
    for number in range(14, 40):
        life.books.price(slot(number))
    found = saved(journal, slot(40))
    assert found.saved_ug is not None
    assert found.better_point_ug is not None
    assert found.carbon_aware_ug is not None
    assert found.better_point_ug + found.carbon_aware_ug == found.saved_ug
    assert found.better_point_ug > 0


def test_a_run_that_dies_behind_its_baseline_enters_the_books(journal: Journal) -> None:
    """Lost and never finished: at the tokens it reached, as soon as its baseline got there."""
    life = switched(journal)
    life.books.price(slot(40))
    row = journal.runs.find("r", slot(40))
    assert row is not None
    assert row.state == "lost"
    assert saved(journal, slot(40)).saved_ug is not None


def test_two_signals_leave_no_saving(journal: Journal) -> None:
    """Nothing is subtracted across them; each has its own line."""
    life = switched(journal)
    other = replace(life.books._tariff.signal, provider="neso")
    intensity(journal, [50.0] * 60, signal=other)
    life.books = accounts(journal, other)
    intensity(journal, [], signal=other)
    life.live(3)
    found = saved(journal, slot(16))
    assert (found.saved_ug, len(found.signals)) == (None, 2)
    assert "2 signals" in found.why


def test_switching_back_does_not_make_a_settling_slot_the_run_s_own(journal: Journal) -> None:
    """Until its speed is steady the baseline is not slowed by our switch."""
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=320.0)
    slow = replace(PROMPT, catalogue=replace(CATALOGUE, switch=SwitchCost(layout_s=45.0)))
    life.begin(plan=slow)
    life.live(4)
    epoch = leader(journal)
    moved(journal, epoch, begun=slot(4), ended=slot(5))
    life.layout, life.slots = B, 5
    life.live(2)
    moved(journal, epoch, begun=slot(7), ended=slot(8), to="A", switch_id="p2", step=900)
    life.layout, life.rate, life.slots = A, 300.0, 8
    life.live(3)
    lines = {row.slot_start: row for row in journal.ledger.emissions("r", scenario="baseline")}
    assert [lines[slot(number)].line for number in (7, 8, 9, 10)] == [
        "modelled",
        "modelled",
        "modelled",
        "as_run",
    ]
    assert lines[slot(8)].tokens == 30_000


def test_what_was_trained_after_the_last_look_at_a_slot_is_that_slot_s(journal: Journal) -> None:
    """The run goes home within a slot, and nobody looks for four: it is there once."""
    intensity(journal, GRID)
    life = Life(journal=journal, power_w=320.0)
    life.begin(plan=PROMPT)
    life.live(4)
    epoch = leader(journal)
    moved(journal, epoch, begun=slot(4), ended=slot(4))
    life.layout, life.rate = B, 500.0
    life.live(6)
    look = slot(10) + timedelta(seconds=9)
    life.tokens, life.slots = life.tokens + 4_500, 11
    life.report(look)
    life.books.price(look)
    moved(journal, epoch, begun=look, ended=look, to="A", switch_id="p2", step=900)
    life.layout, life.slots = A, 14
    life.tokens += 111_000
    life.report(slot(14))
    life.books.price(slot(14))
    lines = {row.slot_start: row for row in journal.ledger.emissions("r", scenario="baseline")}
    home = [lines[slot(number)] for number in (11, 12, 13)]
    assert [each.line for each in home] == ["as_run"] * 3
    assert [each.tokens for each in home] == pytest.approx([30_000] * 3, abs=2)
