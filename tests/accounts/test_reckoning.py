"""The baseline's clock: what it counts, what stops it, and that no time is counted twice.

The run is at B and its baseline, which nobody has measured, goes on at the catalogue's pace, of
1000 tokens/s.
"""

from datetime import timedelta
from typing import Any

import pytest

from tests.accounts.test_as_run import PROMPT, leader
from tests.builders.accounts import (
    GPUS,
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
    trained,
)
from tests.builders.runs import order, put_order, transition
from wattmesh.controller.journal.journal import Journal
from wattmesh.policies.accounting.baseline import SlotKind
from wattmesh.reconfig.switch import SwitchState

HOUR = timedelta(hours=1)
UID = 1000
LONG = 10**9


@pytest.fixture
def journal(sqlite_journal: Journal) -> Journal:
    """On SQLite alone: `test_accounts` asks the same queries of both kinds of database."""
    return sqlite_journal


def reckoned_s(journal: Journal) -> float:
    """Give the seconds the baseline ran, at its 1000 tokens/s."""
    return trained(journal) / 1000.0


def begin(journal: Journal, **changes: Any) -> None:
    """Register the run at B."""
    register(journal, layout=B, **({"tokens_total": LONG} | changes))


def seen(journal: Journal, at_s: float, **changes: Any) -> None:
    """The run reports, and accounts that have just started are brought up to date."""
    progress(journal, now=after(at_s), layout=B, **({"tokens": int(at_s * 500)} | changes))
    accounts(journal).price(after(at_s))


def drawn_j(journal: Journal) -> float:
    """Give the joules of the baseline."""
    rows = journal.ledger.emissions(scenario="baseline")
    return sum(row.energy_mj or 0 for row in rows) / 1000


def test_the_baseline_runs_while_the_run_is_seen(journal: Journal) -> None:
    """From the registration on, and as long as it lives: a long step is no pause of the clock."""
    begin(journal)
    for at_s in (0.25, 0.5, 10.125, 40.0):
        seen(journal, at_s)
    assert reckoned_s(journal) == pytest.approx(40.0, abs=0.002)
    assert drawn_j(journal) == pytest.approx(1600.0 * 40.0, rel=1e-4)
    accounts(journal).price(after(50))
    assert reckoned_s(journal) == pytest.approx(50.0, abs=0.002)


def test_how_often_it_is_reckoned_changes_nothing(journal: Journal) -> None:
    """Another restart of the daemon at every report: as many tokens as in one go."""
    begin(journal)
    for number in range(1, 40):
        seen(journal, number * 1.234567)
    assert trained(journal) == pytest.approx(39 * 1234.567, abs=1.0)


def test_an_outage_that_we_did_not_cause_stops_the_clock(journal: Journal) -> None:
    """From the last report of one launch to the registration of the next, whenever reckoned."""
    begin(journal)
    seen(journal, 10)
    accounts(journal).price(after(25))
    begin(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(20.0, abs=0.002)


def test_a_restart_of_ours_does_not_stop_the_clock(journal: Journal) -> None:
    """The run ended because we asked: the baseline would have trained on."""
    begin(journal)
    seen(journal, 10)
    finish(journal, now=after(10), tokens=5_000, reason="restart")
    begin(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(80.0, abs=0.002)


@pytest.mark.parametrize(
    ("state", "counted_s"), [(SwitchState.REBUILDING, 80.0), (SwitchState.ORDERED, 20.0)]
)
def test_a_crash_within_a_switch_is_ours(
    journal: Journal, state: SwitchState, counted_s: float
) -> None:
    """The clock runs on through a switch that broke the job, not through one not yet begun."""
    epoch = leader(journal)
    begin(journal)
    progress(journal, now=after(8), tokens=4_000, layout=B)
    assert put_order(journal, order(epoch), now=after(9))
    if state is not SwitchState.ORDERED:
        journal.switches.record(transition(state, epoch=epoch), owner_uid=UID, now=after(9.5))
    progress(journal, now=after(10), tokens=5_000, layout=B)
    begin(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(counted_s, abs=0.002)


@pytest.mark.parametrize(("step", "reckoned"), [(HOUR, 3612.0), (-HOUR, 16.0)])
def test_a_stepped_wall_clock_counts_nothing_twice(
    journal: Journal, step: timedelta, reckoned: float
) -> None:
    """An hour either way and back: each moment of the wall clock is reckoned once at most."""
    begin(journal)
    for at_s, shown in ((10, after(10)), (12, after(12) + step), (14, after(14)), (16, after(16))):
        progress(journal, now=shown, tokens=at_s * 500, layout=B)
        accounts(journal).price(shown)
    assert reckoned_s(journal) == pytest.approx(reckoned, abs=0.01)


def test_an_outage_that_a_stepped_clock_turned_round_counts_nothing_twice(
    journal: Journal,
) -> None:
    """The next launch registers before the last report, by a clock that was set back."""
    begin(journal)
    seen(journal, 20)
    seen(journal, 50)
    begin(journal, now=after(40), incarnation="i2", attempt=2, supersedes="i1")
    seen(journal, 60, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(60.0, abs=0.002)


def test_the_baseline_stops_at_the_run_s_work(journal: Journal) -> None:
    """Not a token more than the job has, and the time in which they were trained."""
    begin(journal, tokens_total=100_000)
    for at_s in (60, 150, 190):
        seen(journal, at_s)
    assert trained(journal) == 100_000
    assert drawn_j(journal) == pytest.approx(100 * 1600, rel=1e-4)


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_that_ended_lets_its_baseline_catch_up(journal: Journal, *, finished: bool) -> None:
    """The run was faster than its baseline: that goes on alone, to the run's tokens and no more.

    Whether it finished or died; and the slot in which it ended counts once.
    """
    begin(journal)
    progress(journal, now=after(35), tokens=80_000, layout=B)
    if finished:
        finish(journal, now=after(35), tokens=80_000)
    for at_s in (35, 36, 60, 79, 90, 130, 300):
        accounts(journal).price(after(at_s))
    assert trained(journal) == 80_000
    assert drawn_j(journal) == pytest.approx(80 * 1600, rel=1e-3)


def test_a_run_that_comes_back_takes_its_outage_out_again(journal: Journal) -> None:
    """Its baseline had gone on alone, as of a run that died; it did not die."""
    begin(journal)
    progress(journal, now=after(35), tokens=80_000, layout=B)
    for at_s in (35, 60, 90):
        accounts(journal).price(after(at_s))
    assert trained(journal) == 80_000
    begin(journal, now=after(95), incarnation="i2", attempt=2, tokens=80_000)
    seen(journal, 100, incarnation="i2", attempt=2, tokens=81_000)
    assert reckoned_s(journal) == pytest.approx(40.0, abs=0.002)


def test_tokens_from_before_the_registration_are_nobody_s(journal: Journal) -> None:
    """A job that was attached half way: its baseline trains what is left of it."""
    begin(journal, tokens=60_000, tokens_total=100_000)
    for at_s in (45, 46, 47):
        seen(journal, at_s, tokens=100_000)
    assert trained(journal) == 40_000


def back_and_forth(journal: Journal, power_w: float, *, unread: tuple[str, ...] = ()) -> Life:
    """Live four slots at A, one of switching, four at B."""
    intensity(journal, [100.0] * 40)
    life = Life(journal=journal, power_w=power_w / 4, rate=700.0, unread=unread)
    life.begin(plan=PROMPT)
    life.live(4)
    moved(journal, leader(journal), begun=slot(4), ended=slot(5))
    life.layout, life.slots, life.power_w, life.rate = B, 5, 150.0, 400.0
    life.live(4)
    return life


def newest_w(journal: Journal) -> float:
    """Give the watts of the baseline in its newest slot."""
    row = journal.ledger.emissions("r", scenario="baseline")[-1]
    assert row.line == SlotKind.MODELLED
    return (row.energy_mj or 0) / 1000 / 30


def test_away_from_its_point_the_baseline_goes_on_as_it_was_measured_there(
    journal: Journal,
) -> None:
    """700 tokens/s and 1760 W, whatever the catalogue has: 1000 and 1600."""
    back_and_forth(journal, 1760.0)
    assert newest_w(journal) == pytest.approx(1760.0, rel=1e-6)
    row = journal.ledger.emissions("r", scenario="baseline")[-1]
    assert row.tokens == 700 * 30


def test_processors_that_are_charged_to_the_run_count_as_watts_and_not_as_gpus(
    journal: Journal,
) -> None:
    """Its GPUs draw 1560 W, its processors 200 W: measured at 1760 W, all GPUs seen."""
    for number in range(9):
        book(journal, energy(number, 6_000_000, gpu_uuid="cpu:n1:package-0"))
    back_and_forth(journal, 1560.0)
    assert newest_w(journal) == pytest.approx(1760.0, rel=1e-6)


def test_one_odd_slot_does_not_move_the_watts(journal: Journal) -> None:
    """A clock that was set back put two hours' joules into one slot."""
    life = back_and_forth(journal, 1760.0)
    book(journal, energy(2, 99_000_000_000))
    life.live()
    assert newest_w(journal) == pytest.approx(1760.0, rel=1e-6)


def test_a_gpu_that_was_not_read_bounds_the_watts(journal: Journal) -> None:
    """What was read of it is the baseline's low end; the most that the rest drew stands beside."""
    back_and_forth(journal, 1760.0, unread=("g3",))
    assert newest_w(journal) == pytest.approx(1320.0, rel=1e-6)
    row = journal.ledger.emissions("r", scenario="baseline")[-1]
    assert row.upper_mj == pytest.approx(440 * 30_000, rel=1e-3)


def test_the_baseline_follows_what_changes_where_the_run_is(journal: Journal) -> None:
    """The same point draws a tenth less than when it was first visited: so would the baseline.

    Where it draws a tenth more the baseline may draw as much more: that is the upper end alone.
    """
    life = back_and_forth(journal, 1600.0)
    life.live(8)
    before_w = newest_w(journal)
    life.power_w *= 0.9
    life.live(24)
    assert newest_w(journal) == pytest.approx(0.9 * before_w, rel=1e-6)
    life.power_w *= 1.1 / 0.9
    life.live(24)
    assert newest_w(journal) == pytest.approx(before_w, rel=1e-6)
    newest = journal.ledger.emissions("r", scenario="baseline")[-2]
    assert newest.energy_mj is not None
    assert newest.upper_mj == pytest.approx(0.1 * newest.energy_mj, rel=1e-5)


def test_a_slot_that_is_not_wholly_booked_measures_nothing(journal: Journal) -> None:
    """Counters that stand within it say that more is to come."""
    counters(journal, T0)
    intensity(journal, [100.0] * 40)
    register(journal, tokens_total=LONG, plan=PROMPT)
    books = accounts(journal)
    for at_s in range(10, 61, 10):
        progress(journal, now=after(at_s), tokens=at_s * 700)
        book(journal, *(energy(0, at_s * 400_000, gpu_uuid=gpu) for gpu in GPUS))
        counters(journal, after(min(at_s, 29)))
        books.price(after(at_s))
    moved(journal, leader(journal), begun=after(60), ended=after(61))
    progress(journal, now=after(75), tokens=50_000, layout=B)
    books.price(after(75))
    assert {row.line for row in journal.ledger.emissions("r", scenario="baseline")} == {
        SlotKind.AS_RUN,
        SlotKind.ASSUMED,
    }


def test_grams_of_the_baseline_come_with_its_joules(journal: Journal) -> None:
    """One transaction: a reader never sees joules with the grams of others."""
    begin(journal)
    intensity(journal, (100.0, 100.0))
    seen(journal, 45)
    rows = journal.ledger.emissions(scenario="baseline")
    assert [row.tokens for row in rows] == [30_000, 15_000]
    assert [row.carbon_ug for row in rows] == [1_333_333, 666_667]
