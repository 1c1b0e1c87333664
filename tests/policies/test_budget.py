"""Budgets as curves: what may be spent by when, how fast it burns, where it ends."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.controller.accounting.budgets.periods import period_of
from wattmesh.policies.accounting.budget import (
    BURN_RULES,
    Alert,
    BudgetCourse,
    Curve,
    HourProfile,
    Spending,
    budget_course,
    burn,
    hour_profile,
    hours_of,
    spent_between,
    spread,
)
from wattmesh.policies.decision import Observation
from wattmesh.telemetry.slots import midnight

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
START = datetime(2026, 11, 1, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
LIMIT = 9_000_000_000_000
"""Nine tonnes, in micrograms."""

CURVED = HourProfile(
    values=tuple(100.0 + 17 * (hour % 24) + (50 if hour < 24 else 0) for hour in range(48)),
    timezone="Europe/London",
)
CURVE = spread(START, END, LIMIT, intensity=CURVED)
EARLIER = spread(START - 30 * DAY, START, LIMIT, intensity=CURVED)


def followed(
    curves: Sequence[Curve], start: datetime, end: datetime, factor: float = 1.0
) -> list[Spending]:
    """Spend `factor` times what the plans have, half hour by half hour."""
    spent = []
    at = start
    while at < end:
        until = min(at + HOUR / 2, end)
        planned = sum(each.by(until) - each.by(at) for each in curves)
        spent.append(Spending(start=at, end=until, carbon_ug=round(planned * factor)))
        at = until
    return spent


def look(days: float, factor: float = 1.0, **changes: float) -> BudgetCourse:
    """Look at a budget `days` into the month after spending `factor` times the plan throughout."""
    now = START + days * DAY
    spent = followed((EARLIER, CURVE), now - 14 * DAY if days < 14 else START, now, factor)
    return budget_course(CURVE, (EARLIER,), spent, now, **changes)


@given(st.integers(0, 30 * 48 - 1))
@settings(max_examples=40)
def test_who_follows_the_plan_burns_one_in_every_window(half_hours: int) -> None:
    """At any time of the month, through nights and weekends; and ends at the limit."""
    now = START + half_hours * HOUR / 2 + timedelta(minutes=7)
    found = budget_course(CURVE, (EARLIER,), followed((EARLIER, CURVE), START - 14 * DAY, now), now)
    assert [each.ratio for each in found.burns] == pytest.approx([1.0] * 4, rel=1e-6)
    assert found.alert is Alert.NONE
    assert found.on_course_ug == pytest.approx(LIMIT, rel=1e-6)
    assert found.high_ug == pytest.approx(LIMIT, rel=1e-6)
    assert found.spent_ug == pytest.approx(found.expected_ug, rel=1e-6, abs=1e6)


def test_a_straight_plan_would_cry_wolf() -> None:
    """Sabotaged: against an even plan the same load burns 1.2 and more in some window."""
    even = spread(START, END, LIMIT)
    now = START + 20 * DAY
    spent = followed((CURVE,), START, now)
    ratios = [
        burn((even,), spent, now - hours * HOUR - 6 * HOUR, now - hours * HOUR)
        for hours in range(48)
    ]
    assert max(ratio or 0 for ratio in ratios) > 1.2


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 10**9)), min_size=1, max_size=40),
    st.data(),
)
def test_splitting_slots_changes_nothing(slots: list[tuple[int, int]], data: st.DataObject) -> None:
    """A row that is cut in two, in proportion to time, gives the same sum in any window."""
    whole, cut, at = [], [], START
    for minutes, unit_ug in slots:
        end = at + timedelta(minutes=minutes)
        whole.append(Spending(start=at, end=end, carbon_ug=unit_ug * minutes))
        inside = data.draw(st.integers(0, minutes))
        middle = at + timedelta(minutes=inside)
        cut += [
            Spending(start=at, end=middle, carbon_ug=unit_ug * inside),
            Spending(start=middle, end=end, carbon_ug=unit_ug * (minutes - inside)),
        ]
        at = end
    length = (at - START) // timedelta(minutes=1)
    first = START + timedelta(minutes=data.draw(st.integers(0, length)))
    last = first + timedelta(minutes=data.draw(st.integers(0, length)))
    assert spent_between(whole, first, last) == pytest.approx(spent_between(cut, first, last))
    assert sum(each.carbon_ug for each in whole) == sum(each.carbon_ug for each in cut)


@pytest.mark.parametrize(
    ("month", "hours"), [(3, 743), (10, 745), (11, 720), (2, 672)], ids=("spring", "autumn", "", "")
)
def test_a_month_has_the_hours_that_its_clocks_had(month: int, hours: int) -> None:
    """One less in March, one more in October; and the plan adds up to the limit all the same."""
    found = period_of(midnight(date(2026, month, 5), "Europe/London"), "month", "Europe/London")
    assert len(hours_of(found.start, found.end)) == hours
    curve = spread(found.start, found.end, LIMIT + 1, intensity=CURVED)
    assert len(curve.sums_ug) == hours + 1
    assert curve.sums_ug[-1] == LIMIT + 1


@given(st.integers(1, 10**13), st.lists(st.integers(0, 500), min_size=48, max_size=48))
def test_a_plan_adds_up_to_its_limit_and_never_falls(limit_ug: int, values: list[int]) -> None:
    """Whatever is expected: to the microgram, even of nothing at all."""
    shape = HourProfile(values=tuple(map(float, values)), timezone="Asia/Kolkata")
    curve = spread(START, START + 36 * HOUR + timedelta(minutes=20), limit_ug, intensity=shape)
    assert curve.sums_ug[0] == 0
    assert curve.sums_ug[-1] == limit_ug == curve.by(curve.end)
    assert list(curve.sums_ug) == sorted(curve.sums_ug)


@given(st.integers(0, 3 * 1440), st.integers(0, 3 * 1440))
@settings(max_examples=30)
def test_a_window_of_the_plan_is_the_sum_of_its_minutes(first: int, length: int) -> None:
    """Against minutes added one by one, across the border of two months."""
    begins = START - DAY + timedelta(minutes=first)
    minutes = [begins + number * timedelta(minutes=1) for number in range(length + 1)]
    slow = 0.0
    for at in minutes[:-1]:
        curve = EARLIER if at < START else CURVE
        hour = (at - curve.start) // HOUR
        slow += (curve.sums_ug[hour + 1] - curve.sums_ug[hour]) / 60
    ratio = burn(
        (EARLIER, CURVE), [Spending(start=begins, end=END, carbon_ug=0)], begins, minutes[-1]
    )
    fast = sum(each.by(minutes[-1]) - each.by(begins) for each in (EARLIER, CURVE))
    assert fast == pytest.approx(slow, rel=1e-9, abs=1)
    assert ratio == (0.0 if length else None)


@given(st.integers(0, LIMIT))
def test_when_so_much_is_planned_by_is_the_inverse(carbon_ug: int) -> None:
    """The moment by which x is planned has x planned by it."""
    at = CURVE.when(carbon_ug)
    assert at is not None
    assert CURVE.by(at) == pytest.approx(carbon_ug, abs=LIMIT * 1e-8)
    assert CURVE.when(LIMIT + 1) is None


def test_a_burn_above_two_is_a_fast_alert_once_a_day_shows_it() -> None:
    """Both windows must agree: one bad hour is no alert, and a day that is over is none either."""
    now = START + 20 * DAY
    calm = followed((CURVE,), START, now - DAY)
    storm = followed((CURVE,), now - DAY, now, 2.5)
    assert budget_course(CURVE, (), calm + storm, now).alert is Alert.FAST
    gust = followed((CURVE,), now - DAY, now - 6 * HOUR) + followed(
        (CURVE,), now - 6 * HOUR, now, 3.0
    )
    assert budget_course(CURVE, (), calm + gust, now).alert is not Alert.FAST
    over = followed((CURVE,), now - DAY, now - 6 * HOUR, 4.0) + followed(
        (CURVE,), now - 6 * HOUR, now, 0.5
    )
    assert budget_course(CURVE, (), calm + over, now).alert is not Alert.FAST


def test_a_week_above_the_plan_is_a_slow_alert() -> None:
    """Ten per cent too much, three days and seven days long; a little too little is none."""
    assert look(20, 1.1).alert is Alert.SLOW
    assert look(20, 0.97).alert is Alert.NONE


def test_a_burn_that_still_ends_below_the_limit_is_no_alert() -> None:
    """Whoever saved for three weeks may burn three times the plan on the last day but one."""
    now = START + 29 * DAY
    spent = followed((CURVE,), START, now - DAY, 0.5) + followed((CURVE,), now - DAY, now, 3.0)
    found = budget_course(CURVE, (), spent, now)
    assert all((each.ratio or 0) > 2 for each in found.burns[:2])
    assert found.alert is Alert.NONE


def test_a_limit_that_is_passed_is_said_with_when_it_was() -> None:
    """Exhausted outranks every burn; the residual is what is owed."""
    found = look(20, 2.0)
    assert found.alert is Alert.EXHAUSTED
    assert found.residual_ug < 0
    reached = CURVE.when(LIMIT / 2)
    assert found.exhausted_at is not None
    assert reached is not None
    assert abs(found.exhausted_at - reached) <= HOUR


def test_the_end_of_a_limit_is_foreseen_along_the_plan() -> None:
    """At 1.25 times the plan it ends when the plan has come to four fifths: stepped by minutes."""
    found = look(10, 1.25)
    at = START + 10 * DAY
    while found.spent_ug + 1.25 * (CURVE.by(at) - CURVE.by(START + 10 * DAY)) < LIMIT:
        at += timedelta(minutes=1)
    assert found.exhausted_at is not None
    assert abs(found.exhausted_at - at) <= timedelta(minutes=2)
    assert look(10, 0.9).exhausted_at is None


def test_windows_that_were_not_tracked_have_no_burn() -> None:
    """Booked since yesterday: a week's burn is not known, and it is not low."""
    now = START + 10 * DAY
    found = budget_course(CURVE, (), followed((CURVE,), now - 1.5 * DAY, now, 3.0), now)
    assert [each.ratio is None for each in found.burns] == [False, False, True, True]
    assert found.alert is Alert.FAST
    assert found.on_course_ug is not None
    assert found.low_ug is None


def test_windows_without_a_plan_have_no_burn() -> None:
    """The first month that is planned says nothing of the one before."""
    now = START + 2 * DAY
    found = budget_course(CURVE, (), followed((EARLIER, CURVE), START - 9 * DAY, now), now)
    assert [each.ratio is None for each in found.burns] == [False, False, True, True]


def test_nothing_is_known_of_nothing() -> None:
    """No burn, no course, no alert; all of the limit is left."""
    found = budget_course(CURVE, (), [], START + DAY)
    assert (found.spent_ug, found.residual_ug, found.on_course_ug) == (0, LIMIT, None)
    assert all(each.ratio is None for each in found.burns)
    assert found.exhausted_at is None


def test_the_band_follows_how_days_vary() -> None:
    """Days of 0.8 and 1.2 by turns: wider than even ones, around the same course."""
    now = START + 14 * DAY
    spent = []
    for day in range(14):
        begins = START + day * DAY
        spent += followed((CURVE,), begins, begins + DAY, 0.8 if day % 2 else 1.2)
    found = budget_course(CURVE, (), spent, now)
    assert found.low_ug is not None
    assert found.high_ug is not None
    assert found.on_course_ug is not None
    assert found.low_ug < found.on_course_ug < found.high_ug
    assert 0.03 < (found.high_ug - found.low_ug) / LIMIT < 0.2


def test_what_must_still_be_spent_can_be_too_much() -> None:
    """A deadline whose cheapest plan does not fit is said at once, however low the burn."""
    assert look(3, 0.5, least_ug=LIMIT * 0.99).unkeepable
    assert not look(3, 0.5, least_ug=LIMIT * 0.5).unkeepable


def test_a_new_plan_accepts_what_was_spent() -> None:
    """Hours behind take what was spent in them, the rest is spread; the limit stays the limit."""
    now = START + 10 * DAY
    spent = followed((CURVE,), START, now, 1.3)
    anew = spread(START, END, LIMIT, intensity=CURVED, spent=spent, now=now)
    assert anew.sums_ug[-1] == LIMIT
    assert anew.by(now) == pytest.approx(sum(each.carbon_ug for each in spent), rel=1e-9)
    found = budget_course(anew, (), spent, now)
    assert [each.ratio for each in found.burns] == pytest.approx([1.0] * 4, rel=1e-6)
    assert budget_course(CURVE, (), spent, now).alert is Alert.SLOW


def test_a_profile_averages_hours_of_like_days() -> None:
    """Monday and Tuesday noon together, Saturday apart, in the site's clock."""
    monday_noon = datetime(2026, 7, 6, 11, tzinfo=UTC)
    samples = [(monday_noon, 100.0), (monday_noon + DAY, 200.0), (monday_noon + 5 * DAY, 40.0)]
    found = hour_profile(samples, "Europe/London")
    assert found is not None
    assert found.at(monday_noon + 7 * DAY) == 150.0
    assert found.at(monday_noon + 12 * DAY) == 40.0
    assert found.at(monday_noon + HOUR) == pytest.approx(340 / 3)
    winter_noon = datetime(2026, 12, 7, 12, tzinfo=UTC)
    assert found.at(winter_noon) == 150.0
    assert hour_profile([], "UTC") is None


def test_no_policy_can_see_a_budget() -> None:
    """Priorities: deadline above budget. What a decision is made of has no budget in it at all."""
    names = {each.name for each in fields(Observation)}
    assert not {name for name in names if "budget" in name or "limit" in name}
    assert {"carbon", "runs", "policy"} <= names


def test_the_rules_are_those_of_the_manual() -> None:
    """Fast: 6 h and 24 h above 2; slow: 3 d and 7 d above 1; the fast one is asked first."""
    told = [
        (rule.alert, *(window / HOUR for window in rule.windows), rule.above) for rule in BURN_RULES
    ]
    assert told == [(Alert.FAST, 6, 24, 2.0), (Alert.SLOW, 72, 168, 1.0)]
