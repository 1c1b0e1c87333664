"""What to measure next: worth what a plan with the point saves, and never below nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog  # type: ignore[import-untyped]

from wattmesh.policies.layout_search.next_profile import (
    HOUR_S,
    ProfileCandidate,
    least_grams,
    what_to_profile_next,
)
from wattmesh.telemetry.readings import J_PER_KWH

HOURS = (100.0, 300.0, 200.0, 50.0)


def point(
    name: str, tokens_per_s: float, j_per_token: float, spread: float = 0.1
) -> ProfileCandidate:
    """One point."""
    return ProfileCandidate(
        id=name, tokens_per_s=tokens_per_s, j_per_token=j_per_token, spread=spread
    )


def by_program(points: list[ProfileCandidate], hours: list[float], tokens: float) -> float | None:
    """The same by a linear program: seconds of each point in each hour."""
    grams = [
        hour * each.tokens_per_s * each.j_per_token / J_PER_KWH for hour in hours for each in points
    ]
    rates = [-each.tokens_per_s for _ in hours for each in points]
    within = [
        [1.0 if at == when else 0.0 for at in range(len(hours)) for _ in points]
        for when in range(len(hours))
    ]
    found = linprog(grams, A_ub=[rates, *within], b_ub=[-tokens, *[HOUR_S] * len(hours)])
    return float(found.fun) if found.status == 0 else None


speeds = st.floats(10, 1000)
joules = st.floats(0.1, 5)


@given(
    st.lists(st.tuples(speeds, joules), min_size=1, max_size=4),
    st.lists(st.floats(10, 900), min_size=1, max_size=5),
    st.floats(0.05, 1.2),
)
def test_the_least_grams_are_those_of_a_linear_program(
    drawn: list[tuple[float, float]], hours: list[float], part: float
) -> None:
    """For any points and hours; also that there is no plan."""
    points = [point(str(at), *each) for at, each in enumerate(drawn)]
    tokens = part * max(each.tokens_per_s for each in points) * HOUR_S * len(hours)
    mine, other = least_grams(points, hours, tokens), by_program(points, hours, tokens)
    if abs(part - 1) > 1e-6:
        assert (mine is None) == (other is None)
    if mine is not None and other is not None:
        assert mine == pytest.approx(other, rel=1e-5, abs=1e-9)


def test_the_point_that_saves_most_comes_first_and_a_useless_one_last() -> None:
    """Against one that is measured; a sentence says the grams; a measured one is not asked for."""
    points = [point("fast", 100, 2.0, 0.0), point("mid", 80, 1.5), point("worse", 70, 2.6, 0.01)]
    tokens = 100 * HOUR_S * 2.5
    found = what_to_profile_next(points, hours_g_per_kwh=HOURS, tokens=tokens, measured={"fast"})
    assert [each.id for each in found] == ["mid", "worse"]
    best, useless = found
    assert best.if_true_g is not None
    assert best.if_true_g > 0
    assert "mid would save" in best.sentence
    assert useless.expected_g == pytest.approx(0.0, abs=1e-3)
    # The twin: the same point, had it been measured as bad as the other, is worth nothing.
    worse = [points[0], replace(points[1], j_per_token=2.6, spread=0.01), points[2]]
    again = what_to_profile_next(worse, hours_g_per_kwh=HOURS, tokens=tokens, measured={"fast"})
    assert all((each.expected_g or 0.0) < 1e-3 for each in again)


def test_what_is_uncertain_is_worth_more_than_what_is_known_to_be_equal() -> None:
    """A point predicted to be like the measured one may be better; its bad half is not run at."""
    points = [point("known", 100, 2.0, 0.0), point("sure", 100, 2.0, 0.0), point("open", 100, 2.0)]
    found = what_to_profile_next(
        points, hours_g_per_kwh=HOURS, tokens=100 * HOUR_S * 2, measured={"known"}
    )
    assert [each.id for each in found] == ["open", "sure"]
    assert found[0].if_true_g == pytest.approx(0.0, abs=1e-9)
    assert (found[0].expected_g or 0.0) > 0
    assert found[1].expected_g == pytest.approx(0.0, abs=1e-9)


def test_without_a_point_that_makes_the_deadline_the_fastest_comes_first() -> None:
    """The others are compared with it; a deadline that none makes says so."""
    points = [point("slow", 50, 1.0), point("fast", 100, 2.0)]
    found = what_to_profile_next(points, hours_g_per_kwh=HOURS, tokens=90 * HOUR_S * 4)
    assert [each.id for each in found] == ["fast", "slow"]
    assert found[0].expected_g is None
    assert (found[1].expected_g or 0.0) > 0
    none = what_to_profile_next(points, hours_g_per_kwh=HOURS, tokens=200 * HOUR_S * 4)
    assert "does not make the deadline either" in none[0].sentence
    assert none[1].if_true_g is None
    assert what_to_profile_next([], hours_g_per_kwh=HOURS, tokens=1.0) == ()
