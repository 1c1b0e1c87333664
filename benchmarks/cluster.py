"""Several runs under one cap: how much of what the bound gains the joint plan gains.

    python -m benchmarks.cluster [--json] [--trace FILE] [--start 0]

The ten jobs of `examples/streams/fortnight.toml` (every watt in its catalogues assumed) on a made-
up grid with a daily and a weekly swing, or on a recorded one from hour `--start` on. The share is
of `joint-ahead`, which knows all jobs as the bound does; the row of `joint` beside it plans as
they arrive. Both are against the better of `each-alone` and `greedy`. Deadlines lost and seconds
above the cap are of both. The number of runs planned anew together was chosen on this stream with
the German grid of 2023.
"""

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.report import Goal, Report, run
from tests.policies.planning.planner_cases import wave
from wattmesh.controller.replay import grid, stream_file
from wattmesh.controller.replay.stream_bench import bench_stream
from wattmesh.controller.replay.stream_rows import AHEAD, JOINT

STREAM = Path(__file__).resolve().parents[1] / "examples" / "streams" / "fortnight.toml"
DAYS = 28


def made_up() -> grid.GridSeries:
    """A grid of four weeks."""
    return grid.GridSeries(
        name="made-up",
        kind="average",
        start=datetime(2026, 1, 5, tzinfo=UTC),
        step=timedelta(hours=1),
        values=wave(24 * DAYS),
    )


def measure(chosen: argparse.Namespace) -> Report:
    """Follow every rule on one grid: `--trace`, or a made-up one."""
    series = grid.read(Path(chosen.trace)) if chosen.trace else made_up()
    stream = replace(stream_file.load(STREAM), start_s=chosen.start * stream_file.HOUR_S)
    found = bench_stream(stream, series)
    first_g = found.rows[0].carbon_g
    rows = [
        {
            "rule": row.policy,
            "grid": row.trace,
            "tonnes": row.carbon_g / 1e6,
            "saved_percent": 100 * (1 - row.carbon_g / first_g),
            "late": len(row.missed),
            "lost": len(row.lost),
            "switches": row.switches,
            "cap_exceeded_s": row.cap_exceeded_s,
            "share_of_bound_gain": found.share_of_bound_gain(row.policy),
            "solve_s": row.solve_s,
        }
        for row in found.rows
    ]
    bound_g = found.bound_g
    if bound_g is not None:
        saved = 100 * (1 - bound_g / first_g)
        rows.append({"rule": "bound", "tonnes": bound_g / 1e6, "saved_percent": saved})
    joint = [found.row(each) for each in (JOINT, AHEAD)]
    share = found.share_of_bound_gain(AHEAD)
    lost = sum(len(each.lost) for each in joint)
    over_s = max(each.cap_exceeded_s for each in joint)
    return Report(
        benchmark="cluster",
        rows=tuple(rows),
        goals=(
            Goal(name="share_of_bound_gain", value=share, goal=0.9, op=">="),
            Goal(name="deadlines_lost", value=lost, goal=0, op="=="),
            Goal(name="cap_exceeded_s", value=over_s, goal=found.slot_s, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"trace": "", "start": 0.0}))
