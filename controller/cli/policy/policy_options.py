"""The options of `wattmesh policy bench`, and what their texts mean.

Invariant: a text that cannot be understood is refused in one sentence that names what there is.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.replay.bench import FORECASTS, KNOWN, MPC, POLICIES
from wattmesh.controller.replay.forecasts import hours_of
from wattmesh.controller.replay.world import Noise
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.catalogue import Release

EVERY = ",".join(POLICIES)
CORES = os.cpu_count() or 1
NOISES = ("throughput", "switch_failure", "seed")

CatalogueFile = Annotated[
    Path | None, typer.Option("--catalogue", metavar="FILE", help="The job's points (TOML).")
]
JobsFile = Annotated[
    Path | None,
    typer.Option(
        "--jobs",
        metavar="FILE",
        help="Several jobs on one cluster (TOML), instead of --catalogue; the file says the rest.",
    ),
]
Traces = Annotated[
    list[Path],
    typer.Option("--trace", metavar="FILE", help="Recorded grid (CSV or gzip); may be repeated."),
]
Slacks = Annotated[
    str, typer.Option(help="Deadlines, as multiples of the time at the fastest point.")
]
Starts = Annotated[int, typer.Option(min=1, help="Number of starts, spread over each trace.")]
Forecast = Annotated[
    str,
    typer.Option(
        metavar="own|perfect|perfect-24h|own-24h|persist|FILE",
        help="Forecast that the policies get.",
    ),
]
Exogenous = Annotated[
    Path | None,
    typer.Option(
        "--exogenous",
        metavar="FILE|DIR",
        help="Forecast with the day-ahead wind, sun and weather of this file (docs/forecast.md).",
    ),
]
Since = Annotated[
    datetime | None, typer.Option(metavar="DATE", help="No start is earlier than this day (UTC).")
]
Policies = Annotated[
    str, typer.Option(metavar="NAME,...", help=f"Policies to replay: {', '.join(KNOWN)}.")
]
Noises = Annotated[
    str,
    typer.Option(
        metavar="KEY=SHARE,...",
        help="throughput: largest share of speed lost in an hour; switch_failure: probability; "
        "seed: a number.",
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(min=1.0, help="Work, in hours at the fastest point; default: the catalogue's."),
]
Unused = Annotated[
    Release | None, typer.Option(help="What happens to unused GPUs; default: as in the catalogue.")
]
Pause = Annotated[
    bool | None,
    typer.Option(
        "--pause/--no-pause",
        help="Whether runs may be suspended; default: only if unused GPUs are released.",
    ),
]
BoundaryEvery = Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")]
Regret = Annotated[
    bool,
    typer.Option(
        "--regret", help="Split the loss of mpc into forecast and planning; replays it twice."
    ),
]
Processes = Annotated[int, typer.Option(min=1, help="Number of processes.")]

OF_ONE_JOB = (
    *("slack", "starts", "forecast", "policies", "noise", "hours", "release", "pause"),
    *("boundary_every", "regret", "processes", "exogenous", "since"),
)
"""Parameters that say nothing about several jobs."""


def one_or_several(context: typer.Context, catalogue: Path | None, jobs: Path | None) -> None:
    """Check that either one job is asked about or several, and nothing that the other has.

    Raises:
        InputInvalid: both or none, or an option that does not apply.
    """
    if (catalogue is None) == (jobs is None):
        raise InputInvalid("give --catalogue FILE for one job, or --jobs FILE for several")
    if jobs is None:
        return
    given = [
        f"--{each.replace('_', '-')}"
        for each in OF_ONE_JOB
        if getattr(context.get_parameter_source(each), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise InputInvalid(
            f"{', '.join(given)}: not with --jobs, whose file says that; leave it out"
        )


def since(given: datetime | None) -> datetime | None:
    """Read a day without a zone as UTC."""
    return given.replace(tzinfo=UTC) if given is not None and given.tzinfo is None else given


def slacks(text: str) -> tuple[float, ...]:
    """Read the slacks.

    Raises:
        InputInvalid: no list of numbers, or one out of range.
    """
    try:
        found = tuple(float(each) for each in text.split(","))
    except ValueError as error:
        raise InputInvalid(
            f"--slack {text!r} is no list of numbers; write it like 1.1,1.5"
        ) from error
    if not all(1.0 <= each <= 100.0 for each in found):
        raise InputInvalid(f"--slack {text!r}: a slack is between 1 (no time to lose) and 100")
    return tuple(dict.fromkeys(found))


def forecast(text: str) -> str:
    """Check the forecast.

    Raises:
        InputInvalid: neither a mode nor a file.
    """
    if text not in FORECASTS and hours_of(text) is None and not Path(text).is_file():
        raise InputInvalid(
            f"--forecast {text!r} is not known; give one of {', '.join(FORECASTS)}, the truth for "
            "some hours (perfect-24h) or after them (own-24h), or a file that exists"
        )
    return text


def policies(text: str, *, regret: bool = False) -> tuple[str, ...]:
    """Read the names of policies.

    Raises:
        InputInvalid: an unknown one, or none; or no `mpc` whose regret could be split.
    """
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    unknown = [each for each in found if each not in KNOWN]
    if unknown or not found:
        raise InputInvalid(
            f"--policies {text!r}: {', '.join(unknown) or 'nothing'} is no policy; give some of "
            f"{', '.join(KNOWN)}"
        )
    if regret and MPC not in found:
        raise InputInvalid(f"--regret splits what {MPC} lost; add {MPC} to --policies {text!r}")
    return found


def noise(text: str) -> Noise:
    """Read the noise.

    Raises:
        InputInvalid: an unknown key, no number, or a share out of range.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        try:
            found[key.strip()] = float(value)
        except ValueError as error:
            raise InputInvalid(
                f"--noise {part!r} is not KEY=NUMBER; write it like throughput=0.05,seed=1"
            ) from error
    unknown = [each for each in found if each not in NOISES]
    shares = [value for key, value in found.items() if key != "seed"]
    if unknown or not all(0.0 <= each < 1.0 for each in shares):
        raise InputInvalid(
            f"--noise {text!r}: keys are {', '.join(NOISES)}, and a share is at least 0 and below 1"
        )
    return Noise(
        throughput=found.get("throughput", 0.0),
        switch_failure=found.get("switch_failure", 0.0),
        seed=int(found.get("seed", 0.0)),
    )
