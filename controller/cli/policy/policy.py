"""`wattmesh policy bench`: what policies would have saved on recorded grids."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_answer, print_json, print_lines
from wattmesh.controller.cli.policy import policy_options, stream_screen
from wattmesh.controller.cli.policy.plan import app
from wattmesh.controller.cli.policy.policy_screen import screen
from wattmesh.controller.cli.progress import counted
from wattmesh.controller.replay import grid
from wattmesh.controller.replay.bench import (
    BOUNDARY_EVERY,
    OWN,
    ReplayRequest,
    Row,
    cells,
    replayed,
)
from wattmesh.controller.replay.bench import bench as replay
from wattmesh.controller.replay.forecasts import hours_of
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Release
from wattmesh.reconfig.ranges import clean_lines


@app.command()
def bench(
    context: typer.Context,
    *,
    trace: policy_options.Traces,
    catalogue: policy_options.CatalogueFile = None,
    jobs: policy_options.JobsFile = None,
    slack: policy_options.Slacks = "1.1,1.25,1.5,2.0",
    starts: policy_options.Starts = 3,
    forecast: policy_options.Forecast = OWN,
    exogenous: policy_options.Exogenous = None,
    since: policy_options.Since = None,
    policies: policy_options.Policies = policy_options.EVERY,
    noise: policy_options.Noises = "",
    hours: policy_options.Hours = None,
    release: policy_options.Unused = None,
    pause: policy_options.Pause = None,
    boundary_every: policy_options.BoundaryEvery = BOUNDARY_EVERY,
    regret: policy_options.Regret = False,
    processes: policy_options.Processes = policy_options.CORES,
    as_json: options.AsJson = False,
) -> None:
    """Replay policies over recorded grids, with the daemon's own decision code."""
    policy_options.one_or_several(context, catalogue, jobs)
    if jobs is not None or catalogue is None:
        _several(jobs or Path(), trace, as_json=as_json)
        return
    job = replayed(catalogue_file.load(catalogue), release)
    asked = ReplayRequest(
        catalogue=job,
        slacks=policy_options.slacks(slack),
        count=starts,
        forecast=policy_options.forecast(forecast),
        policies=policy_options.policies(policies, regret=regret),
        noise=policy_options.noise(noise),
        hours=hours,
        pause=job.release is Release.RELEASED if pause is None else pause,
        boundary_every=boundary_every,
        regret=regret,
        exogenous=exogenous,
        since=policy_options.since(since),
    )
    if exogenous is not None and forecast != OWN and hours_of(forecast) is None:
        raise InputInvalid(
            "--exogenous makes the forecast; leave --forecast out, or put the truth into a part of "
            "it (perfect-24h, own-24h)"
        )
    if not asked.interval_tokens:
        raise InputInvalid(f"{catalogue} needs job.global_batch and job.seq_len to be replayed")
    found = _rows(asked, trace, processes)
    print_answer({"rows": [row_json(row) for row in found]}, lambda: screen(found, asked), as_json)


def _several(file: Path, traces: Sequence[Path], *, as_json: bool) -> None:
    """Follow every rule for several jobs, with a bar on a terminal."""
    # numpy and SciPy come with it, which replay of one job has no use for.
    from wattmesh.controller.replay import stream_bench, stream_file  # noqa: PLC0415

    stream = stream_file.load(file)
    grids = [grid.read(each) for each in traces]
    with counted("planning", stream_bench.STEPS * len(grids)) as told:
        found = [stream_bench.bench_stream(stream, each, told) for each in grids]
    if as_json:
        print_json({"streams": [stream_screen.stream_json(each) for each in found]})
    else:
        print_lines(stream_screen.screen(found))


def _rows(asked: ReplayRequest, traces: Sequence[Path], processes: int) -> list[Row]:
    """Replay, with a bar on a terminal; traces left out are named on standard error.

    Raises:
        InputInvalid: no trace is long enough.
    """
    wanted, left_out = cells(asked, traces)
    for sentence in left_out:
        print(f"wattmesh: {clean_lines(sentence)}", file=sys.stderr)
    if not wanted:
        raise InputInvalid("no trace is long enough; give --hours to replay a shorter job")
    found: list[Row] = []
    with counted("replaying", len(wanted)) as told:
        for rows in replay(asked, wanted, jobs=processes):
            found.extend(rows)
            told(1)
    return found


def row_json(row: Row) -> dict[str, Any]:
    """Give a row as stable keys."""
    return asdict(row) | {"start": f"{row.start:%Y-%m-%dT%H:%M:%SZ}"}
