"""How good the forecast with day-ahead wind, sun and weather is, beside DACF's own.

Every six hours of the scored months each rule forecasts 48 hours from what was known then; ours is
that of replay and daemon, and learns anew every two weeks. DACF issues at each midnight (UTC),
knowing the observed hours of the days before, for the 24 hours of the day: `day_ahead_mape` is
ours on exactly these hours, issued then; `evening_mape` is ours for the same hours issued at 18:00
the day before, when the day's forecasts have just come. Invariant: no rule sees a value of the
hours it forecasts, nor an exogenous forecast that was not issued yet; hours that DACF or the truth
lacks are not compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Goal
from wattmesh.controller.replay.weather_file import WeatherZone, read_weather
from wattmesh.controller.replay.weather_labels import DAY, Array
from wattmesh.errors import InputInvalid
from wattmesh.policies.forecast.predict import Lessons, predict, teach
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastSource
from wattmesh.policies.forecast.weather_forecaster import WeatherForecaster

EVERY_H = 6
LEADS = 48
SHOWN = (1, 6, 24, 48)
AGAIN_H = 14 * DAY
RULES: Mapping[str, ForecastSource] = {
    "last": ForecastSource.LAST,
    "day": ForecastSource.DAY,
    "profile": ForecastSource.PROFILE,
    "past": ForecastSource.OWN,
}
TUNED_ON = frozenset({"CISO", "DE", "PJM"})
TUNED_WORDS = (
    "structure and constants on the training months of CISO, DE and PJM (to June 2021) alone, "
    "learned to December 2020 and scored on the half year after it; nothing on any scored month"
)
ISSUED_WORDS = "the forecasts of a day count as known from 18:00 UTC of the day before"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayAheadScore:
    """One zone. `over_dacf`: our error over DACF's on the same hours; None without DACF's."""

    row: Mapping[str, Any]
    over_dacf: float | None
    covered: int
    counted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What was forecast: arrays of shape (origins, leads), NaN where unknown."""

    origins: Array
    truth: Array
    rules: Mapping[str, Array]
    low: Array
    high: Array


def score_file(path: Path) -> DayAheadScore | str:
    """Score a file, or say why it cannot be; here, for a spawned process knows no `__main__`."""
    try:
        return score_zone(read_weather(path))
    except InputInvalid as error:
        return str(error)


def score_zone(zone: WeatherZone, most_days: int = 400) -> DayAheadScore:
    """Forecast the scored months of a zone, or their first days, and compare."""
    made = _forecast(zone, most_days)
    rival = _ahead(zone.rival, made.origins)
    row: dict[str, Any] = {
        "file": zone.file,
        "zone": zone.zone,
        "scored_hours": int(np.isfinite(zone.target[zone.scored :]).sum()),
        "issued": ISSUED_WORDS,
        "rows_moved_h": zone.labelled(),
        "tuned": TUNED_WORDS,
        "seen": "its training months" if zone.zone in TUNED_ON else "nothing of this zone",
    }
    for name, told in made.rules.items():
        errors = _errors(told, made.truth)
        row |= {f"{name}_mape_at_{lead}h": _percent(errors[:, lead - 1]) for lead in SHOWN}
    midnight, evening = made.origins % DAY == 0, made.origins % DAY == DAY - EVERY_H
    dacf = _errors(rival, made.truth)[midnight, :DAY]
    for name, told in made.rules.items():
        row[f"{name}_day_mape"] = _percent(_errors(told, made.truth)[midnight, :DAY])
    ours = _errors(made.rules["ours"], made.truth)
    both = np.isfinite(dacf) & np.isfinite(ours[midnight, :DAY])
    row["compared_hours"] = int(both.sum())
    row["dacf_mape"] = _percent(dacf[both])
    row["day_ahead_mape"] = _percent(ours[midnight, :DAY][both])
    row["evening_mape"] = _percent(ours[evening, EVERY_H : EVERY_H + DAY])
    over = row["day_ahead_mape"] / row["dacf_mape"] if row["dacf_mape"] else None
    row["over_dacf"] = over
    known = np.isfinite(made.low) & np.isfinite(made.truth)
    inside = known & (made.truth >= made.low) & (made.truth <= made.high)
    row["coverage80"] = 100.0 * float(inside.sum() / known.sum()) if known.any() else None
    return DayAheadScore(
        row=row, over_dacf=over, covered=int(inside.sum()), counted=int(known.sum())
    )


def day_ahead_goals(scores: Sequence[DayAheadScore]) -> tuple[Goal, ...]:
    """Give the design's figures over all zones; None where nothing could be compared."""
    over = [each.over_dacf for each in scores if each.over_dacf is not None]
    counted = sum(each.counted for each in scores)
    pooled = 100.0 * sum(each.covered for each in scores) / counted if counted else None
    return (
        Goal(
            name="dayahead_over_dacf",
            value=float(np.mean(over)) if over else None,
            goal=0.9,
            op="<=",
        ),
        Goal(name="dayahead_over_dacf_worst", value=max(over, default=None), goal=1.0, op="<="),
        Goal(name="dayahead_coverage80", value=pooled, goal=75.0, op=">="),
        Goal(name="dayahead_coverage80_most", value=pooled, goal=85.0, op="<="),
    )


def _forecast(zone: WeatherZone, most_days: int) -> _Made:
    """Run every rule over the scored months."""
    end = min(len(zone.target), zone.scored + most_days * DAY)
    origins = np.arange(zone.scored, end, EVERY_H)
    truth = _ahead(zone.target, origins.astype(float))
    rules = {name: np.full(truth.shape, np.nan) for name in (*RULES, "ours")}
    low, high = np.full(truth.shape, np.nan), np.full(truth.shape, np.nan)
    past: Lessons | None = None
    forecaster = WeatherForecaster(AGAIN_H)
    for row, origin in enumerate(origins.tolist()):
        values = zone.known(origin)
        if values is None:
            continue
        known = Observed(start=zone.start, interval_s=3600.0, values=values.tolist())
        if past is None or origin % DAY == 0:
            past = teach(known)
        told = predict(known, now=known.end, hours=LEADS, lessons=past)
        for name, source in RULES.items():
            said = told.each.get(source, told.each.get(ForecastSource.PROFILE))
            if said is not None:
                rules[name][row] = said
        rules["ours"][row] = rules["past"][row]
        sighted = forecaster.expect(known.values, zone.start, zone.panel(origin), past)
        if sighted is not None:
            value, low_of, high_of = np.array(sighted.told)[:, :LEADS]
            seen = np.isfinite(value)
            rules["ours"][row, : len(value)][seen] = value[seen]
            reach = min(sighted.by_weather, LEADS)
            low[row, :reach], high[row, :reach] = low_of[:reach], high_of[:reach]
    return _Made(origins=origins.astype(float), truth=truth, rules=rules, low=low, high=high)


def _ahead(values: Array, origins: Array) -> Array:
    """Give the hours after each origin, NaN beyond the end."""
    more = np.concatenate([values, np.full(LEADS, np.nan)])
    return more[origins.astype(int)[:, None] + np.arange(LEADS)]


def _errors(told: Array, truth: Array) -> Array:
    """Absolute errors as shares of the truth."""
    return np.asarray(np.abs(told - truth) / truth, dtype=np.float64)


def _percent(errors: Array) -> float | None:
    known = errors[np.isfinite(errors)]
    return 100.0 * float(known.mean()) if len(known) else None
