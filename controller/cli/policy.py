"""`wattmesh policy bench`: what policies would have saved on recorded grids."""

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json, print_lines
from wattmesh.controller.cli.plan import app
from wattmesh.controller.cli.policy_screen import screen
from wattmesh.controller.cli.progress import counted
from wattmesh.controller.replay.bench import (
    BOUNDARY_EVERY,
    KNOWN,
    POLICIES,
    Asked,
    Row,
    cells,
    replayed,
)
from wattmesh.controller.replay.bench import bench as replay
from wattmesh.controller.replay.world import Noise
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import catalogue_file
from wattmesh.reconfig.catalogue import Release

MODES = ("own", "perfect", "persist")
NOISES = ("throughput", "switch_failure", "seed")


@app.command()
def bench(  # noqa: PLR0917 (typer reads options from the signature)
    catalogue: Annotated[
        Path, typer.Option("--catalogue", metavar="FILE", help="The job's points (TOML).")
    ],
    trace: Annotated[
        list[Path],
        typer.Option("--trace", metavar="FILE", help="Recorded grid, CSV or gzip; repeatable."),
    ],
    slack: Annotated[
        str, typer.Option(help="Times until the deadline, in times of the fastest point's.")
    ] = "1.1,1.25,1.5,2.0",
    starts: Annotated[int, typer.Option(min=1, help="Starts, spread over each trace.")] = 3,
    forecast: Annotated[
        str, typer.Option(metavar="own|perfect|persist|FILE", help="What is told of the grid.")
    ] = "own",
    policies: Annotated[
        str, typer.Option(metavar="NAME,...", help=f"Of {', '.join(KNOWN)}.")
    ] = ",".join(POLICIES),
    noise: Annotated[
        str,
        typer.Option(
            metavar="KEY=SHARE,...",
            help="throughput: most speed lost in an hour; switch_failure: chance; seed.",
        ),
    ] = "",
    hours: Annotated[
        float | None,
        typer.Option(min=1.0, help="Work in hours at the fastest point, not the catalogue's."),
    ] = None,
    release: Annotated[
        Release | None, typer.Option(help="What happens to unused GPUs, not the catalogue's.")
    ] = None,
    pause: Annotated[
        bool | None,
        typer.Option("--pause/--no-pause", help="May runs sleep? Only if released, unless said."),
    ] = None,
    boundary_every: Annotated[
        int, typer.Option(min=1, help="Steps between checkpoints.")
    ] = BOUNDARY_EVERY,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = os.cpu_count() or 1,
    as_json: options.AsJson = False,
) -> None:
    """Replay policies over recorded grids, through the daemon's own decisions."""
    job = replayed(catalogue_file.load(catalogue), release)
    asked = Asked(
        catalogue=job,
        slacks=_slacks(slack),
        count=starts,
        forecast=_forecast(forecast),
        policies=_policies(policies),
        noise=_noise(noise),
        hours=hours,
        pause=job.release is Release.RELEASED if pause is None else pause,
        boundary_every=boundary_every,
    )
    if not asked.interval_tokens:
        raise InputInvalid(f"{catalogue} needs job.global_batch and job.seq_len to be replayed")
    wanted, left_out = cells(asked, trace)
    for sentence in left_out:
        print(f"wattmesh: {sentence}", file=sys.stderr)
    if not wanted:
        raise InputInvalid("no trace is long enough; give --hours to replay a shorter job")
    found: list[Row] = []
    with counted("replaying", len(wanted)) as told:
        for rows in replay(asked, wanted, jobs=jobs):
            found.extend(rows)
            told(1)
    if as_json:
        print_json({"rows": [row_json(row) for row in found]})
    else:
        print_lines(screen(found, job, forecast=forecast))


def row_json(row: Row) -> dict[str, Any]:
    """Give a row as stable keys."""
    return asdict(row) | {"start": f"{row.start:%Y-%m-%dT%H:%M:%SZ}"}


def _slacks(text: str) -> tuple[float, ...]:
    """Read the slacks."""
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise InputInvalid(f"--slack {text!r} is no list of numbers like 1.1,1.5") from error
    if not all(1.0 <= each <= 100.0 for each in found):
        raise InputInvalid(f"--slack {text!r}: a slack is between 1 (no time to lose) and 100")
    return found


def _forecast(text: str) -> str:
    """Check the forecast."""
    if text not in MODES and not Path(text).is_file():
        raise InputInvalid(f"--forecast {text!r} is none of {', '.join(MODES)}, nor a file")
    return text


def _policies(text: str) -> tuple[str, ...]:
    """Read the names of policies."""
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    unknown = [each for each in found if each not in KNOWN]
    if unknown or not found:
        raise InputInvalid(
            f"--policies {text!r}: {', '.join(unknown) or 'nothing'} is no policy; there are "
            f"{', '.join(KNOWN)}"
        )
    return found


def _noise(text: str) -> Noise:
    """Read the noise."""
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        try:
            found[key.strip()] = float(value)
        except ValueError as error:
            raise InputInvalid(f"--noise {part!r} is no KEY=NUMBER") from error
    unknown = [each for each in found if each not in NOISES]
    shares = [value for key, value in found.items() if key != "seed"]
    if unknown or not all(0.0 <= each < 1.0 for each in shares):
        raise InputInvalid(f"--noise {text!r}: keys are {', '.join(NOISES)}, shares in [0, 1)")
    return Noise(
        throughput=found.get("throughput", 0.0),
        switch_failure=found.get("switch_failure", 0.0),
        seed=int(found.get("seed", 0.0)),
    )
