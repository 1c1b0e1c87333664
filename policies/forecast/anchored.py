"""The anchored profile: a forecast of carbon intensity that needs eight days and no training. Pure.

The mean of each hour of the day over the last week, moved to meet the newest value and let back
to the profile over half a day. It is the rung below an issued forecast, and what every better
forecast is measured against. Plain Python, so that the daemon can fall back on it without loading
numpy.

Invariant: only values handed in are used; scaling them scales the forecast; unknown is never zero.
"""

import math
from collections.abc import Sequence

WEEK_DAYS = 7
HOURS_PER_DAY = 24
DECAY_H = 12.0
"""After so many hours e^-1 of the newest value's distance from the profile is left."""
LEVEL = 0.6
"""Share of the last day's distance from the last week that is expected to stay."""


def anchored_profile(
    values: Sequence[float], *, steps: int, per_day: int = HOURS_PER_DAY
) -> tuple[float, ...] | None:
    """Forecast the `steps` intervals that follow `values`.

    f(h) = P(h) + w (v - P') + 0.6 (1 - w) (mean of the last day - mean of the last week), with
    w = exp(-h / 12 h), P(h) the mean of the same time of day over the last seven days, v the
    newest value and P' the mean of its time of day over the seven days before it. The constants
    were set by hand on recorded grids (docs/forecast.md).

    Args:
        values: g/kWh of consecutive intervals, oldest first, NaN where unknown; more than eight
            days are not looked at, and with less the days there are take the place of the week.
        steps: how many intervals to forecast, >= 0.
        per_day: intervals in a day, >= 1.

    Returns:
        g/kWh, never below zero; None without one whole day or when nothing in it is known.
    """
    if per_day < 1 or steps < 0:
        raise ValueError(f"per_day {per_day} must be at least 1 and steps {steps} not negative")
    newest = values[-(WEEK_DAYS + 1) * per_day :]
    known = [value if math.isfinite(value) and value >= 0 else None for value in newest]
    days = min(WEEK_DAYS, len(known) // per_day)
    if days == 0:
        return None
    week = known[len(known) - days * per_day :]
    level = _mean(week)
    if level is None:
        return None
    profile = [_or(_mean(week[hour::per_day]), level) for hour in range(per_day)]
    anchor = _anchor(known, profile, per_day)
    drift = LEVEL * (_or(_mean(week[-per_day:]), level) - level)
    forecast = []
    for step in range(steps):
        weight = math.exp(-(step + 1) * HOURS_PER_DAY / per_day / DECAY_H)
        expected = profile[step % per_day] + weight * anchor + (1 - weight) * drift
        forecast.append(max(0.0, expected))
    return tuple(forecast)


def _anchor(known: Sequence[float | None], profile: Sequence[float], per_day: int) -> float:
    """Distance of the newest known value of the last day from the profile of the days before it.

    Older values tell less: the distance fades with their age as it does with the lead.
    """
    for age in range(1, per_day + 1):
        value = known[-age]
        if value is not None:
            before = known[-age - per_day :: -per_day][:WEEK_DAYS]
            usual = _or(_mean(before), profile[-age])
            return (value - usual) * math.exp(-(age - 1) * HOURS_PER_DAY / per_day / DECAY_H)
    return 0.0


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return math.fsum(told) / len(told) if told else None


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
