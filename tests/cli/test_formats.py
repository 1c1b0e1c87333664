"""Numbers, times and grams as people read them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh import quantities
from wattmesh.controller.cli import formats


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.038, "38 ms"),
        (0.9999, "1 s"),
        (4, "4 s"),
        (1.94, "1.9 s"),
        (360, "6 min"),
        (5.2 * 3600, "5.2 h"),
        (3.1 * 86_400, "3.1 d"),
        (-90, "-1.5 min"),
    ],
)
def test_durations_use_their_largest_unit(seconds: float | None, shown: str) -> None:
    """A duration is written in the largest unit of which it has at least one."""
    assert quantities.duration(seconds) == shown


@pytest.mark.parametrize(
    ("grams", "shown"),
    [
        (None, "-"),
        (0, "0 g"),
        (0.041, "41 mg"),
        (4.83, "4.83 g"),
        (410, "410 g"),
        (3.41e6, "3.41 t"),
        (-20_000, "-20 kg"),
        (1e-5, "10 µg"),
    ],
)
def test_grams_use_their_largest_unit(grams: float | None, shown: str) -> None:
    """A mass is written in the largest unit of which it has at least one; unknown is no zero."""
    assert formats.grams(grams) == shown


def test_unknown_is_never_zero() -> None:
    """Every formatter writes what is not known as a dash."""
    unknown = (
        formats.watts(None),
        formats.rate(None),
        formats.percent(None),
        formats.intensity(None),
    )
    assert set(unknown) == {"-"}


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_figures_have_no_exponent_and_stay_close(value: float) -> None:
    """Three significant figures lie within half a per cent of the value, without an exponent."""
    text = quantities.figures(value)
    assert "e" not in text
    assert abs(float(text) - value) <= 0.006 * value + 1e-6


def test_a_sparkline_shows_the_shape() -> None:
    """The lowest value is the lowest bar, the highest the highest, and many values are averaged."""
    assert formats.sparkline([1, 5, 3, 2, 8]) == "▁▅▃▂█"
    assert formats.sparkline([3, 3]) == "▃▃"
    assert formats.sparkline([]) == ""
    assert len(formats.sparkline(range(1000))) == 24


def test_a_bar_never_overflows() -> None:
    """A share outside 0..1 still fills between nothing and all of the bar."""
    assert formats.bar(-1, 4) == "░░░░"
    assert formats.bar(0.5, 4) == "██░░"
    assert formats.bar(2, 4) == "████"


def test_a_time_is_shown_in_utc() -> None:
    """Times of the API are shown in UTC whatever their offset."""
    assert formats.clock("2026-11-20T15:02:10+01:00") == "14:02"
    assert formats.clock("2026-11-20T14:02:10Z", seconds=True) == "14:02:10"
    assert formats.moment("2026-11-20T14:02:10Z") == datetime(2026, 11, 20, 14, 2, 10, tzinfo=UTC)
