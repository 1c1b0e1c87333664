"""The intensity to the deadline: cut, extended by a named rule, never with a gap."""

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import HOUR, NOW, slots
from wattmesh.policies.horizon import MOST_EXTENSION, between, mean_g_per_kwh, to_end

DAY_OF_HOURS = [float(100 + hour) for hour in range(24)]


def test_a_forecast_that_reaches_the_end_is_cut_there() -> None:
    """Nothing is assumed, and the first and last slots are parts."""
    start = NOW + timedelta(minutes=15)
    seen = to_end(slots([10.0, 20.0, 30.0]), start, NOW + timedelta(minutes=90))
    assert [(s.end - s.start).total_seconds() for s in seen.slots] == [2700.0, 1800.0]
    assert seen.extended == ""


def test_beyond_a_day_of_forecast_hours_repeat() -> None:
    """The same hour of the last day stands in for what nobody forecast."""
    seen = to_end(slots(DAY_OF_HOURS), NOW, NOW + timedelta(hours=50))
    assert [s.g_per_kwh for s in seen.slots] == [*DAY_OF_HOURS, *DAY_OF_HOURS, 100.0, 101.0]
    assert seen.extended == "the values of its last day"
    assert seen.reach == NOW + timedelta(hours=24)


def test_beyond_a_short_forecast_its_mean_stands() -> None:
    """Less than a day says nothing of other hours."""
    seen = to_end(slots([100.0, 200.0]), NOW, NOW + timedelta(hours=5))
    assert [s.g_per_kwh for s in seen.slots] == [100.0, 200.0, 150.0]
    assert seen.extended == "its mean"


def test_a_deadline_months_away_stays_cheap() -> None:
    """The extension gets coarser instead of longer."""
    seen = to_end(slots(DAY_OF_HOURS), NOW, NOW + timedelta(days=400))
    assert len(seen.slots) <= 24 + MOST_EXTENSION + 1
    assert mean_g_per_kwh(seen.slots) == pytest.approx(mean_g_per_kwh(seen.slots[:24]), rel=0.01)


def test_without_a_value_for_now_there_is_no_horizon() -> None:
    """A forecast that begins later, or an end that has passed, gives nothing to plan on."""
    assert to_end(slots([1.0], start=NOW + timedelta(1)), NOW, NOW + timedelta(2)).slots == ()
    assert to_end(slots([1.0]), NOW, NOW).slots == ()
    assert to_end((), NOW, NOW + timedelta(1)).slots == ()


@given(st.integers(1, 60), st.floats(1.0, 5e6), st.floats(0.0, 0.99), st.floats(0.1, HOUR * 3))
def test_slots_always_chain_from_now_to_the_end(
    count: int, ahead_s: float, into: float, length_s: float
) -> None:
    """No gap, no overlap, exact ends, at any scale of time."""
    grid = slots([float(n + 1) for n in range(count)], seconds=length_s)
    now = NOW + into * (grid[0].end - grid[0].start)
    end = now + timedelta(seconds=ahead_s)
    seen = to_end(grid, now, end).slots
    assert seen[0].start == now
    assert seen[-1].end == end
    assert all(one.end == two.start for one, two in pairwise(seen))
    assert between(seen, now, now + (end - now) / 2)[-1].end == now + (end - now) / 2
