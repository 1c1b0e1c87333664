"""The baseline's clock: what it counts, what stops it, and that no time is counted twice."""

from datetime import timedelta
from typing import Any

import pytest

from tests.accounts.build import (
    GPUS,
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
from tests.journal.build import order, put_order, transition
from wattmesh.controller.journal.journal import Journal
from wattmesh.reconfig.switch import SwitchState

HOUR = timedelta(hours=1)
UID = 1000


def reckoned_s(journal: Journal) -> float:
    """Give the seconds the baseline ran, at its 1000 tokens/s."""
    return trained(journal) / 1000.0


def seen(journal: Journal, at_s: float, **changes: Any) -> None:
    """The run reports at the catalogue's own speed, and the accounts are brought up to date."""
    progress(journal, now=after(at_s), tokens=int(at_s * 1000), **changes)
    accounts(journal).price(after(at_s))


def test_the_baseline_runs_while_the_run_is_seen(journal: Journal) -> None:
    """At the submitted point, from the registration on; silence is not counted until it ends."""
    register(journal)
    for at_s in (0.25, 0.5, 10.125, 40.0):
        seen(journal, at_s)
    assert reckoned_s(journal) == pytest.approx(40.0, abs=0.001)
    accounts(journal).price(after(50))
    assert reckoned_s(journal) == pytest.approx(40.0, abs=0.001)
    drawn = sum(row.energy_mj or 0 for row in journal.ledger.emissions(scenario="baseline"))
    assert drawn == pytest.approx(1600.0 * 40.0 * 1000, rel=1e-4)


def test_how_often_it_is_reckoned_changes_nothing(journal: Journal) -> None:
    """Another restart of the daemon at every report: as many tokens as in one go, but for one."""
    register(journal)
    for number in range(1, 40):
        seen(journal, number * 1.234567)
    assert trained(journal) == pytest.approx(39 * 1234.567, abs=2.0)


def test_an_outage_that_we_did_not_cause_stops_the_clock(journal: Journal) -> None:
    """From the last report of one launch to the registration of the next, whenever reckoned."""
    register(journal)
    seen(journal, 10)
    accounts(journal).price(after(25))
    register(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(20.0, abs=0.002)


def test_a_restart_of_ours_does_not_stop_the_clock(journal: Journal) -> None:
    """The run ended because we asked: the baseline would have trained on."""
    register(journal)
    seen(journal, 10)
    finish(journal, now=after(10), tokens=10_000, reason="restart")
    register(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(80.0, abs=0.002)


@pytest.mark.parametrize(
    ("state", "counted_s"), [(SwitchState.REBUILDING, 80.0), (SwitchState.ORDERED, 20.0)]
)
def test_a_crash_within_a_switch_is_ours(
    journal: Journal, state: SwitchState, counted_s: float
) -> None:
    """The clock runs on through a switch that broke the job, not through one not yet begun."""
    epoch = journal.leadership.acquire("d", 60.0)
    assert epoch is not None
    register(journal)
    progress(journal, now=after(8), tokens=8_000)
    assert put_order(journal, order(epoch), now=after(9))
    if state is not SwitchState.ORDERED:
        journal.switches.record(transition(state, epoch=epoch), owner_uid=UID, now=after(9.5))
    progress(journal, now=after(10), tokens=10_000)
    register(journal, now=after(70), incarnation="i2", attempt=2)
    seen(journal, 80, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(counted_s, abs=0.002)


@pytest.mark.parametrize(("step", "reckoned"), [(HOUR, 3612.0), (-HOUR, 16.0)])
def test_a_stepped_wall_clock_counts_nothing_twice(
    journal: Journal, step: timedelta, reckoned: float
) -> None:
    """An hour either way and back: each moment of the wall clock is reckoned once at most."""
    register(journal, tokens_total=10_000_000)
    for at_s, shown in ((10, after(10)), (12, after(12) + step), (14, after(14)), (16, after(16))):
        progress(journal, now=shown, tokens=at_s * 1000)
        accounts(journal).price(shown)
        for row in journal.ledger.emissions():
            assert row.tokens > 0
            assert (row.energy_mj or 0) > 0
    assert reckoned_s(journal) == pytest.approx(reckoned, abs=0.002)


def test_an_outage_that_a_stepped_clock_turned_round_counts_nothing_twice(
    journal: Journal,
) -> None:
    """The next launch registers before the last report, by a clock that was set back."""
    register(journal)
    seen(journal, 20)
    seen(journal, 50)
    register(journal, now=after(40), incarnation="i2", attempt=2, supersedes="i1")
    seen(journal, 60, incarnation="i2", attempt=2)
    assert reckoned_s(journal) == pytest.approx(60.0, abs=0.002)


def test_the_baseline_stops_at_the_run_s_work(journal: Journal) -> None:
    """Not a token more than the job has, and the time in which they were trained."""
    register(journal)
    for at_s in (190, 210, 230):
        progress(journal, now=after(at_s), tokens=at_s * 430)
        accounts(journal).price(after(at_s))
    assert trained(journal) == 100_000
    drawn = sum(row.energy_mj or 0 for row in journal.ledger.emissions(scenario="baseline"))
    assert drawn == pytest.approx(200 * 1_600_000, rel=1e-4)


def test_a_finished_run_lets_its_baseline_catch_up(journal: Journal) -> None:
    """The run was faster than its baseline: that goes on alone, to the run's tokens and no more."""
    register(journal)
    progress(journal, now=after(30), tokens=40_000)
    finish(journal, now=after(30), tokens=40_000)
    for at_s in (30, 35, 60, 90):
        accounts(journal).price(after(at_s))
    assert trained(journal) == 40_000


def test_time_after_the_end_says_nothing_about_speed(journal: Journal) -> None:
    """First reckoned long after the run finished: at the speed it had, not at next to none."""
    register(journal)
    progress(journal, now=after(40), tokens=52_000)
    finish(journal, now=after(40), tokens=52_000)
    accounts(journal).price(after(300))
    drawn = sum(row.energy_mj or 0 for row in journal.ledger.emissions(scenario="baseline"))
    assert trained(journal) == 52_000
    assert drawn == pytest.approx(40 * 1_600_000, rel=1e-3)


def test_tokens_from_before_the_registration_are_nobody_s(journal: Journal) -> None:
    """A job that was attached half way: its baseline trains what is left of it."""
    register(journal, tokens=60_000)
    for at_s in (45, 46, 47):
        progress(journal, now=after(at_s), tokens=100_000)
        accounts(journal).price(after(at_s))
    assert trained(journal) == 40_000


def test_the_baseline_slows_as_the_run_does(journal: Journal) -> None:
    """A tenth slower than the catalogue says, where the run is; watts as they are."""
    register(journal)
    progress(journal, now=after(10), tokens=9_000, tokens_per_s=900.0)
    accounts(journal).price(after(10))
    assert reckoned_s(journal) == pytest.approx(9.0, abs=0.002)


def test_the_baseline_keeps_step_with_a_run_at_the_submitted_point(journal: Journal) -> None:
    """Pauses between steps count, which the rate that a run reports leaves out: 700, not 1000."""
    run_long(journal)
    for at_s in range(10, 1000, 10):
        progress(journal, now=after(at_s), tokens=at_s * 700, tokens_per_s=1000.0)
        accounts(journal).price(after(at_s))
    first_slot_off = 40 * 300
    assert trained(journal) == pytest.approx(990 * 700, abs=first_slot_off)


def watts(
    journal: Journal, slots: range, power_w: float, *, gpus: int = 4, unobserved_ms: int = 0
) -> None:
    """Book what all of a run's GPUs drew together, slot by slot."""
    each_mj = round(power_w * 30.0 * 1000 / 4)
    for number in slots:
        for gpu in GPUS[:gpus]:
            row = energy(number, each_mj, gpu_uuid=gpu, unobserved_ms=unobserved_ms)
            book(journal, row)
    counters(journal, slot(slots.stop))


def drawn_after(journal: Journal) -> float:
    """Give the watts of the baseline over the last 10 s of 300."""
    progress(journal, now=after(290), tokens=290_000)
    accounts(journal).price(after(290))
    before = sum(row.energy_mj or 0 for row in journal.ledger.emissions(scenario="baseline"))
    progress(journal, now=after(300), tokens=300_000)
    accounts(journal).price(after(300))
    drawn = sum(row.energy_mj or 0 for row in journal.ledger.emissions(scenario="baseline"))
    return (drawn - before) / 1000 / 10


def run_long(journal: Journal) -> None:
    """Register a run whose work outlasts these tests."""
    register(journal, tokens_total=10_000_000)


def test_the_baseline_draws_as_the_run_was_measured_to(journal: Journal) -> None:
    """A tenth over the catalogue at the point it runs at: the baseline draws a tenth more."""
    run_long(journal)
    watts(journal, range(8), 1760.0)
    assert drawn_after(journal) == pytest.approx(1760.0, rel=1e-3)


def test_processors_that_are_charged_to_the_run_count_as_watts_and_not_as_gpus(
    journal: Journal,
) -> None:
    """Its GPUs draw 1560 W, its processors 200 W: measured at 1760 W, all GPUs seen."""
    run_long(journal)
    watts(journal, range(8), 1560.0)
    for number in range(8):
        book(journal, energy(number, 6_000_000, gpu_uuid="cpu:n1:package-0"))
    assert drawn_after(journal) == pytest.approx(1760.0, rel=1e-3)


def test_one_odd_slot_does_not_move_the_watts(journal: Journal) -> None:
    """A clock that was set back put two hours' joules into one slot."""
    run_long(journal)
    watts(journal, range(8), 1760.0)
    watts(journal, range(8, 9), 5000.0)
    assert drawn_after(journal) == pytest.approx(1760.0, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "slots"),
    [({"gpus": 3}, range(8)), ({"unobserved_ms": 1}, range(8)), ({}, range(2))],
)
def test_watts_that_were_not_seen_whole_correct_nothing(
    journal: Journal, changes: dict[str, int], slots: range
) -> None:
    """A GPU missing, a millisecond nobody saw, or too few slots: as the catalogue says."""
    run_long(journal)
    watts(journal, slots, 1760.0, **changes)
    assert drawn_after(journal) == pytest.approx(1600.0, rel=1e-3)


def test_a_slot_that_is_not_wholly_booked_corrects_nothing(journal: Journal) -> None:
    """Counters that stand within it say that more is to come."""
    run_long(journal)
    watts(journal, range(4), 1760.0)
    counters(journal, after(40))
    assert drawn_after(journal) == pytest.approx(1600.0, rel=1e-3)


def test_slots_of_a_switch_correct_nothing(journal: Journal) -> None:
    """Until enough slots passed at the new point, the ones at the old point stand."""
    epoch = journal.leadership.acquire("d", 60.0)
    assert epoch is not None
    run_long(journal)
    watts(journal, range(4), 1760.0)
    put_order(journal, order(epoch), now=slot(4))
    done = transition(SwitchState.CONFIRMED, epoch=epoch)
    journal.switches.record(done, owner_uid=UID, now=slot(5))
    watts(journal, range(4, 9), 850.0)
    assert drawn_after(journal) == pytest.approx(1760.0, rel=1e-3)


def test_grams_of_the_baseline_come_with_its_joules(journal: Journal) -> None:
    """One transaction: a reader never sees joules with the grams of others."""
    register(journal)
    intensity(journal, (100.0, 100.0))
    progress(journal, now=after(45), tokens=45_000)
    accounts(journal).price(after(45))
    rows = journal.ledger.emissions(scenario="baseline")
    assert [row.tokens for row in rows] == [30_000, 15_000]
    assert [row.carbon_ug for row in rows] == [1_333_333, 666_667]
