"""The band of the forecast with exogenous series: quantiles of its left-out errors. Pure, numpy.

Errors are ratios. By the hour of the day they are wider or narrower, by lead they are counted
apart, and newer ones count more.

Invariant: a value without a forecast has no band; the low quantile is never below zero.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.policies.forecast.exogenous import FARTHEST, Array, Indices
from wattmesh.policies.forecast.lookback import DAY

GROUPS = ((1, 3), (4, 8), (9, 16), (17, FARTHEST))
"""Leads whose errors are counted together."""
RECENT = 90.0 * DAY
"""Hours after which an error counts by e^-1."""
WIDER = 1.18
"""Left-out weeks lie between weeks that were learned from; the hours to come do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Quantiles of errors as logarithms, per group of leads, and their width per hour of day."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    width: tuple[float, ...]

    def __call__(self, values: Array, leads: Indices, clock: Indices) -> tuple[Array, Array]:
        """Give the 10 % and the 90 % quantile of forecasts."""
        group = np.array([_group(int(lead)) for lead in leads], dtype=np.int64)
        width = np.array(self.width)[clock]
        low, high = np.array(self.low)[group] * width, np.array(self.high)[group] * width
        return values * np.exp(np.minimum(0.0, low)), values * np.exp(np.maximum(0.0, high))


def band_of(errors: Array, leads: Indices, clock: Indices, ages: Indices) -> Band:
    """Measure left-out errors.

    Args:
        errors: logarithms of observed over forecast.
        leads: hours ahead.
        clock: hour of the day, UTC.
        ages: hours since.
    """
    recent = np.exp(-ages / RECENT)
    total = np.bincount(clock, recent * np.abs(errors), DAY)
    count = np.bincount(clock, recent, DAY)
    typical = total / np.maximum(count, 1e-12)
    smooth = (typical + np.roll(typical, 1) + np.roll(typical, -1)) / 3
    width = np.clip(smooth / max(float(smooth.mean()), 1e-12), 0.3, 3.0)
    scaled = WIDER * errors / width[clock]
    low, high = [], []
    for first, last in GROUPS:
        part = (leads >= first) & (leads <= last)
        found = part if part.any() else np.ones(len(leads), dtype=bool)
        low.append(_quantile(scaled[found], recent[found], 0.1))
        high.append(_quantile(scaled[found], recent[found], 0.9))
    return Band(low=tuple(low), high=tuple(high), width=tuple(width.tolist()))


def _group(lead: int) -> int:
    return next((at for at, (_, last) in enumerate(GROUPS) if lead <= last), len(GROUPS) - 1)


def _quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])])
