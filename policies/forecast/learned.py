"""Our own forecast: the anchored profile, corrected by what the series itself taught. Pure, numpy.

Three regularised linear corrections of the anchored profile are learned from the last year of the
series and averaged; how much of the average is applied at each lead is decided on weeks that were
left out of the learning, and the spread of the same left-out errors gives the quantiles.

Invariant: what is learned at one moment reads no later value; a series of another scale gets the
same forecast in that scale; where left-out weeks show a clear loss, the anchored profile stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.forecast.lookback import (
    DAY,
    LONG,
    REACH,
    WEEK,
    Array,
    Indices,
    Lookback,
    filled,
    look_back,
)

LEAST = LONG + WEEK
"""Hours of history before anything is learned."""
MOST = 365 * DAY
"""Hours of history that are looked at."""
STRIDE = 5
"""Hours between the origins learned from: prime to 24, so every hour of the day occurs."""
FOLDS = 12
"""Stretches of the history that are left out in turn."""
GROUPS = tuple(
    np.arange(first, until)
    for first, until in [(at, at + 1) for at in range(1, 7)]
    + [(7, 10), (10, 13), (13, 17), (17, 21), (21, 25)]
    + [(at, at + 6) for at in range(25, REACH, 6)]
)
"""Leads that share their coefficients."""
SMALL = 9
"""So many of the features of a lead make the smaller of its two corrections."""
MODELS = 3
"""Corrections that are averaged: smaller and larger by lead, and by the shape of the last days."""
RIDGE = 0.2
"""How much a correction by lead is shrunk, as a share of the size of each feature."""
RIDGE_SHAPE = 3.0
"""The same of the correction by shape, in origins."""
MOSTLY = 0.75
"""An origin teaches by its shape when this share of its 72 hours is known."""
FULL = 240.0
"""Days of origins at which the ridge is as written; with fewer it is stronger."""
SHARES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
"""Shares of the mean correction that may be applied."""
LEAN = 0.1
"""Left-out weeks are harder than the hours to come, for which the weeks beside them were learned:
the whole correction is applied unless it loses so much there, in the two losses that are added."""
FLOOR = 0.2
"""Relative errors of values under this share of the week's mean weigh as if they were it."""
RECENT = 45.0 * DAY
"""Hours after which an error counts by e^-1 in the quantiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What one series taught, as of its last hour.

    Attributes:
        by_lead: coefficients of the features of each lead, shape (leads, features).
        by_shape: coefficients of the shape of the last days, shape (features, leads).
        low, high: per group, the 10 % and 90 % quantiles of the error as shares of the forecast.
        spread: per hour of the day (counted as origins are), how wide errors are against the mean.
    """

    by_lead: Array
    by_shape: Array
    low: Array
    high: Array
    spread: Array

    def expect(self, values: Sequence[float], clock: int) -> list[list[float]]:
        """Forecast the `REACH` hours after `values`; the arguments are those of `learn`.

        Returns:
            g/kWh, their 10 % and their 90 % quantiles. `values` may be longer than what was
            learned from.
        """
        back = _back(values, clock)
        origins = np.array([len(back.values)])
        leads = np.arange(1, REACH + 1)
        shape = back.shape(origins) @ self.by_shape * back.level(origins)[:, None]
        corrections = shape + (back.features(origins, leads) * self.by_lead).sum(axis=-1)
        point = _bounded(back, origins, back.anchored(origins, leads) + corrections)[0]
        hours = (back.clock + len(back.values) + np.arange(REACH)) % DAY
        wide = self.spread[hours] * point
        low = np.maximum(0.0, point + _per_lead(self.low) * wide)
        high = point + _per_lead(self.high) * wide
        return [point.tolist(), low.tolist(), high.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lessons:
    """Origins to learn from: targets of every lead, NaN where unknown, and the profile's word."""

    back: Lookback
    origins: Indices
    targets: Array
    profile: Array
    weights: Array
    folds: Indices
    ridge: float


def learn(values: Sequence[float], clock: int) -> Learned | None:
    """Learn from whole hours.

    Args:
        values: g/kWh, oldest first, NaN where unknown; the last `MOST` are looked at.
        clock: hour of the day, UTC, in which the first value starts.

    Returns:
        None when there are fewer than `LEAST` hours, or too few of them known.
    """
    lessons = _lessons(values, clock)
    if lessons is None:
        return None
    by_shape, corrections = _by_shape(lessons)
    by_lead = []
    for group in GROUPS:
        x = lessons.back.features(lessons.origins, group)
        small, small_out = _by_lead(lessons, x[:, :, :SMALL], group)
        large, large_out = _by_lead(lessons, x, group)
        corrections[:, group - 1] += small_out + large_out
        large[:SMALL] += small
        by_lead.append(large)
    corrections /= MODELS
    applied = _per_lead(_applied(lessons, corrections))
    expected = lessons.profile + corrections * applied
    low, high, spread = _quantiles(lessons, _bounded(lessons.back, lessons.origins, expected))
    return Learned(
        by_lead=_per_lead(np.array(by_lead)) * applied[:, None] / MODELS,
        by_shape=by_shape * applied / MODELS,
        low=low,
        high=high,
        spread=spread,
    )


def _back(values: Sequence[float], clock: int) -> Lookback:
    kept = values[-MOST:]
    return look_back(filled(kept), (clock + len(values) - len(kept)) % DAY)


def _lessons(values: Sequence[float], clock: int) -> _Lessons | None:
    """Lay out the origins to learn from; None when there are too few."""
    if len(values) < LEAST:
        return None
    back = _back(values, clock)
    hours = len(back.values)
    told = np.array(values[-MOST:], dtype=np.float64)
    known = np.concatenate([np.where(told >= 0, told, np.nan), np.full(REACH, np.nan)])
    origins = np.arange(LONG + (hours - LONG) % STRIDE, hours, STRIDE)
    leads = np.arange(1, REACH + 1)
    targets = known[origins[:, None] + leads - 1]
    fair = np.maximum(targets, FLOOR * back.level(origins)[:, None])
    # An origin whose last day is mostly a guess teaches nothing.
    holes = np.concatenate([[0], np.cumsum(np.isnan(known[:hours]))])
    seen = holes[origins] - holes[origins - DAY] <= DAY // 4
    weights = np.where(np.isnan(targets) | ~seen[:, None], 0.0, fair**-2.0)
    if np.count_nonzero(weights[:, 0]) < 3 * FOLDS:
        return None
    days = np.count_nonzero(weights[:, 0]) * STRIDE / DAY
    return _Lessons(
        back=back,
        origins=origins,
        targets=targets,
        profile=back.anchored(origins, leads),
        weights=weights,
        folds=np.arange(len(origins)) * FOLDS // len(origins),
        ridge=max(1.0, FULL / days),
    )


def _by_lead(lessons: _Lessons, x: Array, group: Indices) -> tuple[Array, Array]:
    """Learn one correction per group of leads: coefficients, and values at left-out origins."""
    weights = lessons.weights[:, group - 1]
    rest = np.where(weights > 0, lessons.targets[:, group - 1] - lessons.profile[:, group - 1], 0.0)
    weighed = x * weights[:, :, None]
    grams, sides = [], []
    for fold in range(FOLDS):
        part = lessons.folds == fold
        flat = weighed[part].reshape(-1, x.shape[-1])
        grams.append(flat.T @ x[part].reshape(-1, x.shape[-1]))
        sides.append(flat.T @ rest[part].reshape(-1))
    gram, side = sum(grams[1:], grams[0]), sum(sides[1:], sides[0])
    strength = RIDGE * lessons.ridge
    left_out = np.empty(weights.shape)
    for fold in range(FOLDS):
        part = lessons.folds == fold
        left_out[part] = x[part] @ _ridge(gram - grams[fold], side - sides[fold], strength)
    return _ridge(gram, side, strength), left_out


def _ridge(gram: Array, side: Array, strength: float) -> Array:
    """Solve for coefficients that are shrunk in proportion to the size of their feature."""
    size = np.diagonal(gram)
    shrunk = gram + np.diag(strength * size + 1e-12 * (size.sum() + 1e-300))
    return np.asarray(np.linalg.solve(shrunk, side), dtype=np.float64)


def _by_shape(lessons: _Lessons) -> tuple[Array, Array]:
    """Learn the correction of all leads from the shape of the last days, as shares of the level."""
    z = lessons.back.shape(lessons.origins)
    level = lessons.back.level(lessons.origins)[:, None]
    known = lessons.weights > 0
    over = lessons.origins + REACH <= len(lessons.back.values)
    told = over & (np.mean(known, axis=1) >= MOSTLY)
    rest = np.where(known & told[:, None], (lessons.targets - lessons.profile) / level, 0.0)
    size = np.sqrt(np.sum(z[told] ** 2, axis=0) / max(1, np.count_nonzero(told))) + 1e-12
    count = z.shape[1]
    scaled: Array = np.where(told[:, None], z / (size * np.sqrt(count / 3)), 0.0)
    parts = [np.flatnonzero(lessons.folds == fold) for fold in range(FOLDS)]
    grams = [scaled[part].T @ scaled[part] for part in parts]
    sides = [scaled[part].T @ rest[part] for part in parts]
    gram, side = sum(grams[1:], grams[0]), sum(sides[1:], sides[0])
    penalty = RIDGE_SHAPE * np.eye(count)
    left_out = np.empty_like(rest)
    for fold, part in enumerate(parts):
        theta = np.linalg.solve(gram - grams[fold] + penalty, side - sides[fold])
        left_out[part] = scaled[part] @ theta * level[part]
    theta = np.linalg.solve(gram + penalty, side)
    return theta / (size * np.sqrt(count / 3))[:, None], left_out


def _applied(lessons: _Lessons, corrections: Array) -> Array:
    """Choose per group the share of the correction that errs least at left-out origins."""
    fair = np.where(lessons.weights > 0, np.sqrt(lessons.weights), 0.0)
    rest = np.where(lessons.weights > 0, lessons.targets - lessons.profile, 0.0)
    loss = [(np.abs(rest - share * corrections) * fair).sum(axis=0) for share in SHARES]
    return chosen(np.array(loss))


def chosen(loss: Array) -> Array:
    """Give the share for each group of leads that lost least; the whole one when hardly worse.

    Groups lean on each other: half of the evidence is that of all leads together.

    Args:
        loss: of left-out origins, for each of `SHARES` and each lead, shape (shares, leads).
    """
    gains = loss / np.maximum(loss[0], 1e-300)
    each = np.stack([gains[:, group - 1].mean(axis=1) for group in GROUPS])
    told: Array = SHARES[np.argmin(each + gains.mean(axis=1) - LEAN * SHARES, axis=1)]
    return told


def _bounded(back: Lookback, origins: Indices, expected: Array) -> Array:
    """Keep a forecast within half the least and twice the most of the last days."""
    window = np.lib.stride_tricks.sliding_window_view(back.values, LONG)[origins - LONG]
    least, most = 0.5 * window.min(axis=1), 2.0 * window.max(axis=1)
    return np.clip(expected, least[:, None], most[:, None])


def _per_lead(per_group: Array) -> Array:
    return np.repeat(per_group, [len(group) for group in GROUPS], axis=0)


def _quantiles(lessons: _Lessons, expected: Array) -> tuple[Array, Array, Array]:
    """Spread of left-out errors: 10 % and 90 % per group, and how wide each hour of the day is."""
    told = lessons.weights > 0
    sound = np.maximum(expected, 1e-3 * lessons.back.level(lessons.origins)[:, None])
    errors = np.where(told, lessons.targets / sound - 1, 0.0)
    age = len(lessons.back.values) - lessons.origins
    recent = np.where(told, np.exp(-age / RECENT)[:, None], 0.0)
    hours = (lessons.back.clock + lessons.origins[:, None] + np.arange(REACH)) % DAY
    total = np.bincount(hours.ravel(), (recent * np.abs(errors)).ravel(), DAY)
    count = np.bincount(hours.ravel(), recent.ravel(), DAY)
    typical = total / np.maximum(count, 1e-12)
    smooth = (typical + np.roll(typical, 1) + np.roll(typical, -1)) / 3
    mean = max(float(smooth.mean()), 1e-12)
    spread = np.clip(smooth / mean, 0.3, 3.0)
    scaled = errors / spread[hours]
    low, high = [], []
    for group in GROUPS:
        part, weight = scaled[:, group - 1].ravel(), recent[:, group - 1].ravel()
        low.append(weighted_quantile(part, weight, 0.1))
        high.append(weighted_quantile(part, weight, 0.9))
    return np.array(low), np.array(high), spread


def weighted_quantile(values: Array, weights: Array, share: float) -> float:
    """Return the least value below or at which `share` of all weight lies."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])])
