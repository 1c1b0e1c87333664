"""The forecast with exogenous series: better than the past alone, causal, and silent when blind."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.policies.forecasting.windy import DAY, intensity, panel, wind_mw
from tests.policies.forecasting.worlds import START
from wattmesh.policies.forecast.anchored import anchored_profile
from wattmesh.policies.forecast.carried_on import NEAR, carried_on
from wattmesh.policies.forecast.exogenous import (
    FARTHEST,
    Array,
    LeadPairs,
    Panel,
    exogenous_features,
)
from wattmesh.policies.forecast.foresight import Foresight, learn
from wattmesh.policies.forecast.learned import learn as learn_past
from wattmesh.policies.forecast.predict import predict
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastSource
from wattmesh.telemetry.exogenous import ExogenousKind

DAYS, TAUGHT = 130, 110
WIND = wind_mw(DAYS)
VALUES = intensity(WIND)
PANEL = panel(WIND)
ORIGIN = TAUGHT * DAY


def taught(values: Array, seen: Panel) -> Foresight:
    """Learn up to `ORIGIN`."""
    lessons = learn(values[:ORIGIN].tolist(), START, seen)
    assert lessons is not None
    return lessons


@pytest.fixture(scope="module")
def lessons() -> Foresight:
    """What the windy grid taught."""
    return taught(VALUES, PANEL)


def ahead(lessons: Foresight, origin: int, values: Array, seen: Panel) -> list[list[float]]:
    """Forecast from `origin` with no value after it."""
    return lessons.expect(values[:origin].tolist(), START, seen)


def test_the_wind_of_tomorrow_is_worth_more_than_the_past(lessons: Foresight) -> None:
    """Over the days after the learning, less than half of the profile's error; 80 % in the band."""
    ours, profiles, inside = [], [], []
    for origin in range(ORIGIN, (DAYS - 2) * DAY, DAY):
        truth = VALUES[origin : origin + DAY]
        value, low, high = (np.array(row)[:DAY] for row in ahead(lessons, origin, VALUES, PANEL))
        ours.append(np.abs(value - truth).mean())
        profile = anchored_profile(VALUES[:origin].tolist(), steps=DAY)
        profiles.append(np.abs(np.array(profile) - truth).mean())
        inside.append(((truth >= low) & (truth <= high)).mean())
        assert (low <= value).all()
        assert (value <= high).all()
    assert np.mean(ours) < 0.5 * np.mean(profiles)
    assert 0.65 <= np.mean(inside) <= 0.97


@pytest.mark.parametrize("hour", [0, 5, 17, 18, 23])
def test_nothing_that_was_not_known_is_read(lessons: Foresight, hour: int) -> None:
    """Other values later, and other forecasts that were issued later, change nothing."""
    origin = ORIGIN + hour
    other_values = np.where(np.arange(len(VALUES)) >= origin, 1e4, VALUES)
    later = PANEL.known_at > origin
    other = replace(PANEL, values=np.where(later, 1e6, PANEL.values))
    same = ahead(lessons, origin, VALUES, PANEL)
    np.testing.assert_array_equal(ahead(lessons, origin, other_values, other), same)
    # At 18:00 the whole of the next day is out, before that only the running day.
    known = np.isfinite(same[0]).sum()
    assert known == (FARTHEST if hour == 18 else 30 - (hour - 18) if hour > 18 else DAY - hour)


def test_a_feature_reads_nothing_that_came_late() -> None:
    """Not of the day or the week before either, where those were told after the hour's own day."""
    chance = np.random.default_rng(7)
    hours = np.repeat(np.arange(20 * DAY, 60 * DAY, 7), 3)
    pairs = LeadPairs(origins=hours + 1 - np.tile([1, 13, 29], len(hours) // 3), hours=hours)
    late = chance.choice([0.0, 90.0], size=PANEL.known_at.shape, p=[0.9, 0.1])
    seen = replace(PANEL, known_at=PANEL.known_at + late)
    told = exogenous_features(seen, pairs)
    for place in range(0, len(hours), 11):
        unknown = seen.known_at > pairs.origins[place]
        other = replace(seen, values=np.where(unknown, 1e6, seen.values))
        one = LeadPairs(origins=pairs.origins[[place]], hours=hours[[place]])
        np.testing.assert_array_equal(exogenous_features(other, one)[0], told[place])


def test_a_forecast_that_leaks_is_caught(lessons: Foresight) -> None:
    """Sabotaged twin: issue times that lie let a later forecast in, and the result changes."""
    leaking = replace(PANEL, known_at=np.zeros_like(PANEL.known_at))
    changed = replace(leaking, values=np.where(PANEL.known_at > ORIGIN, 1e6, PANEL.values))
    told = ahead(lessons, ORIGIN, VALUES, leaking)
    assert not np.array_equal(told, ahead(lessons, ORIGIN, VALUES, changed))


def test_what_is_learned_rests_on_what_was_known_then() -> None:
    """Lessons are the same whatever is recorded or issued afterwards."""
    later = PANEL.known_at > ORIGIN
    other = replace(PANEL, values=np.where(later, 1e6, PANEL.values))
    np.testing.assert_array_equal(
        ahead(taught(VALUES, other), ORIGIN, VALUES, PANEL),
        ahead(taught(VALUES, PANEL), ORIGIN, VALUES, PANEL),
    )


def test_units_do_not_matter(lessons: Foresight) -> None:
    """A grid of three times the grams, with wind in kilowatts, gets three times the forecast."""
    scaled = replace(PANEL, values=1000.0 * PANEL.values)
    told = np.array(ahead(taught(3.0 * VALUES, scaled), ORIGIN, 3.0 * VALUES, scaled))
    np.testing.assert_allclose(
        told, 3.0 * np.array(ahead(lessons, ORIGIN, VALUES, PANEL)), rtol=1e-3
    )


def test_without_exogenous_forecasts_the_past_alone_speaks(lessons: Foresight) -> None:
    """Hours without a forecast of the wind are unknown, and the blend takes the next source."""
    blind = replace(
        PANEL, values=np.where(np.arange(len(WIND))[:, None] >= ORIGIN + 6, np.nan, PANEL.values)
    )
    told = ahead(lessons, ORIGIN, VALUES, blind)
    assert np.isfinite(told[0]).sum() == 6
    known = Observed(start=START, interval_s=3600.0, values=VALUES[:ORIGIN].tolist())
    predicted = predict(known, now=known.end, hours=24, exogenous=told)
    first = [max(each, key=each.__getitem__) for each in predicted.made_of]
    assert first[:6] == [ForecastSource.EXOGENOUS] * 6
    assert first[6:] == [ForecastSource.OWN] * (len(first) - 6)
    assert predicted.source is ForecastSource.EXOGENOUS
    assert all(math.isfinite(slot.g_per_kwh) for slot in predicted.slots)


@pytest.mark.parametrize("days", [0, 20, 60])
def test_too_little_teaches_nothing(days: int) -> None:
    """A short series, or one without any exogenous forecast, gives no lessons."""
    assert learn(VALUES[: days * DAY].tolist(), START, PANEL) is None
    nothing = replace(PANEL, values=np.full_like(PANEL.values, np.nan))
    assert learn(VALUES.tolist(), START, nothing) is None


def test_a_series_that_came_late_helps_and_noise_does_not() -> None:
    """Wind known for the last 50 days only corrects; where all is explained, noise cannot."""
    kinds = (ExogenousKind.WIND, ExogenousKind.TEMPERATURE)
    seen = panel(WIND, kinds)
    late = np.arange(len(WIND)) < (TAUGHT - 50) * DAY
    for column, helps in ((0, True), (1, False)):
        values = seen.values.copy()
        values[late, column] = np.nan
        if column == 1:  # the wind is known throughout, and nothing is left to explain
            assert taught(VALUES, replace(seen, values=values)).columns == (0,)
            continue
        lessons = taught(VALUES, replace(seen, values=values))
        assert lessons.columns == (1,)
        assert (lessons.late is not None) is helps
        without = replace(lessons, late=None)
        off = [
            np.nanmean(
                [
                    np.abs(
                        np.array(ahead(each, at, VALUES, replace(seen, values=values))[0])[:DAY]
                        - VALUES[at : at + DAY]
                    ).mean()
                    for at in range(ORIGIN, ORIGIN + 12 * DAY, DAY)
                ]
            )
            for each in (lessons, without)
        ]
        assert off[0] < 0.85 * off[1]


def test_beyond_the_known_weather_our_own_forecast_starts_from_tomorrow(lessons: Foresight) -> None:
    """What was said stays but for the first hours; those after follow it, with their own band."""
    values = VALUES[:ORIGIN].tolist()
    past = learn_past(values, 0)
    assert past is not None
    told = ahead(lessons, ORIGIN, VALUES, PANEL)
    further = carried_on(told, values, 0, past)
    first = len(NEAR)
    assert [row[first:DAY] for row in further] == [row[first:DAY] for row in told]
    assert all(len(row) == 72 and all(map(math.isfinite, row)) for row in further)
    assert further[0][DAY:] == past.expect([*values, *further[0][:DAY]], 0)[0][: 72 - DAY]
    assert further[0][DAY:] != past.expect(values, 0)[0][DAY:]
    blind = [[math.nan] * FARTHEST] * 3
    assert carried_on(blind, values, 0, past)[0] is not blind[0]
    assert all(map(math.isnan, carried_on(blind, values, 0, past)[0]))


def test_in_the_first_hours_the_past_has_its_part(lessons: Foresight) -> None:
    """Less with each hour, in value and band alike; a single known hour is averaged too."""
    values = VALUES[:ORIGIN].tolist()
    past = learn_past(values, 0)
    assert past is not None
    told = ahead(lessons, ORIGIN, VALUES, PANEL)
    assert list(NEAR) == sorted(NEAR, reverse=True)
    assert 0.0 < NEAR[-1] < NEAR[0] < 1.0
    for row, one, own in zip(
        carried_on(told, values, 0, past), told, past.expect(values, 0), strict=True
    ):
        shares = [(row[at] - one[at]) / (own[at] - one[at]) for at in range(len(NEAR))]
        assert shares == pytest.approx(NEAR)
    short = [[*row[:1], *[math.nan] * 5] for row in told]
    assert carried_on(short, values, 0, past)[0][0] == carried_on(told, values, 0, past)[0][0]
