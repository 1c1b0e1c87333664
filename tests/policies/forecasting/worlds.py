"""Synthetic zones: a daily shape, slow weather and changes of regime, all from one seed."""

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime

from wattmesh.policies.forecast.series import Observed

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """How a synthetic grid behaves; g/kWh.

    Attributes:
        level: its mean. `daily`: amplitude of its day. `weekend`: how much lower weekends are.
        weather: size of an AR(1) disturbance that keeps `memory_h` hours.
        regime_days: every so many days the level moves by `regime`; 0: never.
    """

    level: float = 300.0
    daily: float = 80.0
    weekend: float = 30.0
    weather: float = 30.0
    memory_h: float = 18.0
    regime: float = 0.0
    regime_days: int = 0


def values(zone: Zone, days: int, seed: int = 1, per_day: int = 24) -> list[float]:
    """Give `days` of g/kWh; the same seed gives the same values."""
    chance = random.Random(seed)
    keep = math.exp(-24.0 / per_day / zone.memory_h)
    shock = zone.weather * math.sqrt(1 - keep * keep)
    weather = 0.0
    result = []
    for at in range(days * per_day):
        day, hour = divmod(at, per_day)
        weather = keep * weather + chance.gauss(0.0, shock)
        value = zone.level + weather + zone.daily * math.cos(2 * math.pi * hour / per_day)
        value -= zone.weekend if day % 7 in (2, 3) else 0.0
        if zone.regime_days and day // zone.regime_days % 2:
            value += zone.regime
        result.append(max(5.0, value))
    return result


def observed(told: list[float], interval_s: float = HOUR_S) -> Observed:
    """Make a series of values that starts with the year 2026."""
    return Observed(start=START, interval_s=interval_s, values=told)
