"""Far ahead a forecast becomes the usual day of the last weeks."""

from datetime import timedelta
from itertools import pairwise
from math import exp, nan, sin
from random import Random

import pytest

from tests.policies.build import NOW, slots
from wattmesh.policies.decision import UsualDay
from wattmesh.policies.forecast.far import Past, lengthened, usual_day
from wattmesh.policies.forecast.memory import weights_by_age
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
    """With little past a day counts e^-1 of one that is 30 days newer: by hand with two days."""
    told = usual_day(past([*([100.0] * 24), *([200.0] * 24)]))
    older = exp(-1 / 30)
    assert told is not None
    assert told.hours == pytest.approx([(100 * older + 200) / (1 + older)] * 24)


def season(count: int) -> list[float]:
    """Days that drift up and down slowly."""
    return [300.0 + 100.0 * sin(n / 20) for n in range(count)]


def wind(count: int) -> list[float]:
    """Days that know nothing of each other."""
    rng = Random(7)
    return [rng.uniform(100.0, 500.0) for _ in range(count)]


def test_a_grid_that_drifts_is_remembered_for_days_and_one_of_wind_for_months() -> None:
    """The mean age of what counts; scaling changes nothing."""

    def mean_age(days: list[float]) -> float:
        weights = weights_by_age(days)
        assert sum(weights) == pytest.approx(1.0)
        return sum(age * weight for age, weight in enumerate(weights))

    assert mean_age(season(200)) < 10.0
    assert mean_age(wind(200)) > 30.0
    assert weights_by_age([7 * each for each in wind(90)]) == pytest.approx(
        weights_by_age(wind(90))
    )


@pytest.mark.parametrize("days", [[], [100.0], [100.0] * 200, [0.0] * 60, [*([0.0] * 59), 5.0]])
def test_series_that_teach_nothing_are_no_trouble(days: list[float]) -> None:
    """None, one, all alike, all zero: a weight for each day, the newest first."""
    weights = weights_by_age(days)
    assert len(weights) == len(days)
    assert all(newer >= older > 0.0 for newer, older in pairwise(weights))


def test_days_without_a_value_take_part_in_no_mean() -> None:
    """A week that nobody recorded, at either end or within."""
    for gap in (slice(0, 168), slice(24 * 20, 24 * 27), slice(-168, None)):
        values = daily(60)
        values[gap] = [nan] * len(values[gap])
        found = usual_day(past(values))
        assert found is not None
        assert found.hours == pytest.approx([100.0 + hour for hour in range(24)])


def test_the_band_is_that_of_the_hours_of_the_last_weeks() -> None:
    """One day in five far below and one far above: by their shares of the usual day."""
    days = [100.0] * 6 + [50.0, 200.0] * 2
    found = usual_day(past([level for _ in range(3) for level in days for _ in range(24)]))
    assert found is not None
    usual = found.hours[0]
    assert (found.low, found.high) == pytest.approx((50.0 / usual, 200.0 / usual), rel=0.02)
    wild = usual_day(past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24]))
    assert wild is not None
    assert wild.low == pytest.approx(50.0 / wild.hours[0])
    assert wild.high == pytest.approx(150.0 / wild.hours[0])


def test_the_band_opens_as_the_forecast_fades() -> None:
    """None of it on the day ahead, all of it in two weeks, and in grams of what is expected."""
    wild = past([level for n in range(30) for level in [50.0 + 100 * (n % 2)] * 24])
    usual = usual_day(wild)
    assert usual is not None
    found = lengthened(slots([100.0] * 72), usual, NOW, NOW + 14 * DAY)
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
    """Not even of the hours there are."""
    assert usual_day(past([100.0] * 23)) is None
    assert usual_day(past([nan] * 50)) is None


def flat(level: float) -> UsualDay:
    """A day like any other."""
    return UsualDay(hours=(level,) * 24)


def test_a_forecast_is_believed_for_a_day_and_then_less_and_less() -> None:
    """A dirty spell is not thought to last for weeks."""
    found = lengthened(slots([400.0] * 72), flat(200.0), NOW, NOW + 14 * DAY)
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
    small, large = usual_day(past(daily(9))), usual_day(past([10 * each for each in daily(9)]))
    assert small is not None
    assert large is not None
    one = lengthened(slots([400.0] * 72), small, NOW, NOW + 9 * DAY)
    ten = lengthened(slots([4000.0] * 72), large, NOW, NOW + 9 * DAY)
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
