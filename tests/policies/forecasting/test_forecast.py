"""The forecast that a plan uses: slots from now on, sources weighed by what they were worth."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import fmean

import pytest

from tests.builders.carbon import slots
from tests.policies.forecasting.worlds import START, Zone, observed, values
from wattmesh.policies.forecast.predict import (
    IssuedForecast,
    PredictedIntensity,
    predict,
    scored,
    teach,
)
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastOutcome, ForecastSource, Skill

HOUR = timedelta(hours=1)
NAN = math.nan


def issued_at(now: datetime, told: Sequence[float], low: float | None = None) -> IssuedForecast:
    """A provider's hourly forecast from `now` on."""
    return IssuedForecast(slots=slots(told, now, below=low, above=low))


def points(predicted: PredictedIntensity) -> list[float]:
    """The values alone."""
    return [slot.g_per_kwh for slot in predicted.slots]


def test_slots_begin_with_the_running_hour_and_have_no_gap() -> None:
    """The first slot holds now, each begins where one ends, the last reaches the end."""
    known = observed(values(Zone(), 10))
    now = known.end + timedelta(hours=2, minutes=20)
    slots = predict(known, now=now, hours=48).slots
    assert slots[0].start <= now < slots[0].end
    assert slots[-1].end >= now + timedelta(hours=48)
    assert all(before.end == after.start for before, after in pairwise(slots))


def test_hours_that_are_not_known_yet_are_forecast_not_skipped() -> None:
    """With values that came late, each slot still has the value of its own hour."""
    known = observed(values(Zone(), 30))
    at_once = predict(known, now=known.end, hours=24)
    later = predict(known, now=known.end + 5 * HOUR, hours=19)
    assert points(later) == points(at_once)[5:]


@pytest.mark.parametrize("days", [0, 1, 3, 9, 22, 40])
def test_every_length_of_history_is_good_for_something(days: int) -> None:
    """From nothing to weeks: the best source that so much history allows, and never zero."""
    known = observed(values(Zone(), days))
    predicted = predict(known, now=known.end, hours=24)
    expected = {
        0: None,
        1: ForecastSource.PROFILE,
        3: ForecastSource.PROFILE,
        9: ForecastSource.PROFILE,
    }
    assert predicted.source == expected.get(days, ForecastSource.OWN)
    assert bool(predicted.slots) == (days > 0)
    assert all(value > 0 for value in points(predicted))


def test_history_that_ended_long_ago_says_nothing() -> None:
    """After 72 h the grid of then is no longer the grid of now; a provider still is heard."""
    known = observed(values(Zone(), 30))
    now = known.end + timedelta(hours=73)
    assert predict(known, now=now, hours=6).slots == ()
    heard = predict(known, now=now, hours=6, issued=issued_at(now, [222.0] * 6))
    assert points(heard) == [222.0] * 6


def test_unknown_hours_are_not_zero() -> None:
    """Gaps and false values neither pull the forecast down nor stop it."""
    told = values(Zone(weather=5.0), 40)
    holed = [NAN if at % 17 in {3, 4, 5} or at % 50 == 0 else v for at, v in enumerate(told)]
    holed[-1] = NAN
    whole = predict(observed(told), now=observed(told).end, hours=72)
    gaps = predict(observed(holed), now=observed(holed).end, hours=72)
    assert points(gaps) == pytest.approx(points(whole), rel=0.1)


@pytest.mark.parametrize("days", [9, 40])
def test_a_steady_grid_stays_steady(days: int) -> None:
    """A constant series is forecast as that constant, with quantiles that lie upon it."""
    known = observed([250.0] * days * 24)
    for slot in predict(known, now=known.end, hours=100).slots:
        assert slot.g_per_kwh == pytest.approx(250.0)
        assert slot.low_g_per_kwh is None or slot.low_g_per_kwh == pytest.approx(250.0)


@pytest.mark.parametrize("scale", [1e-3, 7.0])
def test_another_unit_gives_the_same_forecast_in_that_unit(scale: float) -> None:
    """Values times c, forecasts and quantiles times c."""
    told = values(Zone(), 60)
    once = predict(observed(told), now=observed(told).end, hours=72)
    scaled_values = observed([value * scale for value in told])
    scaled = predict(scaled_values, now=scaled_values.end, hours=72)
    assert points(scaled) == pytest.approx([value * scale for value in points(once)])
    assert [slot.low_g_per_kwh for slot in scaled.slots] == pytest.approx(
        [(slot.low_g_per_kwh or NAN) * scale for slot in once.slots]
    )


@pytest.mark.parametrize("interval_s", [300.0, 1800.0])
def test_finer_series_become_hours(interval_s: float) -> None:
    """Values in smaller steps are forecast by the hour, as their hourly means are."""
    hours = values(Zone(), 30)
    each = int(3600 / interval_s)
    fine = observed([value for value in hours for _ in range(each)], interval_s)
    assert points(predict(fine, now=fine.end, hours=24)) == pytest.approx(
        points(predict(observed(hours), now=fine.end, hours=24))
    )


def test_an_hour_of_a_finer_series_ends_with_its_newest_value() -> None:
    """A half hour after the full one is used at once: slots then begin at half past."""
    fine = observed([200.0 + at % 48 for at in range(48 * 12 + 1)], 1800.0)
    slots = predict(fine, now=fine.end, hours=5).slots
    assert slots[0].start == fine.end
    assert slots[0].start.minute == 30


def test_intervals_that_make_no_hour_are_refused() -> None:
    """Neither a part of an hour nor whole hours: the caller is told."""
    with pytest.raises(ValueError, match="5000 s"):
        Observed(start=START, interval_s=5000.0, values=())
    with pytest.raises(ValueError, match="hours must be"):
        predict(observed([1.0]), now=START, hours=0)


def test_quantiles_hold_the_value_between_them() -> None:
    """Low <= value <= high in every slot, and further ahead nothing is surer than at once."""
    known = observed(values(Zone(), 60))
    slots = predict(known, now=known.end, hours=72).slots
    widths = []
    for slot in slots:
        assert slot.low_g_per_kwh is not None
        assert slot.high_g_per_kwh is not None
        assert 0 <= slot.low_g_per_kwh <= slot.g_per_kwh <= slot.high_g_per_kwh
        widths.append(slot.high_g_per_kwh - slot.low_g_per_kwh)
    assert fmean(widths[:2]) < fmean(widths[24:48])


def test_a_provider_is_believed_until_something_is_measured() -> None:
    """Without skill the issued forecast stands as it is, quantiles too; ours goes on behind it."""
    known = observed(values(Zone(), 30))
    predicted = predict(
        known, now=known.end, hours=30, issued=issued_at(known.end, [111.0] * 24, low=9.0)
    )
    assert points(predicted)[:24] == [111.0] * 24
    assert {slot.low_g_per_kwh for slot in predicted.slots[:24]} == {102.0}
    assert [set(shares) for shares in predicted.made_of[23:25]] == [
        {ForecastSource.ISSUED},
        {ForecastSource.OWN},
    ]
    assert predicted.source == ForecastSource.ISSUED


def test_an_hour_that_the_provider_fills_in_part_is_not_its_own() -> None:
    """A forecast that ends at half past says nothing about that hour."""
    known = observed(values(Zone(), 10))
    short = issued_at(known.end - timedelta(minutes=30), [100.0] * 3)
    predicted = predict(known, now=known.end, hours=4, issued=short)
    told = predicted.each[ForecastSource.ISSUED]
    assert [math.isnan(value) for value in told] == [False, False, True, True]


def test_what_was_learned_serves_for_a_day() -> None:
    """Lessons of the same moment change nothing; those of a day ago are used as they are."""
    told = values(Zone(), 50)
    known = observed(told)
    anew = predict(known, now=known.end, hours=24)
    assert predict(known, now=known.end, hours=24, lessons=teach(known)) == anew
    old = teach(observed(told[:-24]))
    aged = predict(known, now=known.end, hours=24, lessons=old)
    assert points(aged) == pytest.approx(points(anew), rel=0.1)


def live(
    told: Sequence[float], first: int, noise: Sequence[float]
) -> tuple[Skill, dict[str, list[float]]]:
    """Forecast every hour with the skill so far; errors per source in the second half."""
    made: list[PredictedIntensity] = []
    skill = Skill()
    errors: dict[str, list[float]] = {}
    for now in range(first, len(told) - 24):
        known = observed(list(told[:now]))
        skill = scored(skill, made[-24:], known)
        coming = [told[now + at] + noise[now] * (1 if at < 12 else 4) for at in range(24)]
        predicted = predict(
            known, now=known.end, hours=24, issued=issued_at(known.end, coming), skill=skill
        )
        made.append(predicted)
        if now > (first + len(told)) // 2:
            truth = told[now : now + 24]
            said = {**{str(s): v for s, v in predicted.each.items()}, "blend": points(predicted)}
            for name, row in said.items():
                errors.setdefault(name, []).append(
                    fmean(abs(a - b) for a, b in zip(row, truth, strict=True))
                )
    return skill, errors


def test_a_blend_is_about_as_good_as_its_best_source() -> None:
    """A provider that is good for half a day and bad after is taken where it is good."""
    told = values(Zone(weather=25.0), 20)
    noise = [15.0 if at % 3 else -15.0 for at in range(len(told))]
    skill, errors = live(told, 10 * 24, noise)
    means = {name: fmean(rows) for name, rows in errors.items()}
    best = min(mean for name, mean in means.items() if name != "blend")
    assert means["blend"] <= 1.02 * best, means
    near = skill.tally(ForecastSource.ISSUED, 6).against_day
    far = skill.tally(ForecastSource.ISSUED, 24).against_day
    assert near is not None
    assert far is not None
    assert near < far


def test_a_bad_provider_loses_its_say() -> None:
    """A source with three times the error of the profile has next to no weight."""
    skill = Skill().after(
        [
            ForecastOutcome(
                source=source,
                lead_h=2.0,
                expected_g_per_kwh=200.0 + off,
                observed_g_per_kwh=200.0,
                last_g_per_kwh=260.0,
                day_g_per_kwh=230.0,
            )
            for source, off in ((ForecastSource.ISSUED, 45.0), (ForecastSource.PROFILE, 15.0))
            for _ in range(30)
        ],
        at=START,
    )
    known = observed(values(Zone(), 10))
    predicted = predict(
        known, now=known.end, hours=3, issued=issued_at(known.end, [900.0] * 3), skill=skill
    )
    assert predicted.made_of[1][ForecastSource.ISSUED] < 0.01
    assert predicted.made_of[0] == {ForecastSource.ISSUED: 1.0}, (
        "nothing was measured one hour ahead"
    )
    assert all(sum(shares.values()) == pytest.approx(1.0) for shares in predicted.made_of)


def test_outcomes_are_counted_once() -> None:
    """Each hour counts when it becomes known, and not again when more is known."""
    told = values(Zone(), 12)
    known = observed(told[: 10 * 24])
    predicted = predict(known, now=known.end, hours=24)
    skill = Skill(at=known.end)
    for more in range(1, 30):
        skill = scored(skill, [predicted], observed(told[: 10 * 24 + more]))
    every = sum(
        tally.weight
        for (source, _), tally in skill.tallies.items()
        if source == ForecastSource.PROFILE
    )
    assert 22.5 < every <= 24.0, "24 outcomes, a little faded"
