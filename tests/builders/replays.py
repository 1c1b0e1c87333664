"""Small jobs and grids for replay; every number is made up."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import pi, sin
from random import Random
from typing import Any

from tests.builders.points import catalogue, point
from wattmesh.controller.replay.drivers import DriverSettings
from wattmesh.controller.replay.forecasts import PerfectForecast, ReplayForecast
from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.world import Scene
from wattmesh.policies.decision import PolicySettings
from wattmesh.reconfig.catalogue import Catalogue, Release, SwitchCost
from wattmesh.reconfig.layout import Layout

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
CYCLE_S = 900.0

FAST = point("A", 4, 1000.0, 1600.0, clock_mhz=1980, layout=Layout(dp_shard=4))
SLOW_CLOCK = point("B", 4, 850.0, 1150.0, clock_mhz=1300, layout=Layout(dp_shard=4))
SMALL = point("C", 2, 450.0, 560.0, clock_mhz=1300, layout=Layout(dp_shard=2))


def job(**changes: Any) -> Catalogue:
    """Four GPUs at two clocks, or two of them; a boundary every 100 s at full speed."""
    facts: dict[str, Any] = {
        "release": Release.RELEASED,
        "idle_power_w_per_gpu": 70.0,
        "switch": SwitchCost(
            layout_s=60.0, layout_energy_j=60_000.0, reacquire_s=0.0, source="assumed"
        ),
        "global_batch": 10,
        "seq_len": 1000,
    }
    facts.update(changes)
    return catalogue(FAST, SLOW_CLOCK, SMALL, **facts)


def grid(values: Sequence[float], *, step: timedelta = HOUR) -> GridSeries:
    """A recorded grid."""
    return GridSeries(name="made-up", kind="average", start=START, step=step, values=tuple(values))


def days(count: int, *, seed: int = 0) -> GridSeries:
    """Days with a clean noon, some weather from day to day, and noise."""
    chance = Random(f"days {seed}")
    values = []
    for _ in range(count):
        weather = chance.uniform(-60.0, 60.0)
        for hour in range(24):
            sun = 90.0 * max(0.0, sin(pi * (hour - 6) / 12))
            values.append(260.0 + weather - sun + chance.uniform(-15.0, 15.0))
    return grid(values)


def scene(on: GridSeries, *, hours: float, slack: float, day: int = 0, **changes: Any) -> Scene:
    """A run of so many hours at A, begun on a day of the grid."""
    start = START + timedelta(days=day)
    facts: dict[str, Any] = {
        "catalogue": job(),
        "grid": on,
        "start": start,
        "deadline": start + timedelta(hours=hours * slack),
        "tokens": hours * 3600.0 * FAST.tokens_per_s,
        "first": "A",
        "boundary_every": 10,
    }
    facts.update(changes)
    return Scene(**facts)


def means(forecast: ReplayForecast, **changes: Any) -> DriverSettings:
    """What a driver is given."""
    facts: dict[str, Any] = {
        "forecast": forecast,
        "policy": PolicySettings(dwell_s=3600.0, max_switches_per_day=24),
        "cycle_s": CYCLE_S,
    }
    facts.update(changes)
    return DriverSettings(**facts)


def perfect(on: GridSeries) -> PerfectForecast:
    """The truth."""
    return PerfectForecast(grid=on)
