"""Slots end at the site's midnights: no row lies in two days, months or years of the site."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tests.telemetry.sampler.test_sampler import Bench
from tests.telemetry.world import T0
from wattmesh.controller.accounting.budgets.periods import period_of
from wattmesh.controller.agent.knowledge import read_grid, write_grid
from wattmesh.controller.api.handlers.agents import laid
from wattmesh.telemetry.energy.ledger import EnergyRow, SlotGrid

ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)
HOURS = SlotGrid(origin=ORIGIN, interval_s=3600.0, timezone="Asia/Kolkata")
WITHOUT_ZONE = SlotGrid(origin=ORIGIN, interval_s=3600.0)
BORDER = datetime(2026, 10, 31, 18, 30, tzinfo=UTC)
"""November begins in Kolkata, in the middle of an hour of UTC."""

ZONES = ("UTC", "Asia/Kolkata", "Asia/Kathmandu", "Europe/London", "Australia/Lord_Howe")
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))
SECOND = timedelta(seconds=1)


def months_of(grid: SlotGrid, at: datetime, timezone: str) -> set[str]:
    """Name the months of the site that the slot of `at` lies in."""
    start, end = grid.slot(at)
    ends = (start, end - timedelta(microseconds=1))
    return {period_of(each, "month", timezone).name for each in ends}


def test_a_slot_with_midnight_in_it_is_cut() -> None:
    """An hourly signal, half past six in the evening: October has one half, November the other."""
    assert HOURS.slot(BORDER - SECOND) == (BORDER - timedelta(minutes=30), BORDER)
    assert HOURS.slot(BORDER) == (BORDER, BORDER + timedelta(minutes=30))


def test_a_grid_without_the_zone_straddles() -> None:
    """Sabotaged: it is the zone that keeps the months apart."""
    assert months_of(HOURS, BORDER, "Asia/Kolkata") == {"2026-11"}
    assert months_of(WITHOUT_ZONE, BORDER, "Asia/Kolkata") == {"2026-10", "2026-11"}


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from((300.0, 1800.0, 3600.0, 86_400.0)))
def test_no_slot_lies_in_two_days(at: datetime, timezone: str, interval_s: float) -> None:
    """In any zone, through every change of clocks; slots touch, and lie within one interval."""
    grid = SlotGrid(origin=ORIGIN, interval_s=interval_s, timezone=timezone)
    start, end = grid.slot(at)
    assert start <= at < end
    last = end - timedelta(microseconds=1)
    assert period_of(start, "day", timezone) == period_of(last, "day", timezone)
    assert grid.slot(end)[0] == end
    assert grid.slot(last) == (start, end)
    plain = SlotGrid(origin=ORIGIN, interval_s=interval_s).slot(at)
    assert timezone != "UTC" or plain == (start, end)


def test_an_agent_is_told_the_zone() -> None:
    """What the controller writes is what the agent reads; one of before told none."""
    told = write_grid(HOURS)
    assert read_grid(told) == HOURS
    assert read_grid({key: told[key] for key in ("origin", "interval_s")}) == WITHOUT_ZONE


def test_a_node_that_does_not_know_the_zone_reads_on() -> None:
    """Its slots are cut at the signal's borders only."""
    assert read_grid(write_grid(HOURS) | {"timezone": "Mars/Olympus"}) == WITHOUT_ZONE


def test_the_row_of_an_old_agent_is_laid_over_both_days() -> None:
    """By time, to the millijoule: what it knows no better is split evenly, and nothing is lost."""
    start = BORDER - timedelta(minutes=30)
    row = EnergyRow(
        gpu_uuid="g0",
        run="r",
        incarnation="i",
        slot_start=start,
        slot_end=start + timedelta(hours=1),
        energy_mj=1_000_001,
        unobserved_ms=7,
        upper_mj=9,
        source="nvml",
        quality="measured",
        line="run",
    )
    parts = laid([row], HOURS, row.slot_end)
    assert [(each.slot_start, each.slot_end) for each in parts] == [
        (start, BORDER),
        (BORDER, row.slot_end),
    ]
    assert [each.energy_mj for each in parts] == [500_000, 500_001]
    assert sum(each.unobserved_ms for each in parts) == 7
    assert sum(each.upper_mj for each in parts) == 9


def test_a_meter_cuts_what_it_read_over_the_months_border() -> None:
    """A second over 18:30 UTC: October and November have half each, and nothing is lost."""
    grid = SlotGrid(origin=T0, interval_s=3600.0, timezone="Asia/Kolkata")
    border = T0 + timedelta(hours=6.5)
    bench = Bench(grid=grid)
    bench.step(6.5 * 3600 - 0.5)
    start_mj = bench.world.gpu.counter_mj
    bench.world.gpu.power_mw = 333_333
    bench.step(1.0)
    bench.sampler.flush()
    rows = sorted(bench.book.rows.values(), key=lambda each: each.slot_start)[-2:]
    assert [(row.slot_start, row.slot_end) for row in rows] == [
        (border - timedelta(minutes=30), border),
        (border, border + timedelta(minutes=30)),
    ]
    assert [row.energy_mj for row in rows] == [166_666, 166_667]
    assert sum(row.energy_mj or 0 for row in rows) == bench.world.gpu.counter_mj - start_mj
