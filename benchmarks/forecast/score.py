"""How good forecasts of one recorded zone are: ours beside the profile, a day ago, the last value.

Every twelve hours, after the first four weeks, each rule forecasts 72 hours from what was known
then. Ours is the product's own `predict`, which learns anew once a day. Invariant: no rule sees a
value of the hours it forecasts; hours that are not known are not scored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.forecast.data import Recorded
from wattmesh.policies.forecast.predict import predict, teach
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastSource

Array = NDArray[np.float64]

WARM_UP_H = 28 * 24
EVERY_H = 12
LEADS = 72
SHOWN = (1, 6, 24, 72)
CHOSEN, OF = 6, 24
"""The decision that is scored: which 6 of the next 24 hours to run in."""
RESAMPLES = 2000
WEEK_H = 168
RULES: Mapping[str, ForecastSource] = {
    "last": ForecastSource.LAST,
    "day": ForecastSource.DAY,
    "profile": ForecastSource.PROFILE,
    "ours": ForecastSource.OWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecasts:
    """What was forecast of one zone: arrays of shape (origins, leads), NaN where unknown."""

    origins: NDArray[np.int64]
    truth: Array
    rules: Mapping[str, Array]
    low: Array
    high: Array


def forecasts(recorded: Recorded) -> Forecasts:
    """Run every rule over a recorded zone."""
    hours = recorded.hours
    values = np.array(hours.values)
    origins = np.arange(WARM_UP_H, len(values) - LEADS + 1, EVERY_H)
    truth = np.stack([values[at : at + LEADS] for at in origins])
    shape = truth.shape
    rules = {name: np.full(shape, np.nan) for name in RULES}
    low, high = np.full(shape, np.nan), np.full(shape, np.nan)
    lessons = None
    for row, origin in enumerate(origins.tolist()):
        known = Observed(start=hours.start, interval_s=3600.0, values=hours.values[:origin])
        if row % (24 // EVERY_H) == 0:
            lessons = teach(known)
        told = predict(known, now=known.end, hours=LEADS, lessons=lessons)
        for name, source in RULES.items():
            said = told.each.get(source, told.each.get(ForecastSource.PROFILE))
            if said is not None:
                rules[name][row] = said
        for lead, slot in enumerate(told.slots):
            if slot.low_g_per_kwh is not None and slot.high_g_per_kwh is not None:
                low[row, lead], high[row, lead] = slot.low_g_per_kwh, slot.high_g_per_kwh
    return Forecasts(origins=origins, truth=truth, rules=rules, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one zone, percent where nothing else is said."""

    row: Mapping[str, Any]
    profile_mape_24h: float | None
    gain_24h: float
    gain_lower: float
    covered: int
    counted: int


def score_recorded(recorded: Recorded) -> Score:
    """Forecast a zone and score that; here, for a spawned process knows no `__main__`."""
    return score(forecasts(recorded))


def score(made: Forecasts) -> Score:
    """Compare what was forecast with what came."""
    shares = {name: _share_errors(told, made.truth) for name, told in made.rules.items()}
    row: dict[str, Any] = {"origins": len(made.origins)}
    for name in RULES:
        for lead in SHOWN:
            row[f"{name}_mape_at_{lead}h"] = _percent(shares[name][:, lead - 1])
            row[f"{name}_mape_to_{lead}h"] = _percent(shares[name][:, :lead])
        row[f"{name}_decision_value"] = _decision_value(made.rules[name], made.truth)
    for lead in SHOWN:
        row[f"gain_to_{lead}h"] = _gain(shares["profile"][:, :lead], shares["ours"][:, :lead])
    errors = {name: np.abs(made.rules[name] - made.truth)[:, :24] for name in ("profile", "ours")}
    row["gain_mae_to_24h"] = _gain(errors["profile"], errors["ours"])
    lower, upper = _bounds(made.origins, shares["profile"][:, :24], shares["ours"][:, :24])
    row["gain_to_24h_lower"], row["gain_to_24h_upper"] = lower, upper
    inside = (made.truth >= made.low) & (made.truth <= made.high)
    told = ~np.isnan(made.low) & ~np.isnan(made.truth)
    row["coverage80"] = 100.0 * float(inside[told].mean()) if told.any() else None
    row["pinball_percent"] = _pinball(made)
    row["oracle_saving"] = _oracle_saving(made.truth)
    return Score(
        row=row,
        profile_mape_24h=row["profile_mape_to_24h"],
        gain_24h=row["gain_to_24h"],
        gain_lower=lower,
        covered=int(inside[told].sum()),
        counted=int(told.sum()),
    )


def _share_errors(told: Array, truth: Array) -> Array:
    """Absolute errors as shares of the truth; NaN where that is unknown or zero."""
    return np.abs(told - truth) / np.where(truth > 0, truth, np.nan)


def _percent(shares: Array) -> float | None:
    """Mean of what is known, percent; None when nothing is."""
    told = shares[~np.isnan(shares)]
    return 100.0 * float(told.mean()) if len(told) else None


def _gain(theirs: Array, ours: Array) -> float:
    """By how many percent our mean error is smaller, over what both forecast."""
    both = ~np.isnan(theirs) & ~np.isnan(ours)
    return float(_gains(theirs[both].sum(), ours[both].sum()))


def _gains(theirs: ArrayLike, ours: ArrayLike) -> Array:
    """Percent less of a sum of errors; none where there was no error to make smaller."""
    told: Array = 100.0 * (1.0 - np.asarray(ours) / np.maximum(theirs, 1e-12))
    return np.where(np.maximum(theirs, ours) > 1e-9, told, 0.0)


def _bounds(origins: NDArray[np.int64], theirs: Array, ours: Array) -> tuple[float, float]:
    """95 % interval of the gain: whole weeks are drawn, as errors of one week go together."""
    both = ~np.isnan(theirs) & ~np.isnan(ours)
    weeks = np.unique(origins // WEEK_H, return_inverse=True)[1]
    sums = [np.bincount(weeks, np.where(both, each, 0.0).sum(axis=1)) for each in (theirs, ours)]
    count = len(sums[0])
    drawn = np.random.default_rng(20260101).integers(0, count, (RESAMPLES, count))
    gains = _gains(sums[0][drawn].sum(axis=1), sums[1][drawn].sum(axis=1))
    low, high = np.quantile(gains, [0.025, 0.975])
    return float(low), float(high)


def _decision_value(told: Array, truth: Array) -> float | None:
    """What choosing by the forecast saves, percent of what choosing by the truth saves."""
    whole = ~np.isnan(truth[:, :OF]).any(axis=1) & ~np.isnan(told[:, :OF]).any(axis=1)
    expected, true = told[whole, :OF], truth[whole, :OF]
    chosen = np.argsort(expected, axis=1, kind="stable")[:, :CHOSEN]
    best = np.sort(true, axis=1)[:, :CHOSEN].mean(axis=1)
    saved = true.mean(axis=1) - np.take_along_axis(true, chosen, axis=1).mean(axis=1)
    most = float((true.mean(axis=1) - best).sum())
    return 100.0 * float(saved.sum()) / most if most > 0 else None


def _oracle_saving(truth: Array) -> float:
    """What choosing with hindsight saves, percent of the mean: the most that a grid can pay."""
    true = truth[~np.isnan(truth[:, :OF]).any(axis=1), :OF]
    best = np.sort(true, axis=1)[:, :CHOSEN].mean(axis=1)
    return 100.0 * float(1.0 - best.sum() / true.mean(axis=1).sum())


def _pinball(made: Forecasts) -> float | None:
    """Mean pinball loss of the 10 %, 50 % and 90 % quantiles, percent of the mean truth."""
    told = ~np.isnan(made.low) & ~np.isnan(made.truth)
    if not told.any():
        return None
    truth = made.truth[told]
    losses = []
    for share, quantile in ((0.1, made.low), (0.5, made.rules["ours"]), (0.9, made.high)):
        off = truth - quantile[told]
        losses.append(np.maximum(share * off, (share - 1.0) * off).mean())
    return 100.0 * float(np.mean(losses) / truth.mean())
