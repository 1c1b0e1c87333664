"""Our own issues: what they are made of, when a new one is made, and when none can be."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from tests.builders.carbon import intensities, slots
from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view
from wattmesh.controller.journal.carbon.forecasts import BLEND, PROFILE, Forecast
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.forecaster import Forecaster
from wattmesh.policies.decision import Rung
from wattmesh.telemetry.carbon import Series, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
SIGNAL = Signal(provider="neso", zone="GB")
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)


def series(interval_s: float = 3600.0, day_s: float = 86_400.0) -> Series:
    """Say how the signal is cut."""
    return Series(interval_s=interval_s, origin=ORIGIN, cadence_s=interval_s, day_s=day_s)


def tell(
    journal: Journal,
    count: int,
    *,
    interval_s: float = 3600.0,
    until: datetime = NOON,
    quality: Quality = Quality.MEASURED,
) -> None:
    """Store so many intervals with a day in them, the last one ending at `until` or before."""
    length = timedelta(seconds=interval_s)
    last = ORIGIN + (until - ORIGIN) // length * length
    values = [
        200.0 + 50.0 * math.sin((last - n * length).hour / 24 * math.tau)
        for n in reversed(range(count))
    ]
    first = last - count * length
    journal.carbon.store(intensities(SIGNAL, values, first, length, quality=quality, at=last))


def issue(journal: Journal, at: datetime, value: float = 90.0, hours: int = 48) -> None:
    """Store a forecast of the provider."""
    journal.forecasts.store(
        Forecast(
            signal=SIGNAL,
            rung=Rung.ISSUED,
            source="neso",
            issued_at=at,
            fetched_at=at,
            slots=slots([value] * hours, at),
        )
    )


def own(journal: Journal) -> list[Forecast]:
    """Give the newest of our own issues."""
    return [each for each in journal.forecasts.newest(SIGNAL) if each.source != "neso"]


def test_without_a_forecast_of_the_provider_it_is_a_profile(journal: Journal) -> None:
    """It says of when its history is, reaches three days, and what it is made of."""
    tell(journal, 8 * 24)
    assert Forecaster(journal, SIGNAL, series()).turn(NOW) == 1
    (made,) = own(journal)
    assert (made.rung, made.source, made.issued_at) == (Rung.PROFILE, PROFILE, NOON)
    assert made.slots[0].start <= NOW < made.slots[0].end
    assert made.slots[-1].end >= NOW + 72 * HOUR
    assert "profile" in made.model


def test_the_provider_s_forecast_goes_in_and_gives_its_time(journal: Journal) -> None:
    """The blend is as old as what the provider said; beyond its end our own goes on."""
    tell(journal, 8 * 24)
    issue(journal, NOON - 3 * HOUR, hours=24)
    Forecaster(journal, SIGNAL, series()).turn(NOW)
    (made,) = own(journal)
    assert (made.rung, made.source, made.issued_at) == (Rung.ISSUED, BLEND, NOON - 3 * HOUR)
    assert made.slots[0].g_per_kwh == 90.0
    assert made.slots[-1].g_per_kwh != 90.0
    assert made.slots[-1].end >= NOW + 72 * HOUR


@pytest.mark.parametrize(("age_h", "hours"), [(25, 48), (3, 3)])
def test_a_forecast_that_is_old_or_over_does_not_go_in(
    journal: Journal, age_h: int, hours: int
) -> None:
    """A day old, or at its end before now: the profile stands alone."""
    tell(journal, 8 * 24)
    issue(journal, NOON - age_h * HOUR, hours=hours)
    Forecaster(journal, SIGNAL, series()).turn(NOW)
    assert [each.source for each in own(journal)] == [PROFILE]


def test_the_usual_day_is_kept_for_plans(journal: Journal) -> None:
    """What the cycle sees has the mean of every hour of the day; with less than a day nothing."""
    tell(journal, 20)
    forecaster = Forecaster(journal, SIGNAL, series())
    forecaster.turn(NOW)
    facts = SignalFacts(signal=SIGNAL, interval_s=3600.0, stale_after_s=3600.0)
    assert carbon_view(journal, facts, NOW).climatology is None
    tell(journal, 8 * 24)
    Forecaster(journal, SIGNAL, series()).turn(NOW + HOUR)
    usual = carbon_view(journal, facts, NOW).climatology
    assert usual is not None
    assert len(usual.hours) == 24
    assert usual.hours[0] == pytest.approx(200.0 + 50.0 * math.sin(1 / 24 * math.tau), abs=1e-3)
    assert (usual.low, usual.high) == pytest.approx((1.0, 1.0))


def test_nothing_new_makes_no_new_issue(journal: Journal) -> None:
    """Neither the same hour again, nor a restart within it; another value does."""
    tell(journal, 8 * 24)
    forecaster = Forecaster(journal, SIGNAL, series())
    assert [forecaster.turn(NOW) for _ in range(3)] == [1, 0, 0]
    assert Forecaster(journal, SIGNAL, series()).turn(NOW) == 0
    tell(journal, 1, until=NOON + HOUR)
    assert forecaster.turn(NOW + HOUR) == 1


@pytest.mark.parametrize(
    ("count", "quality", "late"),
    [
        (0, Quality.MEASURED, timedelta(0)),
        (8 * 24, Quality.PROVISIONAL, timedelta(0)),
        (8 * 24, Quality.STATIC, timedelta(0)),
        (8 * 24, Quality.MEASURED, timedelta(hours=73)),
    ],
)
def test_of_nothing_known_nothing_is_made(
    journal: Journal, count: int, quality: Quality, late: timedelta
) -> None:
    """Stand-ins and static numbers are no history, and one that ended three days ago is too old."""
    tell(journal, count, quality=quality)
    assert Forecaster(journal, SIGNAL, series()).turn(NOW + late) == 0
    assert own(journal) == []


@pytest.mark.parametrize(("interval_s", "day_s"), [(420.0, 86_400.0), (1.25, 60.0)])
def test_where_hours_cannot_be_made_the_plain_profile_is(
    journal: Journal, interval_s: float, day_s: float
) -> None:
    """Intervals that divide no hour, and recordings whose day is a minute."""
    tell(journal, int(3 * day_s / interval_s), interval_s=interval_s)
    assert Forecaster(journal, SIGNAL, series(interval_s, day_s)).turn(NOON) == 1
    (made,) = own(journal)
    assert made.model == "anchored profile"
    assert made.slots[0].start <= NOON < made.slots[0].end


def test_a_preview_is_the_same_forecast_and_leaves_nothing(journal: Journal) -> None:
    """For signals that nobody decides on: made when somebody asks, with nothing stored."""
    tell(journal, 8 * 24)
    issue(journal, NOON - 3 * HOUR, hours=24)
    shown = Forecaster(journal, SIGNAL, series()).preview(NOW)
    assert own(journal) == []
    assert journal.forecasts.skill(SIGNAL) == ""
    Forecaster(journal, SIGNAL, series()).turn(NOW)
    (made,) = own(journal)
    assert shown is not None
    rounded = [round(each.g_per_kwh, 3) for each in shown.slots]
    assert rounded == [each.g_per_kwh for each in made.slots]
    assert (shown.rung, shown.source, shown.model) == (made.rung, made.source, made.model)


def test_a_preview_without_a_past_is_what_the_provider_says(journal: Journal) -> None:
    """A series that is only ever expected; without that there is nothing to show."""
    forecaster = Forecaster(journal, SIGNAL, series())
    assert forecaster.preview(NOW) is None
    issue(journal, NOON, hours=24)
    shown = forecaster.preview(NOW)
    assert shown is not None
    assert shown.source == "neso"
    tell(journal, 20, interval_s=420.0)
    plain = Forecaster(journal, SIGNAL, series(420.0)).preview(NOW)
    assert plain is not None
    assert plain.source == "neso"
