"""Budget periods in the site's time zone."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.controller.accounting.budgets.periods import period_before, period_of

KINDS = ("day", "week", "month", "year")
ZONES = ("UTC", "Europe/London", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)),
    st.sampled_from(KINDS),
    st.sampled_from(ZONES),
)
def test_periods_follow_each_other_without_gap_or_overlap(
    moment: datetime, kind: str, zone: str
) -> None:
    """Every moment lies in its period, and the one before ends where it begins."""
    period = period_of(moment, kind, zone)
    assert period.start <= moment < period.end
    assert period_before(moment, kind, zone).end == period.start
    assert period_of(period.end, kind, zone).start == period.end
    assert period_of(period.end - timedelta(seconds=1), kind, zone) == period


@pytest.mark.parametrize(
    ("kind", "name", "start", "end"),
    [
        ("day", "2026-10-25", "2026-10-24T23:00Z", "2026-10-26T00:00Z"),
        ("week", "week from 2026-10-19", "2026-10-18T23:00Z", "2026-10-26T00:00Z"),
        ("month", "2026-10", "2026-09-30T23:00Z", "2026-11-01T00:00Z"),
        ("year", "2026", "2026-01-01T00:00Z", "2027-01-01T00:00Z"),
    ],
)
def test_the_day_the_clocks_go_back_has_25_hours(
    kind: str, name: str, start: str, end: str
) -> None:
    """Borders lie at local midnight on both sides of a change of daylight saving time."""
    period = period_of(datetime(2026, 10, 25, 12, tzinfo=UTC), kind, "Europe/London")
    assert period.name == name
    assert period.start == datetime.fromisoformat(start)
    assert period.end == datetime.fromisoformat(end)
