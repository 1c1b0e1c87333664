"""A synthetic grid whose intensity follows the wind, and what was forecast of that wind."""

import numpy as np

from tests.policies.forecasting.worlds import START
from wattmesh.policies.forecast.exogenous import Array, Panel
from wattmesh.telemetry.exogenous import ExogenousKind

DAY = 24
KNOWN_H = 6
"""Forecasts of a day are out so many hours before it."""


def wind_mw(days: int, seed: int = 1) -> Array:
    """Slow random wind, new every half day, between 0 and 10 GW."""
    chance = np.random.default_rng(seed)
    knots = chance.uniform(0.0, 10_000.0, 2 * days + 2)
    hours = np.arange(days * DAY)
    return np.asarray(np.interp(hours / 12.0, np.arange(len(knots)), knots), dtype=np.float64)


def intensity(wind: Array, seed: int = 2) -> Array:
    """A daily shape, less what wind replaces, and a little that nobody foresees."""
    hours = np.arange(len(wind))
    shape = 400.0 + 60.0 * np.cos(2 * np.pi * hours / DAY)
    told = (shape - 0.025 * wind) * np.exp(
        0.02 * np.random.default_rng(seed).standard_normal(len(wind))
    )
    return np.asarray(told, dtype=np.float64)


def panel(
    wind: Array,
    kinds: tuple[str, ...] = (ExogenousKind.WIND,),
    seed: int = 3,
) -> Panel:
    """Day-ahead forecasts, a tenth off; further kinds are noise."""
    chance = np.random.default_rng(seed)
    columns = [wind * (1 + 0.1 * chance.standard_normal(len(wind)))]
    columns += [chance.standard_normal(len(wind)) for _ in kinds[1:]]
    values = np.stack(columns, axis=1)
    days = np.arange(len(wind)) // DAY
    known_at = np.repeat((days * DAY - KNOWN_H)[:, None], len(kinds), axis=1).astype(np.float64)
    return Panel(start=START, kinds=kinds, values=values, known_at=known_at)
