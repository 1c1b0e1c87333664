"""Our forecast with exogenous series: what the coming wind, sun and weather make of the past. Pure.

Two functions of the series' past and of the exogenous forecasts are fitted and averaged (in
logarithms): one corrects the anchored profile; the other first says what the weather, the hour and
the season alone would give, follows the last errors of that as the anchored profile follows values,
and corrects the result. Series that came late, and so are unknown for most of the past, correct the
average linearly, as far as that helps in left-out weeks. The spread of left-out errors gives the
quantiles.

Invariant: what is learned at one moment reads nothing that was not known then; an hour without its
exogenous forecasts is left to the forecast from the past alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from wattmesh.policies.forecast.exogenous import (
    EARLIEST,
    FARTHEST,
    Array,
    Indices,
    LeadPairs,
    Panel,
    Past,
    exogenous_features,
)
from wattmesh.policies.forecast.foresight_band import Band, band_of
from wattmesh.policies.forecast.kernel_ridge import KernelRidge, Standard, fit, standard
from wattmesh.policies.forecast.lookback import DAY, filled, look_back

LEAST = 60 * DAY
"""Hours of a series with exogenous forecasts before anything is learned of them."""
MOST = 550 * DAY
"""Hours that are learned from at most: a year and a half holds each season."""
RECALLED = 70 * DAY
"""Hours that a forecast looks back on: more than any feature does."""
FOLD = 15 * DAY
FOLDS = 6
"""Stretches of so many hours are left out in turn, six sets of them."""
USED = 0.6
"""Share of the past that a column must be known in; below, it came late."""
SMALL = 400
"""Landmarks of the function of weather alone."""
LEVEL_SINCE, LEVEL_UNTIL = 28 * DAY + FARTHEST, FARTHEST
"""The level of an hour is the mean of these hours before it: known at each of its origins."""
LARGEST = 1.5
"""Errors are cut at so much in logarithms."""
LATE_LEAST = 14 * DAY
"""Hours in which a late column must be known before it is used."""
LATE_PENALTIES = (0.1, 1.0)
"""Ridge penalties that are tried for late columns, per row; the third choice is not to use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A linear correction by columns that came late."""

    columns: tuple[int, ...]
    standard: Standard
    coefficients: Array

    def __call__(self, panel: Panel, pairs: LeadPairs) -> Array:
        """Give the correction of each pair, in logarithms."""
        x = self.standard(exogenous_features(panel.only(self.columns), pairs))
        told: Array = x @ self.coefficients
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """What one series taught together with its exogenous series.

    Attributes:
        columns: of the panel that are used throughout.
        usual: the logarithm of an hour over its level, by weather, hour and season.
        left_out: errors of `usual` in the hours learned from, as functions fitted without them
            would make them; they start at `since`.
        near, after: corrections of the anchored profile, and of `usual` after its last errors.
        band: quantiles of the errors that are left.
    """

    columns: tuple[int, ...]
    since: datetime
    usual: KernelRidge
    left_out: Array
    near: KernelRidge
    after: KernelRidge
    late: Late | None
    band: Band

    def expect(self, values: Sequence[float], start: datetime, panel: Panel) -> list[list[float]]:
        """Forecast the hours after `values`: g/kWh, their 10 % and their 90 % quantiles.

        Args:
            values: as in `learn`, and what was observed since.
            start: when the first of them starts.
            panel: as in `learn`; what is not known at the end of `values` is not read.

        Returns:
            `FARTHEST` hours each, NaN where too few exogenous forecasts are known.
        """
        first = max(0, len(values) - RECALLED)
        origin = len(values) - first
        seen = panel.until(len(values)).since(first).complete(origin + FARTHEST)
        hours = origin + np.arange(FARTHEST)
        pairs = LeadPairs(origins=np.full(FARTHEST, origin), hours=hours)
        past = Past.of(filled(values[first:]), seen.start)
        view = _view(past, seen, self.columns)
        offset = round((self.since - seen.start).total_seconds() / 3600)
        off = view.off(self.usual, self.left_out, offset, hours)
        told = _combined(view, pairs, off, self)
        if self.late is not None:
            told = told + self.late(seen, pairs)
        level = past.back.level(pairs.origins)
        value = np.clip(np.exp(told), 0.02 * level, 20.0 * level)
        unknown = np.isnan(view.used.values[hours]).mean(axis=1) > 1 - USED
        value = np.where(unknown, np.nan, value)
        low, high = self.band(value, pairs.leads, (hours + seen.start.hour) % DAY)
        return [value.tolist(), low.tolist(), high.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A past and its panel, with what both functions need of every hour."""

    past: Past
    used: Panel
    level: Array

    def of_weather(self, hours: Indices) -> Array:
        """Features of `usual`: calendar, level, and what is forecast of the hour and its day."""
        size = len(self.used.kinds)
        pairs = LeadPairs(origins=np.full(len(hours), np.iinfo(np.int64).max // 2), hours=hours)
        told = exogenous_features(self.used, pairs)
        return np.concatenate(
            [
                self.past.calendar(hours),
                np.log(self.level[hours])[:, None],
                told[:, :size],
                told[:, 3 * size : 4 * size],
            ],
            axis=1,
        )

    def features(self, pairs: LeadPairs) -> tuple[Array, Array]:
        """What the past, and what calendar and forecasts say of each pair."""
        past = self.past.features(pairs, self.past.profile(pairs))
        weather = exogenous_features(self.used, pairs)
        return past, np.concatenate([self.past.calendar(pairs.hours), weather], axis=1)

    def off(self, usual: KernelRidge, left_out: Array, offset: int, asked: Indices) -> "_Off":
        """Errors of `usual` in every observed hour, and what it says of the hours asked for."""
        values = self.past.back.values
        observed = np.arange(EARLIEST, len(values))
        first, last = max(0, offset), min(len(values), offset + len(left_out))
        # The function is costly, and is not asked where its left-out errors are known.
        since = observed[(observed < first) | (observed >= last)]
        hours = np.union1d(since, asked[asked >= EARLIEST])
        usual_log = np.zeros(len(self.level))
        usual_log[hours] = usual(self.of_weather(hours))
        errors = np.zeros(len(values))
        errors[since] = (
            np.log(_positive(values)[since]) - np.log(self.level[since]) - usual_log[since]
        )
        if last > first:
            errors[first:last] = left_out[first - offset : last - offset]
        return _Off(
            errors=np.clip(errors, -LARGEST, LARGEST), usual=usual_log, clock=self.past.start.hour
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Off:
    """Errors of the function of weather alone, in logarithms, and its values."""

    errors: Array
    usual: Array
    clock: int

    def features(self, pairs: LeadPairs) -> Array:
        """Errors of the last hours and days, and where they are going, shape (pairs, 6)."""
        back = look_back(self.errors, self.clock)
        same = pairs.origins + (pairs.leads - 1) % DAY
        columns = [
            back.values[same - DAY],
            back.week[same],
            back.mean(pairs.origins, 3),
            back.mean(pairs.origins, DAY),
            back.mean(pairs.origins, 7 * DAY),
            self.expected(pairs),
        ]
        return np.stack(columns, axis=-1)

    def expected(self, pairs: LeadPairs) -> Array:
        """Follow the errors as the anchored profile follows values."""
        back = look_back(self.errors, self.clock)
        unique, place = np.unique(pairs.origins, return_inverse=True)
        told: Array = back.anchored(unique, np.arange(1, FARTHEST + 1))[place, pairs.leads - 1]
        return told


def learn(values: Sequence[float], start: datetime, panel: Panel) -> Foresight | None:
    """Learn from whole hours and what was forecast of them.

    Args:
        values: g/kWh, oldest first, NaN where unknown; the last `MOST` are looked at.
        start: when the first of them starts, aware UTC; `panel` starts there too.
        panel: what is not known at the end of `values` is not read.

    Returns:
        None when too little is known of either.
    """
    first = max(0, len(values) - MOST)
    told = np.array(values[first:], dtype=np.float64)
    seen = panel.until(len(values)).since(first).complete(len(told) + FARTHEST)
    known = np.isfinite(seen.values[: len(told)])
    rows = np.flatnonzero((told > 0) & (np.arange(len(told)) >= EARLIEST + FARTHEST))
    if len(rows) < LEAST:
        return None
    columns = tuple(np.flatnonzero(known[rows].mean(axis=0) >= USED).tolist())
    if not columns:
        return None
    past = Past.of(filled(values[first:]), seen.start)
    view = _view(past, seen, columns)
    rows = rows[~np.isnan(view.used.values[rows]).all(axis=1)]
    if len(rows) < LEAST:
        return None
    return _learned(view, seen, told, rows, columns)


def _learned(
    view: _View, seen: Panel, told: Array, rows: Indices, columns: tuple[int, ...]
) -> Foresight:
    weights = np.ones(len(rows))
    target = np.log(told[rows])
    folds = rows // FOLD % FOLDS
    usual = fit(
        view.of_weather(rows),
        np.clip(target - np.log(view.level[rows]), -LARGEST, LARGEST),
        weights,
        folds,
        landmarks=SMALL,
    )
    left_out = np.zeros(len(told))
    left_out[rows] = target - np.log(view.level[rows]) - usual.left_out
    off = view.off(usual.function, left_out, 0, rows)
    pairs = _paired(rows, view.used)
    past, weather = view.features(pairs)
    profile = np.log(view.past.profile(pairs))
    x = np.concatenate([past, weather], axis=1)
    near = fit(x, np.clip(target - profile, -LARGEST, LARGEST), weights, folds)
    base = _after(view, pairs, off)
    y = np.concatenate([x, off.features(pairs), (base - profile)[:, None]], axis=1)
    after = fit(y, np.clip(target - base, -LARGEST, LARGEST), weights, folds)
    expected = 0.5 * (profile + near.left_out) + 0.5 * (base + after.left_out)
    late, expected = _late(seen, pairs, target, expected, columns)
    clock = (rows + seen.start.hour) % DAY
    ages = len(told) - rows
    return Foresight(
        columns=columns,
        since=seen.start,
        usual=usual.function,
        left_out=left_out,
        near=near.function,
        after=after.function,
        late=late,
        band=band_of(target - expected, pairs.leads, clock, ages),
    )


def _view(past: Past, seen: Panel, columns: tuple[int, ...]) -> _View:
    """Prepare what is needed of every hour of a panel."""
    values = past.back.values
    sums = past.back.sums
    hours = np.arange(len(seen.values))
    until = np.clip(hours - LEVEL_UNTIL, 1, len(values))
    since = np.minimum(np.clip(hours - LEVEL_SINCE, 0, None), until - 1)
    level = (sums[until] - sums[since]) / (until - since)
    floor = 1e-3 * max(float(values.mean()), 1e-9)
    return _View(past=past, used=seen.only(columns), level=np.maximum(level, floor))


def _positive(values: Array) -> Array:
    """Keep values off zero, so that they have a logarithm."""
    told: Array = np.maximum(values, 1e-3 * max(float(values.mean()), 1e-9))
    return told


def _paired(rows: Indices, used: Panel) -> LeadPairs:
    """Give each hour one origin at which its forecasts were known, at leads spread evenly."""
    known_at = np.where(np.isfinite(used.known_at[rows]), used.known_at[rows], -np.inf).max(axis=1)
    most = np.clip(rows - known_at + 1, 1, FARTHEST)
    # Multiples of the golden ratio spread evenly whatever the number of rows.
    spread = np.arange(len(rows)) * 0.6180339887498949 % 1.0
    leads = 1 + np.floor(spread * most).astype(np.int64)
    return LeadPairs(origins=rows - leads + 1, hours=rows)


def _after(view: _View, pairs: LeadPairs, off: _Off) -> Array:
    """What weather alone gives, after its last errors, as a logarithm."""
    told: Array = np.log(view.level[pairs.hours]) + off.usual[pairs.hours] + off.expected(pairs)
    return told


def _combined(view: _View, pairs: LeadPairs, off: _Off, lessons: Foresight) -> Array:
    """Average both functions, as logarithms of g/kWh."""
    past, weather = view.features(pairs)
    profile = np.log(view.past.profile(pairs))
    x = np.concatenate([past, weather], axis=1)
    base = _after(view, pairs, off)
    y = np.concatenate([x, off.features(pairs), (base - profile)[:, None]], axis=1)
    told: Array = 0.5 * (profile + lessons.near(x)) + 0.5 * (base + lessons.after(y))
    return told


def _late(
    seen: Panel, pairs: LeadPairs, target: Array, expected: Array, columns: tuple[int, ...]
) -> tuple[Late | None, Array]:
    """Correct by columns with a short history, if that lowers the error on left-out weeks."""
    others = tuple(each for each in range(len(seen.kinds)) if each not in columns)
    rest = np.clip(target - expected, -LARGEST, LARGEST)
    x = exogenous_features(seen.only(others), pairs)
    rows = np.flatnonzero(~np.isnan(x).any(axis=1)) if others else np.array([], dtype=np.int64)
    if len(rows) < LATE_LEAST:
        return None, expected
    scaled = standard(x[rows])
    z, y = scaled(x[rows]), rest[rows]
    # Weeks, not days, are left out: errors of neighbouring days go together.
    folds = np.arange(len(rows)) * FOLDS // len(rows)
    best, error = None, float(np.abs(y).sum())
    for penalty in LATE_PENALTIES:
        said = np.empty(len(rows))
        for fold in range(FOLDS):
            part = folds == fold
            said[part] = z[part] @ _ridge(z[~part], y[~part], penalty)
        if float(np.abs(y - said).sum()) < error:
            best, error = (penalty, said), float(np.abs(y - said).sum())
    if best is None:
        return None, expected
    corrected = expected.copy()
    corrected[rows] += best[1]
    late = Late(columns=others, standard=scaled, coefficients=_ridge(z, y, best[0]))
    return late, corrected


def _ridge(z: Array, y: Array, penalty: float) -> Array:
    gram = z.T @ z + penalty * len(z) * np.eye(z.shape[1])
    return np.asarray(np.linalg.solve(gram, z.T @ y), dtype=np.float64)
