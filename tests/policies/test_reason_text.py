"""Numbers and times as a person reads them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import NOW, B
from tests.builders.points import point
from wattmesh import quantities
from wattmesh.policies import reason_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 g"),
        (4e-7, "0 g"),
        (0.0000042, "4.2 µg"),
        (0.0411, "41.1 mg"),
        (0.9999, "1 g"),
        (4.8, "4.8 g"),
        (1100.0, "1.1 kg"),
        (999_900.0, "1 t"),
        (3_410_000.0, "3.41 t"),
        (-0.5, "-500 mg"),
        (12_345_678_900.0, "12300 t"),
    ],
)
def test_grams_are_written_at_a_human_scale(value: float, text: str) -> None:
    """Micrograms to tonnes, three figures, no exponent."""
    assert quantities.grams(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (52.0, "52 s"),
        (330.0, "5.5 min"),
        (18_720.0, "5.2 h"),
        (267_840.0, "3.1 d"),
        (86_400.0 * 400, "400 d"),
        (-90.0, "-1.5 min"),
    ],
)
def test_durations_are_written_at_a_human_scale(value: float, text: str) -> None:
    """Milliseconds to days, two figures."""
    assert quantities.duration(value) == text


def test_times_carry_what_a_person_near_now_needs() -> None:
    """Seconds when it is near, the day when it is not, and always UTC."""
    assert reason_text.moment(NOW + timedelta(seconds=20), NOW) == "14:00:20 UTC"
    assert reason_text.moment(NOW + timedelta(hours=2.5), NOW) == "16:30 UTC"
    assert reason_text.moment(NOW + timedelta(hours=12), NOW) == "Sat 02:00 UTC"
    assert reason_text.moment(NOW + timedelta(days=11), NOW) == "2026-12-01 14:00 UTC"


def test_points_are_named_with_their_layout() -> None:
    """A letter alone means nothing at 3 a.m."""
    assert reason_text.point(B) == "B (dp2 on 2 GPUs)"
    assert (
        reason_text.point(point("C", 1, 1.0, 1.0, clock_mhz=1305))
        == "C (1 rank @1305 MHz on 1 GPU)"
    )


def test_intensities_carry_their_unit() -> None:
    """Whole grams, and figures where there are few."""
    assert quantities.intensity(173.6) == "174 g/kWh"
    assert quantities.intensity(9.31) == "9.3 g/kWh"


def test_another_s_sentence_fits_inside_ours() -> None:
    """One line, no period at its end."""
    assert reason_text.clause(" two\n switches failed. ") == "two switches failed"


@given(st.floats(-1e15, 1e15))
def test_no_number_is_written_with_an_exponent(value: float) -> None:
    """Whatever the size, a person can read it."""
    for text in (quantities.grams(value), quantities.duration(value), quantities.count(value)):
        number = text.split(" ")[0]
        assert "e" not in number
        float(number)
