"""Far ahead a forecast becomes the climatology of the last weeks."""

from datetime import timedelta
from itertools import pairwise
from math import exp, nan

import pytest

from tests.builders.observations import NOW, slots
from wattmesh.policies.decision import Climatology
from wattmesh.policies.forecast.climatology import climatology_of, extended
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.horizon import to_end

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def past(values: list[float], *, step: timedelta = HOUR) -> Observed:
    """Values that end now."""
    start = NOW - len(values) * step
    return Observed(start=start, interval_s=step.total_seconds(), values=values)


def daily(count: int, *, level: float = 0.0) -> list[float]:
    """Days whose hour h (UTC) is 100 + h; they end at 14:00, so they begin there."""
    return [100.0 + level + (14 + n) % 24 for n in range(24 * count)]


def test_the_usual_day_is_the_mean_of_each_hour() -> None:
    """By the clock in UTC, whenever the recording began."""
    found = climatology_of(past(daily(20)))
    assert found is not None
    assert found.hours == pytest.approx([100.0 + hour for hour in range(24)])
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_newer_days_count_more() -> None:
    """A day counts e^-1 of one that is 30 days newer: by hand with two days."""
    told = climatology_of(past([*([100.0] * 24), *([200.0] * 24)]))
    older = exp(-1 / 30)
    assert told is not None
    assert told.hours == pytest.approx([(100 * older + 200) / (1 + older)] * 24)


def test_days_without_a_value_take_part_in_no_mean() -> None:
    """A week that nobody recorded, at either end or within."""
    for gap in (slice(0, 168), slice(24 * 20, 24 * 27), slice(-168, None)):
        values = daily(60)
        values[gap] = [nan] * len(values[gap])
        found = climatology_of(past(values))
        assert found is not None
        assert found.hours == pytest.approx([100.0 + hour for hour in range(24)])


def test_the_band_is_that_of_the_hours_of_the_last_weeks() -> None:
    """One day in five far below and one far above: by their shares of the usual day."""
    days = [100.0] * 6 + [50.0, 200.0] * 2
    found = climatology_of(past([level for _ in range(3) for level in days for _ in range(24)]))
    assert found is not None
    usual = found.hours[0]
    assert (found.low, found.high) == pytest.approx((50.0 / usual, 200.0 / usual), rel=0.02)
    wild = climatology_of(past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24]))
    assert wild is not None
    assert wild.low == pytest.approx(50.0 / wild.hours[0])
    assert wild.high == pytest.approx(150.0 / wild.hours[0])


def test_the_band_opens_as_the_forecast_fades() -> None:
    """None of it on the day ahead, all of it in two weeks, and in grams of what is expected."""
    wild = past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24])
    usual = climatology_of(wild)
    assert usual is not None
    found = extended(slots([100.0] * 72), usual, NOW, NOW + 14 * DAY)
    assert found[24].high_g_per_kwh is None
    widths = [(slot.high_g_per_kwh or 0.0) / slot.g_per_kwh - 1.0 for slot in found[25:]]
    assert all(after >= before for before, after in pairwise(widths))
    assert widths[0] < 0.25 * widths[-1]
    assert widths[-1] == pytest.approx(usual.high - 1.0, rel=1e-3)
    lows = [(slot.low_g_per_kwh or 0.0) for slot in found[25:]]
    assert all(low <= slot.g_per_kwh for low, slot in zip(lows, found[25:], strict=True))


def test_half_hours_and_gaps_are_no_trouble() -> None:
    """Unknown values take no part."""
    values = [250.0] * (48 * 10)
    values[5] = nan
    found = climatology_of(past(values, step=HOUR / 2))
    assert found is not None
    assert found.hours == pytest.approx([250.0] * 24)


def test_with_less_than_a_day_there_is_no_climatology_of() -> None:
    """Not even of the hours there are."""
    assert climatology_of(past([100.0] * 23)) is None
    assert climatology_of(past([nan] * 50)) is None


def flat(level: float) -> Climatology:
    """A day like any other."""
    return Climatology(hours=(level,) * 24)


def test_a_forecast_is_believed_for_a_day_and_then_less_and_less() -> None:
    """A dirty spell is not thought to last for weeks."""
    found = extended(slots([400.0] * 72), flat(200.0), NOW, NOW + 14 * DAY)
    values = [slot.g_per_kwh for slot in found]
    assert values[:25] == [400.0] * 25
    assert values[71] == pytest.approx(200 + 200 * exp(-47 / 48))
    assert values[96] == pytest.approx(200 + 200 * exp(-1.5), abs=1.0)
    assert all(after <= before for before, after in pairwise(values))
    assert values[-1] == pytest.approx(200.0, abs=1.0)
    assert all(one.end == other.start for one, other in pairwise(found))
    assert found[-1].end >= NOW + 14 * DAY


def test_scaling_everything_scales_what_is_said() -> None:
    """No hidden unit."""
    small, large = (
        climatology_of(past(daily(9))),
        climatology_of(past([10 * each for each in daily(9)])),
    )
    assert small is not None
    assert large is not None
    one = extended(slots([400.0] * 72), small, NOW, NOW + 9 * DAY)
    ten = extended(slots([4000.0] * 72), large, NOW, NOW + 9 * DAY)
    assert [10 * each.g_per_kwh for each in one] == pytest.approx([each.g_per_kwh for each in ten])


def test_beyond_a_forecast_the_horizon_goes_back_to_the_climatology_of() -> None:
    """And says so; without it the last day repeats."""
    usual = Climatology(hours=tuple(200.0 + hour for hour in range(24)))
    told = slots([500.0] * 48)
    found = to_end(told, NOW, NOW + 12 * DAY, usual)
    assert found.slots[:48] == told
    assert found.extended == "the usual values of the hours"
    last = found.slots[-1]
    assert last.end == NOW + 12 * DAY
    assert last.g_per_kwh == pytest.approx(usual.at(last.start), abs=5.0)
    assert all(one.end == other.start for one, other in pairwise(found.slots))
    assert to_end(told, NOW, NOW + 12 * DAY).slots[-1].g_per_kwh == 500.0
    assert to_end(told, NOW, NOW + 2 * DAY, usual) == to_end(told, NOW, NOW + 2 * DAY)
