"""The anchored profile follows its published formula, and never looks at what it was not given."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.policies.forecasting.worlds import Zone, values
from wattmesh.policies.forecast.anchored import anchored_profile

NAN = math.nan


def published(told: Sequence[float], ahead: int) -> float:
    """The formula as it is written down, hour by hour, for a history without gaps."""
    now = len(told)
    week = [told[now - 24 * day + (ahead - 1) % 24] for day in range(1, 8)]
    before = [told[now - 1 - 24 * day] for day in range(1, 8)]
    weight = math.exp(-ahead / 12)
    level = sum(told[-24:]) / 24 - sum(told[-168:]) / 168
    anchor = told[-1] - sum(before) / 7
    return sum(week) / 7 + weight * anchor + 0.6 * (1 - weight) * level


def test_it_is_the_published_formula() -> None:
    """Every lead up to three days equals the formula computed by hand."""
    told = values(Zone(), 8)
    forecast = anchored_profile(told, steps=72)
    assert forecast == pytest.approx([published(told, ahead) for ahead in range(1, 73)])


def test_half_hours_are_hours_cut_in_two() -> None:
    """The same series in half hours gives the same forecast at the end of each hour."""
    told = values(Zone(), 9)
    halves = [value for value in told for _ in range(2)]
    by_hour = anchored_profile(told, steps=24)
    by_half = anchored_profile(halves, steps=48, per_day=48)
    assert by_hour is not None
    assert by_half is not None
    assert by_half[1::2] == pytest.approx(by_hour)


def test_less_than_a_day_says_nothing() -> None:
    """Without a whole day, or with nothing known in it, there is no forecast, and no zero."""
    assert anchored_profile([300.0] * 23, steps=3) is None
    assert anchored_profile([NAN] * 200, steps=3) is None


@pytest.mark.parametrize("days", [1, 2, 4, 7])
def test_fewer_days_take_the_place_of_the_week(days: int) -> None:
    """A short history of one daily shape is continued by that shape."""
    told = values(Zone(weather=0.0, weekend=0.0), days)
    forecast = anchored_profile(told, steps=24)
    assert forecast == pytest.approx(told[-24:])


@given(st.sets(st.integers(0, 8 * 24 - 1), max_size=150))
def test_gaps_leave_a_steady_grid_steady(gaps: set[int]) -> None:
    """Unknown hours are left out: a constant series stays that constant, whatever is missing."""
    told = [NAN if at in gaps else 250.0 for at in range(8 * 24)]
    forecast = anchored_profile(told, steps=30)
    if forecast is not None:
        assert forecast == pytest.approx([250.0] * 30)


def test_an_older_anchor_counts_less() -> None:
    """When the newest hour is missing the one before it anchors, faded by its age."""
    told = [200.0] * (8 * 24)
    told[-2] = 320.0
    told[-1] = NAN
    forecast = anchored_profile(told, steps=1)
    assert forecast is not None
    mean_hour = 200.0
    drift = 0.6 * ((200 * 22 + 320) / 23 - (200 * 166 + 320) / 167)
    weight = math.exp(-1 / 12)
    expected = mean_hour + weight * 120 * math.exp(-1 / 12) + (1 - weight) * drift
    assert forecast[0] == pytest.approx(expected)


def test_negative_steps_are_refused() -> None:
    """A caller's mistake is told, not guessed around."""
    with pytest.raises(ValueError, match="steps -1"):
        anchored_profile([1.0], steps=-1)
