"""The band follows what came of earlier ones, and of nothing that is not known yet."""

import math

import numpy as np
import pytest

from tests.policies.forecasting.windy import DAY
from wattmesh.policies.forecast.exogenous import Array
from wattmesh.policies.forecast.foresight_band import IssuedBand, calibrated

HOURS = 60 * DAY
SPREAD = 0.1
OUTER = 1.2816
"""A tenth of a normal distribution lies beyond so many standard deviations."""


def came() -> Array:
    """Hours around 100 g/kWh, a tenth off."""
    chance = np.random.default_rng(5).standard_normal(HOURS)
    return np.asarray(100.0 * np.exp(SPREAD * chance))


def band(width: float) -> Array:
    """A forecast of 24 hours whose band is so many times as wide as it should be."""
    edge = np.exp(OUTER * SPREAD * width)
    return np.stack([np.full(DAY, 100.0), np.full(DAY, 100.0 / edge), np.full(DAY, 100.0 * edge)])


def issues(width: float, until: int = HOURS) -> list[IssuedBand]:
    """Such bands, one each day."""
    return [IssuedBand(origin=at, told=band(width)) for at in range(0, until, DAY)]


def factor(told: Array, width: float, lead: int = 24) -> float:
    """How much wider the upper edge became so far ahead, in logarithms."""
    return math.log(told[2][lead - 1] / 100.0) / (OUTER * SPREAD * width)


@pytest.mark.parametrize("width", [0.6, 1.0, 1.7])
def test_a_band_that_proved_wrong_is_put_right(width: float) -> None:
    """Most of the way; a right one stays, and the value stays always."""
    told = calibrated(band(width), issues(width), came().tolist())
    assert told[0].tolist() == band(width)[0].tolist()
    assert factor(told, width) == pytest.approx((1 / width) ** (30 / 45), rel=0.08)
    assert told[1][0] * told[2][0] == pytest.approx(1e4)


def test_hours_so_far_ahead_are_judged_by_hours_as_far_ahead() -> None:
    """A band that was too wide for the first three hours alone is narrowed there alone."""
    wide = band(1.0)
    wide[:, :3] = band(2.0)[:, :3]
    issued = [IssuedBand(origin=at, told=wide) for at in range(0, HOURS, DAY)]
    told = calibrated(wide, issued, came().tolist())
    assert factor(told, 2.0, lead=2) < 0.75
    assert factor(told, 1.0) == pytest.approx(1.0, abs=0.1)


def test_little_evidence_changes_little() -> None:
    """After one day hardly anything, before it nothing."""
    values = came()
    assert np.array_equal(calibrated(band(2.0), [], values.tolist()), band(2.0))
    now = issues(2.0, 1)
    assert np.array_equal(calibrated(band(2.0), now, []), band(2.0))
    assert factor(calibrated(band(2.0), now, values[:DAY].tolist()), 2.0) > 0.9


def test_hours_to_come_are_not_looked_at() -> None:
    """Bands issued later, and hours of running ones that are not observed yet, change nothing."""
    values, now = came().tolist(), 40 * DAY + 6
    told = calibrated(band(1.5), issues(1.5, now), values[:now])
    assert np.array_equal(told, calibrated(band(1.5), issues(1.5), values[:now]))
    # A twin that is told what comes next gives another band.
    assert not np.array_equal(told, calibrated(band(1.5), issues(1.5), values[: now + DAY]))


def test_history_may_be_cut_at_its_beginning() -> None:
    """Origins are counted from elsewhere than the values: the same outcomes, the same band."""
    values, cut = came().tolist(), 10 * DAY
    whole = calibrated(band(1.5), issues(1.5)[10:], values)
    assert np.array_equal(calibrated(band(1.5), issues(1.5), values[cut:], cut), whole)


def test_unknown_hours_say_nothing() -> None:
    """Neither those that were not observed nor those without a forecast."""
    blind = band(1.5)
    blind[:, 6:] = np.nan
    nothing = [math.nan] * HOURS
    assert np.array_equal(calibrated(band(1.5), issues(1.5), nothing), band(1.5))
    told = calibrated(blind, [IssuedBand(origin=0, told=blind)], came()[:DAY].tolist())
    assert np.isfinite(told[2][:6]).all()
    assert not np.isfinite(told[2][6:]).any()
