"""Far ahead a forecast becomes the usual day of the last weeks."""

from datetime import timedelta
from itertools import pairwise
from math import exp, nan

import pytest

from tests.policies.build import NOW, slots
from wattmesh.policies.decision import UsualDay
from wattmesh.policies.forecast.far import MEMORY, Past, lengthened, usual_day
from wattmesh.policies.horizon import to_end

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def past(values: list[float], *, step: timedelta = HOUR) -> Past:
    """Values that end now."""
    return Past(start=NOW - len(values) * step, step=step, values=values)


def daily(count: int, *, level: float = 0.0) -> list[float]:
    """Days whose hour h (UTC) is 100 + h; they end at 14:00, so they begin there."""
    return [100.0 + level + (14 + n) % 24 for n in range(24 * count)]


def test_the_usual_day_is_the_mean_of_each_hour() -> None:
    """By the clock in UTC, whenever the recording began."""
    found = usual_day(past(daily(20)))
    assert found is not None
    assert found.hours == pytest.approx([100.0 + hour for hour in range(24)])
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_newer_days_count_more() -> None:
    """A day old by so much counts e^-1 of the newest: by hand with two days."""
    told = usual_day(past([*([100.0] * 24), *([200.0] * 24)]))
    older = exp(-DAY / MEMORY)
    assert told is not None
    assert told.hours == pytest.approx([(100 * older + 200) / (1 + older)] * 24)


def test_the_band_is_that_of_the_hours_of_the_last_weeks() -> None:
    """Four days in five as usual, one of ten far below and one far above: by their shares."""
    days = [100.0] * 8 + [50.0, 200.0]
    found = usual_day(past([level for _ in range(3) for level in days for _ in range(24)]))
    assert found is not None
    usual = found.hours[0]
    assert (found.low, found.high) == pytest.approx((100.0 / usual, 100.0 / usual), rel=0.2)
    wild = usual_day(past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24]))
    assert wild is not None
    assert wild.low == pytest.approx(50.0 / wild.hours[0])
    assert wild.high == pytest.approx(150.0 / wild.hours[0])


def test_the_band_opens_as_the_forecast_fades() -> None:
    """None of it on the day ahead, all of it in two weeks, and in grams of what is expected."""
    wild = past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24])
    usual = usual_day(wild)
    assert usual is not None
    found = lengthened(slots([100.0] * 72), wild, NOW, NOW + 14 * DAY)
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
    found = usual_day(past(values, step=HOUR / 2))
    assert found is not None
    assert found.hours == pytest.approx([250.0] * 24)


def test_with_less_than_a_day_there_is_no_usual_day() -> None:
    """And the forecast is given back as it is."""
    told = slots([300.0] * 72)
    assert usual_day(past([100.0] * 23)) is None
    assert lengthened(told, past([100.0] * 23), NOW, NOW + 20 * DAY) == told


def test_a_forecast_is_believed_for_a_day_and_then_less_and_less() -> None:
    """A dirty spell is not thought to last for weeks."""
    found = lengthened(slots([400.0] * 72), past([200.0] * 24 * 30), NOW, NOW + 14 * DAY)
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
    one = lengthened(slots([400.0] * 72), past(daily(9)), NOW, NOW + 9 * DAY)
    ten = lengthened(
        slots([4000.0] * 72), past([10 * each for each in daily(9)]), NOW, NOW + 9 * DAY
    )
    assert [10 * each.g_per_kwh for each in one] == pytest.approx([each.g_per_kwh for each in ten])


def test_beyond_a_forecast_the_horizon_goes_back_to_the_usual_day() -> None:
    """And says so; without it the last day repeats."""
    usual = UsualDay(hours=tuple(200.0 + hour for hour in range(24)))
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
