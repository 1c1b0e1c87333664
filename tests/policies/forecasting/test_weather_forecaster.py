"""The forecaster rehearses, learns from its own errors, and reads nothing that is not known yet."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.policies.forecasting.windy import DAY, intensity, panel, wind_mw
from tests.policies.forecasting.worlds import START
from wattmesh.policies.forecast import foresight_band
from wattmesh.policies.forecast.exogenous import Array, Panel
from wattmesh.policies.forecast.foresight_band import IssuedBand
from wattmesh.policies.forecast.weather_forecaster import WeatherForecaster

DAYS = 118
NOW = 114 * DAY - DAY // 2
"""Noon: the next day's forecasts have not come yet."""
REHEARSED = 5 * DAY


class _Seeing(Panel):
    """A sabotaged panel: it hides nothing that was not issued yet."""

    def until(self, origin: int) -> Panel:
        return self


@pytest.fixture(scope="module")
def world() -> tuple[Array, Panel]:
    """A windy grid, and what was forecast of its wind."""
    wind = wind_mw(DAYS)
    return intensity(wind), panel(wind)


def told(values: Array, beside: Panel) -> list[list[float]]:
    """The first forecast that is made of them."""
    made = WeatherForecaster(7 * DAY, REHEARSED).expect(values[:NOW].tolist(), START, beside, None)
    assert made is not None
    return made.told


def garbled(beside: Panel) -> Panel:
    """Another world from now on: what was not issued yet is something else."""
    later = beside.known_at > NOW
    return replace(beside, values=np.where(later, 9_999.0 - beside.values, beside.values))


def seeing(beside: Panel) -> Panel:
    """The same for a twin that looks at all there is, as if all had been issued long before."""
    return _Seeing(
        start=beside.start,
        kinds=beside.kinds,
        values=beside.values,
        known_at=np.full_like(beside.known_at, -1e6),
    )


def test_what_is_issued_later_changes_nothing_and_a_twin_that_peeks_is_caught(
    world: tuple[Array, Panel],
) -> None:
    """Neither value nor band; the same check fails for a panel that hides nothing."""
    values, beside = world
    honest = np.array(told(values, beside))
    assert np.array_equal(honest, np.array(told(values, garbled(beside))), equal_nan=True)
    other = garbled(beside)
    assert not np.array_equal(
        np.array(told(values, seeing(beside))),
        np.array(told(values, seeing(other))),
        equal_nan=True,
    )


def test_rehearsals_read_only_what_was_known_at_their_own_moment(
    world: tuple[Array, Panel],
) -> None:
    """Their bands come from lessons of before, and are what that moment would have issued."""
    values, beside = world
    forecaster = WeatherForecaster(7 * DAY, REHEARSED)
    bands = forecaster._rehearse(values[:NOW].tolist(), START, beside)
    begun = NOW - REHEARSED
    assert [each.origin - bands[0].origin for each in bands] == list(range(0, REHEARSED, 11))
    alone = WeatherForecaster(7 * DAY, 0).expect(values[:begun].tolist(), START, beside, None)
    assert alone is not None
    value = np.array(alone.told)[0, : alone.by_weather]
    first = bands[0].told[0]
    # The first hours lean on the past alone as well, which `alone` was not given.
    assert np.allclose(first[6:], value[6 : len(first)])


def test_a_band_that_turned_out_too_wide_is_narrowed(
    world: tuple[Array, Panel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a band twice as wide as left-out errors say, the rehearsal takes most of that back."""
    values, beside = world
    monkeypatch.setattr(foresight_band, "WIDER", 2 * foresight_band.WIDER)
    monkeypatch.setattr(foresight_band, "TRUSTED", 1.0)
    known = values[:NOW].tolist()
    widths = []
    for rehearsed in (0, REHEARSED):
        made = WeatherForecaster(7 * DAY, rehearsed).expect(known, START, beside, None)
        assert made is not None
        _, low, high = np.array(made.told)[:, : made.by_weather]
        widths.append(float(np.log(high / low).mean()))
    assert widths[1] < 0.75 * widths[0]


def test_going_back_in_time_forgets_the_bands_of_later(world: tuple[Array, Panel]) -> None:
    """A daemon whose clock was set back, or a replay asked again, uses none from its future."""
    values, beside = world
    forecaster = WeatherForecaster(60 * DAY, 0)
    for origin in (NOW, NOW - 5 * DAY):
        forecaster.expect(values[:origin].tolist(), START, beside, None)
    origins = list(_origins(forecaster._issued))
    assert origins == [max(origins)]


def _origins(issued: list[IssuedBand] | None) -> Iterator[int]:
    return (each.origin for each in issued or ())
