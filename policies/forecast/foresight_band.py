"""The band of the forecast with exogenous series: quantiles of its left-out errors. Pure, numpy.

Errors are ratios. By the hour of the day they are wider or narrower, by lead they are counted
apart, and newer ones count more. `calibrated` then widens or narrows a band as bands that were
issued before proved too narrow or too wide, for each group of leads apart.

Invariant: a value without a forecast has no band; the low quantile is never below zero; no band
depends on what was observed after its issue.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.forecast.exogenous import FARTHEST, Array, Indices
from wattmesh.policies.forecast.learned import weighted_quantile
from wattmesh.policies.forecast.lookback import DAY

GROUPS = ((1, 3), (4, 8), (9, 16), (17, FARTHEST))
"""Leads whose errors are counted together."""
RECENT = 90.0 * DAY
"""Hours after which an error counts by e^-1."""
WIDER = 1.18
"""Left-out weeks lie between weeks that were learned from; the hours to come do not."""

KEPT = 90 * DAY
"""Hours for which issued bands are looked back on."""
FADING = 30.0 * DAY
"""Hours after which what came of an issued band counts by e^-1."""
TRUSTED = 15.0
"""Days of outcomes that count as much as the band's own width."""
INSIDE = 0.8
MOST_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedBand:
    """Value and both quantiles of the hours from `origin` on, before any calibration."""

    origin: int
    told: Array


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
        low.append(weighted_quantile(scaled[found], recent[found], 0.1))
        high.append(weighted_quantile(scaled[found], recent[found], 0.9))
    return Band(low=tuple(low), high=tuple(high), width=tuple(width.tolist()))


def calibrated(
    told: Array, issued: Sequence[IssuedBand], values: Sequence[float], first: int = 0
) -> Array:
    """Widen or narrow the band of what follows `values`, by what came of earlier ones.

    Args:
        told: value, 10 % and 90 % quantile.
        issued: earlier ones; hours beyond the end of `values` are not looked at.
        values: the observed hours, NaN where unknown.
        first: the hour of the first of them, counted as `IssuedBand.origin` is.
    """
    reaches, leads, ages = _came_of(issued, values, first)
    found: Array = told.copy()
    ahead = np.array([_group(lead) for lead in range(1, told.shape[1] + 1)], dtype=np.int64)
    for group in range(len(GROUPS)):
        mine, hours = leads == group, ahead == group
        if mine.any() and hours.any():
            factor = _factor(reaches[mine], ages[mine])
            found[1:, hours] = told[0, hours] * (told[1:, hours] / told[0, hours]) ** factor
    return found


def _came_of(
    issued: Sequence[IssuedBand], values: Sequence[float], first: int
) -> tuple[Array, Indices, Array]:
    """How far from the value each outcome was, as a share of the way to the band's edge.

    With the group of its lead, and its age in hours.
    """
    now = first + len(values)
    reaches, groups, ages = [np.empty(0)], [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for each in issued:
        if now - each.origin > KEPT or not first <= each.origin < now:
            continue
        at = each.origin - first
        seen = np.array(values[at : at + each.told.shape[1]], dtype=np.float64)
        value, low, high = each.told[:, : len(seen)]
        edge = np.where(seen > value, high, low)
        known = np.flatnonzero((seen > 0) & (value > 0) & (low > 0) & (edge != value))
        reaches.append(np.log(seen[known] / value[known]) / np.log(edge[known] / value[known]))
        groups.append(np.array([_group(int(hour) + 1) for hour in known], dtype=np.int64))
        ages.append((now - each.origin - known).astype(np.float64))
    return np.concatenate(reaches), np.concatenate(groups), np.concatenate(ages)


def _factor(reaches: Array, ages: Array) -> float:
    """Return the factor by which past bands were too narrow; few days pull it towards 1."""
    found = weighted_quantile(reaches, np.exp(-ages / FADING), INSIDE)
    days = min(len(np.unique(ages // DAY)), FADING / DAY)
    within = min(max(found, 1.0 / MOST_FACTOR), MOST_FACTOR)
    return float(within ** (days / (days + TRUSTED)))


def _group(lead: int) -> int:
    return next((at for at, (_, last) in enumerate(GROUPS) if lead <= last), len(GROUPS) - 1)
