"""Which intensities are believed."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.integrations.carbon.reading.believed import (
    HIGHEST_G_PER_KWH,
    PlausibilityFilter,
    fault,
)

T0 = datetime(2026, 11, 1, tzinfo=UTC)


def judged(values: Sequence[float | None], step: timedelta = timedelta(minutes=30)) -> list[bool]:
    """Say of each value whether it was believed."""
    judge = PlausibilityFilter()
    return [not judge.fault(T0 + i * step, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    "value", [None, 0, 0.0, -0.0, -1, 2000.1, 1e9, float("nan"), float("inf"), float("-inf")]
)
def test_what_no_grid_has_is_refused_with_a_sentence(value: float | None) -> None:
    """Nothing, zero, negative, infinite and absurd values each have a reason."""
    assert fault(value)


@given(st.floats(min_value=0, max_value=HIGHEST_G_PER_KWH, exclude_min=True))
def test_everything_else_is_possible(value: float) -> None:
    """Any positive value up to the limit may be true when nothing is known before it."""
    assert not fault(value)
    assert not PlausibilityFilter().fault(T0, value)


def test_one_fall_below_a_quarter_of_the_lowest_is_refused() -> None:
    """A single value far below all of the week before is not believed; the next normal one is."""
    assert judged([200, 180, 190, 160, 39, 170]) == [True] * 4 + [False, True]
    assert judged([200, 180, 190, 160, 41, 170]) == [True] * 6


def test_a_new_level_is_believed_at_its_third_interval() -> None:
    """A grid that did change is believed after three intervals, and stays believed."""
    assert judged([200] * 6 + [30] * 5) == [True] * 6 + [False, False, True, True, True]


def test_two_false_values_apart_are_both_refused() -> None:
    """Falls that are not in a row never add up to belief."""
    assert judged([200] * 6 + [20, 200, 20, 200, 20, 200])[6::2] == [False] * 3


def test_a_week_later_the_old_level_says_nothing() -> None:
    """The profile is of the last seven days only."""
    judge = PlausibilityFilter()
    for i in range(6):
        assert not judge.fault(T0 + i * timedelta(hours=1), 200)
    assert judge.fault(T0 + timedelta(days=6), 20)
    assert not judge.fault(T0 + timedelta(days=8), 20)


def by_search(values: Sequence[float], step: timedelta) -> list[bool]:
    """Say the same by searching all values before for the lowest of the week."""
    believed: list[tuple[datetime, float]] = []
    falls, told = 0, []
    for i, value in enumerate(values):
        start = T0 + i * step
        week = [each for at, each in believed if at >= start - timedelta(days=7)]
        fell = len(week) >= 4 and value < 0.25 * min(week)
        falls = falls + 1 if fell else 0
        told.append(not fell or falls >= 3)
        if fell and falls >= 3:
            believed.clear()
        if told[-1]:
            believed.append((start, value))
    return told


@given(
    st.lists(st.sampled_from([4.0, 9.0, 17.0, 30.0, 70.0, 150.0, 400.0]), max_size=40)
    | st.lists(st.sampled_from([90.0, 400.0, 400.0, 400.0, 400.0]), min_size=20, max_size=60),
    st.sampled_from([timedelta(hours=1), timedelta(hours=30)]),
)
def test_the_lowest_of_the_week_is_what_a_search_finds(
    values: list[float], step: timedelta
) -> None:
    """However values rise, fall and grow old, what is believed is what a plain search says."""
    assert judged(values, step) == by_search(values, step)


def test_false_zeros_do_not_enter_the_profile() -> None:
    """A refused value changes nothing about what is believed next."""
    assert judged([200, 0, 210, 0, 190, 0, 180, 0, 30, 175])[8:] == [False, True]


def test_a_marginal_rate_may_be_nothing_and_may_fall() -> None:
    """Under curtailment one more kWh emits nothing: 0 and deep falls are believed there."""
    judge = PlausibilityFilter("marginal")
    for i, value in enumerate([430, 430, 430, 430, 35, 0, 430]):
        assert not judge.fault(T0 + i * timedelta(minutes=5), value)
    for bad in (None, -1.0, 2000.1, float("nan")):
        assert judge.fault(T0, bad)
    assert fault(0)
    assert not fault(0, kind="marginal")
