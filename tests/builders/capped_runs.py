"""Runs that share an operator's power cap, as one cycle sees them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.builders.observations import NOW, measured, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import CapAhead, CapView, Observation, PolicySettings

FAST = point("fast", 4, 1000.0, 1600.0, clock_mhz=1980)
SLOW = point("slow", 4, 700.0, 800.0, clock_mhz=1200)
CLOCKED = catalogue(FAST, SLOW)
GRID = slots([300.0] * 6 + [100.0] * 6)
FAST_W, SLOW_W = 1600.0 * 1.05, 800.0 * 1.05
"""What a cap must leave room for."""


def sharing(count: int, runs_w: float | None, **changes: Any) -> Observation:
    """Give so many runs, 9.7 h of work at `fast` in 12 h, under a cap until the end of the grid."""
    facts: dict[str, Any] = {
        "catalogue": CLOCKED,
        "current": FAST,
        "speeds": (measured(FAST), measured(SLOW)),
        "clock_trouble": "",
        "deadline": NOW + timedelta(hours=12),
        "tokens_total": 36_000_000,
        "room_w": None if runs_w is None else runs_w / max(1, count),
        **changes,
    }
    runs = tuple(run(run=f"r-{n}", name=f"run{n}", **facts) for n in range(count))
    cap = CapView(cap_w=9000.0, until=NOW + timedelta(hours=12), runs_w=runs_w)
    seen = observation(run(), grid=GRID, policy=PolicySettings(guard_margin=0.0, clock_dwell_s=0.0))
    return replace(seen, runs=runs, cap=None if runs_w is None else cap)


def announced_to(seen: Observation, runs_w: float, room_w: float) -> Observation:
    """Announce a cap for hours 6 to 10 instead of one that is in force."""
    ahead = CapAhead(
        start=NOW + timedelta(hours=6),
        until=NOW + timedelta(hours=10),
        cap_w=9000.0,
        room_w=room_w,
        runs_w=runs_w,
    )
    runs = tuple(replace(each, room_w=None, caps_ahead=(ahead,)) for each in seen.runs)
    return replace(seen, cap=None, runs=runs)
