"""Where the planner loses what carbon-awareness could attain, one cause at a time, in replay.

    python -m benchmarks.share --data DIR [--since DATE] [--until DATE] [--starts N] [--json]

DIR holds recorded zones with day-ahead forecasts (docs/forecast.md has the format). Each start is
replayed with our forecast, with it for 30 h and the truth after, the truth for 30 h and it after,
and the truth; then, both with the truth and with our forecast, with one guard off at a time: dwell,
limits on sleep and switches, the reserve of unmeasured speeds, failing switches, far boundaries,
keeping to the plan before. `share`: of what the oracle adds to `static-efficient`, percent; goals
count cells where that is 2 points or more. `ideal_share`: what the oracle would have if switches
were free. A guard that is off here is never off in the product.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import Goal, Report, run
from wattmesh.controller.replay.bench import (
    PERFECT,
    Cell,
    ReplayRequest,
    Row,
    cells,
    forecast_of,
    replayed,
    rows,
)
from wattmesh.controller.replay.forecasts import ReplayForecast, maker, mended
from wattmesh.controller.replay.grid import GridSeries, read
from wattmesh.controller.replay.weather_file import is_weather
from wattmesh.policies.decision import PolicySettings
from wattmesh.policies.speed import SpeedReserve
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Release

REPOSITORY = Path(__file__).resolve().parents[1]
CATALOGUE = REPOSITORY / "examples" / "catalogues" / "llama-70b.toml"
STILL, OURS, ORACLE = "static-efficient", "mpc", "oracle"
FORECASTS = {
    "ours": "own",
    "ours for 30 h, then the truth": "own-30h",
    "the truth for 30 h, then ours": "perfect-30h",
    "the truth": PERFECT,
}
WORTH_POINTS = 2.0
OLD = 1e9
NO_RESERVE = SpeedReserve(validated=0.0, measured=0.0, predicted=0.0, assumed=0.0)
LIMITS = PolicySettings()
OFF: Mapping[str, Mapping[str, Any]] = {
    "dwell": {"settings": replace(LIMITS, dwell_s=0.0, clock_dwell_s=0.0)},
    "switches a day": {"settings": replace(LIMITS, max_switches_per_day=10**6)},
    "longest sleep": {"settings": replace(LIMITS, longest_sleep_s=OLD)},
    "reserve of unmeasured speeds": {"settings": replace(LIMITS, reserve=NO_RESERVE)},
    "margin of speed": {"settings": replace(LIMITS, guard_margin=0.0)},
    "failing switches": {"settings": replace(LIMITS, failed_limit=1)},
    "boundaries every 10 steps": {"boundary_every": 1},
    "looks every 15 min": {"cycle_s": 300.0},
    "keeping to the plan before": {"keep": False},
}
"""What is changed in the request where one guard is off, by its name."""

ALL_OFF: Mapping[str, Any] = {
    "settings": replace(
        LIMITS,
        dwell_s=0.0,
        clock_dwell_s=0.0,
        max_switches_per_day=10**6,
        longest_sleep_s=OLD,
        reserve=NO_RESERVE,
        guard_margin=0.0,
        failed_limit=1,
    ),
    "boundary_every": 1,
    "cycle_s": 300.0,
    "keep": False,
}


def variants() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Give what is told, which guard is off, and what that changes in the request."""
    for told in FORECASTS:
        yield told, "", {}
    for told in ("ours", "the truth"):
        for off, changes in OFF.items():
            yield told, off, changes
        yield told, "all of these", ALL_OFF


def lost(asked: ReplayRequest, cell: Cell, own: ReplayForecast) -> Iterator[dict[str, Any]]:
    """Replay one start under every variant; a row for each and for each slack."""
    grid = read(cell.trace)
    for told, off, changes in variants():
        found = rows(replace(asked, **changes), cell, _told(told, grid, own))
        for slack in asked.slacks:
            yield _row(told, off, [each for each in found if each.slack == slack])


def _told(told: str, grid: GridSeries, own: ReplayForecast) -> ReplayForecast:
    mode = FORECASTS[told]
    return maker(mode)(grid) if mode == PERFECT else mended(mode, grid, own)


def _row(told: str, off: str, found: list[Row]) -> dict[str, Any]:
    still, ours, oracle = (
        next(row for row in found if row.policy == each) for each in (STILL, OURS, ORACLE)
    )
    adds = oracle.saving - still.saving
    return {
        "trace": ours.trace,
        "start": f"{ours.start:%Y-%m-%d}",
        "slack": ours.slack,
        "told": told,
        "off": off,
        "adds_points": 100 * adds,
        "share": 100 * (ours.saving - still.saving) / adds if adds > 0 else None,
        "ideal_share": 100 * (ours.ideal_saving - still.saving) / adds if adds > 0 else None,
        "switches": ours.switches,
        "deadline_met": ours.deadline_met,
    }


def goals(found: list[dict[str, Any]]) -> tuple[Goal, ...]:
    """Judge our forecast behind all guards."""
    real = [each for each in found if each["told"] == "ours" and not each["off"]]
    shares = [each["share"] for each in real if each["adds_points"] >= WORTH_POINTS]
    met = fmean(each["deadline_met"] for each in real) if real else None
    return (
        Goal(name="share_mean", value=fmean(shares) if shares else None, goal=90.0, op=">="),
        Goal(name="share_worst", value=min(shares, default=None), goal=75.0, op=">="),
        Goal(name="deadlines_met", value=met, goal=1.0, op="=="),
    )


def measure(chosen: argparse.Namespace) -> Report:
    """Replay every zone's starts under each variant."""
    folder = Path(chosen.data)
    traces = [each for each in sorted(folder.glob("*.csv*")) if is_weather(each)]
    asked = ReplayRequest(
        catalogue=replayed(catalogue_file.load(CATALOGUE), Release.RELEASED),
        slacks=(1.5, 2.0),
        count=chosen.starts,
        policies=(STILL, OURS, ORACLE),
        hours=chosen.hours,
        exogenous=folder,
        since=datetime.fromisoformat(chosen.since).replace(tzinfo=UTC),
    )
    until = datetime.fromisoformat(chosen.until).replace(tzinfo=UTC)
    ends = timedelta(hours=chosen.hours * max(asked.slacks))
    found: list[dict[str, Any]] = []
    for cell in cells(asked, traces)[0]:
        if cell.start + ends <= until:
            found += lost(asked, cell, forecast_of(asked, read(cell.trace)))
    return Report(benchmark="share", rows=tuple(found), goals=goals(found))


if __name__ == "__main__":
    options = {"data": str(REPOSITORY.parent / "shared" / "data" / "weather"), "hours": 96.0}
    dates = {"since": "2021-07-01", "until": "2022-01-01"}
    sys.exit(run(measure, {**options, **dates, "starts": 1}))
