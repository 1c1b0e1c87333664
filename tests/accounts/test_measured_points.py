"""A run's points beside their catalogue: steady time only, steady alarms, nothing invented."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.accounts import (
    GPUS,
    GRID,
    SLOT_S,
    B,
    Life,
    book,
    counters,
    energy,
    intensity,
    moved,
    register,
    slot,
)
from tests.builders.runs import CATALOGUE
from wattmesh.controller.accounting import measured_points as module
from wattmesh.controller.accounting.measured_points import capped_spans, measured_points
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.views import PointLine
from wattmesh.policies.accounting.point_ratio import (
    BLOCKS,
    FEWEST_BLOCKS,
    PointRatio,
    SteadySlot,
    against_catalogue,
)
from wattmesh.reconfig.catalogue import PowerScope, SwitchCost

PLAN = RunPlan(catalogue=CATALOGUE, deadline_after_s=3000.0)


def begun(
    journal: Journal, plan: RunPlan = PLAN, *, rate: float = 1000.0, power_w: float = 400.0
) -> Life:
    """A run at A, which its catalogue says trains 1000 tokens/s at 1600 W."""
    intensity(journal, [200.0] * 80)
    life = Life(journal=journal, power_w=power_w, rate=rate)
    life.begin(plan=plan)
    return life


def lines(life: Life, limit: float = 0.1) -> dict[str, PointLine]:
    """What is told of each point now."""
    now = slot(life.slots)
    row = life.journal.runs.find("r", now)
    assert row is not None
    capped = capped_spans(life.journal)
    found = measured_points(life.journal, row, GRID, now, capped=capped, limit=limit)
    return {each.point: each for each in found}


def test_speed_and_watts_are_compared_and_a_restart_changes_nothing(journal: Journal) -> None:
    """20 % slower at 15 % more watts: both are told, from the journal alone, with their flags."""
    life = begun(journal, rate=800.0, power_w=460.0)
    life.live(2)
    assert lines(life) == {}
    life.live(6)
    told = lines(life)["A"]
    assert told.speed_ratio == pytest.approx(0.8)
    assert told.power_ratio == pytest.approx(1.15)
    assert (told.catalogue_power_w, told.flags) == (1600.0, ("simulated",))
    assert (told.speed_alarm, told.power_alarm) == (True, True)
    assert not lines(life, limit=0.25)["A"].speed_alarm


def limped(journal: Journal, settling_s: float) -> dict[str, PointLine]:
    """Let a run switch to B, where it is 8 % too slow for four slots, and then as it should be."""
    switch = SwitchCost(layout_s=settling_s)
    life = begun(journal, replace(PLAN, catalogue=replace(CATALOGUE, switch=switch)))
    life.live(8)
    epoch = journal.leadership.acquire("d", 60.0) or 0
    moved(journal, epoch, begun=slot(8), ended=slot(9), step=2400)
    life.slots, life.layout = 9, B
    for rate, count in ((506.0, 4), (550.0, 5)):
        life.rate, life.power_w = rate, (710.0 + 2 * 70.0) / 4
        life.live(count)
    return lines(life)


def test_a_switch_and_what_follows_it_are_in_no_average(sqlite_journal: Journal) -> None:
    """The new point counts once its speed is steady; the old one keeps what it had."""
    told = limped(sqlite_journal, 4 * SLOT_S)
    assert [each.speed_ratio for each in told.values()] == pytest.approx([1.0, 1.0])
    assert [each.power_ratio for each in told.values()] == pytest.approx([1.0, 1.0])


def test_slots_after_a_switch_that_count_are_seen(sqlite_journal: Journal) -> None:
    """Sabotaged twin: speed is called steady as soon as the switch has ended."""
    assert limped(sqlite_journal, 0.0)["B"].speed_ratio < 0.98


@pytest.mark.parametrize("stalled", [1, 4, 9])
def test_a_stall_is_in_no_average(sqlite_journal: Journal, stalled: int) -> None:
    """Also one of hours, in which it draws little and trains nothing, or next to nothing."""
    life = begun(sqlite_journal)
    life.live(5)
    life.rate, life.power_w = 0.0, 60.0
    life.live(stalled)
    life.rate = 300.0
    life.live(1)
    life.rate, life.power_w = 1000.0, 400.0
    life.live(4)
    told = lines(life)["A"]
    assert told.speed_ratio == pytest.approx(1.0)
    assert told.power_ratio == pytest.approx(1.0)
    assert (told.speed_alarm, told.power_alarm) == (False, False)


def test_time_under_a_power_cap_is_in_no_average(
    sqlite_journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is slow because an operator said so is not slower than its catalogue."""
    life = begun(sqlite_journal)
    life.live(4)
    epoch = sqlite_journal.leadership.acquire("d", 60.0) or 0
    sqlite_journal.caps.order(1000.0, slot(40), by="ann", reason="heat", now=slot(4), epoch=epoch)
    life.rate, life.power_w = 600.0, 250.0
    life.live(6)
    sqlite_journal.caps.end(by="ann", now=slot(10), epoch=epoch)
    assert lines(life)["A"].speed_ratio == pytest.approx(1.0)
    monkeypatch.setattr(module, "_within", lambda *_: False)
    assert lines(life)["A"].speed_ratio == pytest.approx(0.6), "who counts it sees the cap"


def test_a_launch_that_was_lost_and_one_that_went_back_are_in_no_average(
    sqlite_journal: Journal,
) -> None:
    """Outage, loading, and tokens that are trained again: only whole slots of training count."""
    life = begun(sqlite_journal)
    life.live(5)
    life.slots, life.tokens, life.attempt = life.slots + 4, life.tokens - 70_000, 2
    register(sqlite_journal, now=slot(life.slots), incarnation="i2", attempt=2, tokens_total=10**9)
    life.live(6)
    assert lines(life)["A"].speed_ratio == pytest.approx(1.0)
    assert lines(life)["A"].power_ratio == pytest.approx(1.0)


def test_joules_that_nobody_read_make_watts_unknown_and_never_low(sqlite_journal: Journal) -> None:
    """One GPU of four is dark: the speed is told, the watts have neither average nor ratio."""
    life = begun(sqlite_journal)
    life.unread = ("g3",)
    life.live(8)
    told = lines(life)["A"]
    assert told.speed_ratio == pytest.approx(1.0)
    assert (told.power_w, told.power_ratio, told.power_alarm) == (None, None, False)


def test_a_gap_in_telemetry_is_left_out(sqlite_journal: Journal) -> None:
    """Nothing is booked for three slots; what was measured around them counts."""
    life = begun(sqlite_journal)
    life.live(4)
    life.unread = GPUS
    life.live(3)
    life.unread = ()
    life.live(4)
    assert lines(life)["A"].power_ratio == pytest.approx(1.0)


def test_watts_that_were_assumed_are_no_measurement(sqlite_journal: Journal) -> None:
    """`power = static` says what the settings say, so it agrees with anything."""
    life = begun(sqlite_journal)
    life.quality = "estimated"
    life.live(6)
    assert lines(life)["A"].power_ratio is None


def test_other_watts_than_the_meters_are_not_compared(sqlite_journal: Journal) -> None:
    """A catalogue of whole facilities, and meters of GPUs."""
    facility = replace(PLAN.catalogue or CATALOGUE, power_scope=PowerScope.FACILITY)
    life = begun(sqlite_journal, plan=replace(PLAN, catalogue=facility))
    life.live(6)
    told = lines(life)["A"]
    assert (told.catalogue_power_w, told.power_ratio) == (None, None)
    assert told.power_w == pytest.approx(1600.0)


def test_a_clock_that_was_set_back_adds_no_time(sqlite_journal: Journal) -> None:
    """Reports and joules of two slots come again under dates that had passed."""
    life = begun(sqlite_journal)
    life.live(6)
    life.slots -= 2
    for row in (4, 5):
        book(sqlite_journal, energy(row, 12_000_000))
    life.live(5)
    counters(sqlite_journal, slot(life.slots))
    assert lines(life)["A"].speed_ratio == pytest.approx(1.0)
    assert lines(life)["A"].power_ratio == pytest.approx(1.0)


def steady(rates: Sequence[float], watts: float | None = 1000.0) -> list[SteadySlot]:
    """Slots of 100 s that follow each other."""
    return [
        SteadySlot(
            start=slot(0) + timedelta(seconds=100 * number),
            end=slot(0) + timedelta(seconds=100 * number + 100),
            tokens=round(rate * 100),
            tokens_s=100.0,
            power_w=watts,
        )
        for number, rate in enumerate(rates)
    ]


def compared(slots: Sequence[SteadySlot], *, step_s: float = 1.0) -> PointRatio | None:
    """Against 1000 tokens/s and 1000 W, with a limit of 10 %."""
    return against_catalogue(slots, tokens_per_s=1000.0, power_w=1000.0, step_s=step_s, limit=0.1)


def test_an_alarm_does_not_flap() -> None:
    """It begins beyond the limit, stays between half of it and it, and ends within half of it."""
    rates = [1000.0] * BLOCKS + [870.0] * BLOCKS + [930.0] * BLOCKS + [980.0] * BLOCKS
    alarms = [
        bool((found := compared(steady(rates[:count]))) and found.speed_alarm)
        for count in range(FEWEST_BLOCKS, len(rates) + 1)
    ]
    changes = [number for number, (was, now) in enumerate(pairwise(alarms)) if was != now]
    assert len(changes) == 2
    assert alarms[3 * BLOCKS - FEWEST_BLOCKS]


def test_steps_longer_than_slots_are_no_stalls() -> None:
    """A step of five slots is told in the fifth of them: joined, they have the pace."""
    rates = ([0.0] * 4 + [5000.0]) * 80
    found, by_slot = compared(steady(rates), step_s=500.0), compared(steady(rates))
    assert found is not None
    assert found.speed == pytest.approx(1.0)
    assert not found.speed_alarm
    assert by_slot is not None
    assert by_slot.speed == pytest.approx(5.0), "sabotaged twin: slots without a step are stalls"


@pytest.mark.parametrize("rates", [[], [1000.0] * 2, [0.0] * 30, [100.0, 1000.0, 400.0] * 6])
def test_where_there_is_no_usual_pace_there_is_no_ratio(rates: list[float]) -> None:
    """Nothing, too little, only a stall, or another pace in every block."""
    assert compared(steady(rates)) is None


@given(st.lists(st.integers(0, 3000), max_size=40), st.floats(0.01, 300.0))
def test_a_ratio_is_within_what_was_measured(rates: list[int], step_s: float) -> None:
    """Whatever the history: no ratio is below the slowest block that trained, nor above any."""
    found = compared(steady(rates, watts=None), step_s=step_s)
    if found is not None:
        assert 0 < found.speed <= max(rates) / 1000 + 1e-6
        assert (found.power, found.power_alarm) == (None, False)
