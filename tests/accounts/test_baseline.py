"""The baseline's arithmetic: conserved, clipped, rounded half up, and equal to brute force."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accounts.build import after, seconds
from wattmesh.policies.baseline import (
    Pace,
    Slot,
    active,
    advance,
    grams_at,
    price_ug,
    trusted_ratio,
)

PACE = Pace(tokens_per_s=1000.0, power_w=1600.0)
lengths = st.lists(st.integers(1, 5_000_000), min_size=1, max_size=60)
slots = st.lists(
    st.builds(Slot, tokens=st.integers(1, 50), carbon_ug=st.integers(0, 1000)), max_size=6
)
GramsAt = Callable[[Sequence[Slot], int], tuple[int | None, bool]]


@given(lengths, st.sampled_from([0.4, 3.0, 999.9, 1e6]), st.floats(0.5, 1.5), st.floats(0.5, 1.5))
def test_however_often_it_is_reckoned_the_baseline_trains_and_draws_the_same(
    pieces: list[int], rate: float, speed: float, drift: float
) -> None:
    """Time that made no whole token is left for the next call: tokens differ by one at most."""
    pace = Pace(tokens_per_s=rate, power_w=300.0)
    end_us, at_us, tokens, energy_mj = 0, 0, 0, 0
    for piece in pieces:
        end_us += piece
        length = timedelta(microseconds=end_us - at_us)
        done = advance(length, pace, 10**15, speed=speed, drift=drift)
        at_us += done.used // timedelta(microseconds=1)
        tokens, energy_mj = tokens + done.tokens, energy_mj + done.energy_mj
    whole = advance(timedelta(microseconds=end_us), pace, 10**15, speed=speed, drift=drift)
    off_us = len(pieces)
    assert abs(tokens - whole.tokens) <= 1 + off_us * rate * speed / 1e6
    token_mj = 300.0 * drift / (rate * speed) * 1000
    assert abs(energy_mj - whole.energy_mj) <= token_mj + len(pieces) * (1 + 0.5 * drift)


def test_a_slow_baseline_that_is_reckoned_often_still_gets_on() -> None:
    """A rate of 0.4 tokens a second, four times a second: rounding each call would give none."""
    at, tokens = 0.0, 0
    for call in range(400):
        done = advance(
            timedelta(seconds=(call + 1) / 4 - at), Pace(tokens_per_s=0.4, power_w=1.0), 10**9
        )
        at, tokens = at + seconds(done.used), tokens + done.tokens
    assert tokens == 40


def test_the_baseline_stops_when_its_work_is_done() -> None:
    """The last stretch counts only until the last token, whatever time there was."""
    done = advance(timedelta(hours=1), PACE, 2500)
    assert (done.tokens, done.energy_mj, seconds(done.used)) == (2500, 4_000_000, 2.5)
    assert advance(timedelta(hours=1), PACE, 0).energy_mj == 0
    assert advance(timedelta(hours=-1), PACE, 10) == advance(timedelta(), PACE, 10)


moments = st.integers(0, 12)


@given(moments, moments, st.none() | st.tuples(moments, moments))
def test_the_clock_runs_whenever_there_is_no_outage(
    start: int, end: int, outage: tuple[int, int] | None
) -> None:
    """Second by second; an outage that ends before it begins took no time."""
    parts = active(after(start), after(end), outage and (after(outage[0]), after(outage[1])))
    gone = range(*outage) if outage else range(0)
    expected = [at for at in range(start, end) if at not in gone]
    assert [at for at in range(13) for a, b in parts if a <= after(at) < b] == expected


def test_a_measured_ratio_is_believed_within_bounds() -> None:
    """Unknown keeps the one before; half and one and a half are the limits."""
    assert trusted_ratio(None, 100.0, 0.9) == 0.9
    assert trusted_ratio(90.0, None, 0.8) == 0.8
    assert trusted_ratio(0.0, 100.0, 0.7) == 0.7
    assert trusted_ratio(90.0, 100.0, 1.0) == 0.9
    assert trusted_ratio(1.0, 100.0, 1.0) == 0.5
    assert trusted_ratio(900.0, 100.0, 1.0) == 1.5


@given(st.integers(0, 10**13), st.integers(1, 2_000_000))
def test_micrograms_are_rounded_half_up(energy_mj: int, g_milli: int) -> None:
    """Against exact fractions."""
    exact = Fraction(energy_mj * g_milli, 3_600_000)
    assert price_ug(energy_mj, g_milli) == (exact + Fraction(1, 2)).__floor__()
    assert price_ug(1_800_000, 1) == 1
    assert price_ug(1_799_999, 1) == 0


def brute_force(slots: Sequence[Slot], tokens: int) -> tuple[int | None, bool]:
    """Hand out token after token; the slot that is left unfinished counts by its share."""
    carbon_ug, left = 0, tokens
    for slot in slots:
        taken = sum(1 for _ in range(slot.tokens) if left - _ > 0)
        if taken and slot.carbon_ug is None:
            return None, False
        carbon_ug += int(Fraction((slot.carbon_ug or 0) * taken, slot.tokens))
        left -= taken
    return carbon_ug, left <= 0


def differs(grams: GramsAt, slots: Sequence[Slot], tokens: int) -> bool:
    """Whether an implementation disagrees with brute force."""
    return grams(slots, tokens) != brute_force(slots, tokens)


@given(slots, st.integers(0, 400))
def test_grams_at_a_number_of_tokens_equal_brute_force(slots: list[Slot], tokens: int) -> None:
    """Whole slots whole, the last one by its share rounded down, and whether it got there."""
    assert not differs(grams_at, slots, tokens)


def rounds_up(slots: Sequence[Slot], tokens: int) -> tuple[int | None, bool]:
    """Sabotaged: the last slot's share is rounded up."""
    found, reached = grams_at(slots, tokens)
    return (found or 0) + 1, reached


def counts_the_last_whole(slots: Sequence[Slot], tokens: int) -> tuple[int | None, bool]:
    """Sabotaged: the last slot counts whole."""
    passed = 0
    for number, slot in enumerate(slots):
        if passed >= tokens:
            return sum(each.carbon_ug or 0 for each in slots[:number]), True
        passed += slot.tokens
    return sum(each.carbon_ug or 0 for each in slots), passed >= tokens


@pytest.mark.parametrize("sabotaged", [rounds_up, counts_the_last_whole])
def test_brute_force_catches_a_wrong_sum(sabotaged: GramsAt) -> None:
    """The oracle is worth something."""
    example = [Slot(tokens=10, carbon_ug=7), Slot(tokens=10, carbon_ug=9)]
    assert any(differs(sabotaged, example, tokens) for tokens in range(25))


def test_a_slot_without_grams_makes_the_sum_unknown_only_when_it_is_needed() -> None:
    """Unknown is never zero, and what comes after does not matter."""
    priced, not_yet = Slot(tokens=10, carbon_ug=7), Slot(tokens=10, carbon_ug=None)
    assert grams_at([priced, not_yet], 10) == (7, True)
    assert grams_at([priced, not_yet], 11) == (None, False)
