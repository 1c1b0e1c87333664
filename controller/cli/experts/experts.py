"""`wattmesh experts`: files in, answers out; nothing here moves an expert or speaks to a run."""

from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.output import print_json, print_lines

# numpy is loaded by the command that needs it, so that the list of commands answers at once.

app = typer.Typer(help="What experts cost on each GPU, and where they should lie.")


@app.command()
def costs(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What counters showed (JSON).")],
    as_json: options.AsJson = False,
) -> None:
    """Learn joules per expert-token of each GPU from counters, and the scores a router gets."""
    from wattmesh.controller.cli.experts.costs_file import costs_json  # noqa: PLC0415
    from wattmesh.controller.cli.experts.group_screen import costs_lines  # noqa: PLC0415

    answer = costs_json(file)
    if as_json:
        print_json(answer)
    else:
        print_lines(costs_lines(answer))


@app.command()
def place(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="GPUs and routing (JSON).")],
    copies: Annotated[
        int,
        typer.Option("--copies", min=0, max=64, help="Copies that each GPU has memory for."),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the placement here (JSON)."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Place experts by recorded routing: traffic, energy and time before and after."""
    from wattmesh.controller.cli.experts.placement_file import (  # noqa: PLC0415
        place_json,
        read_problem,
        write_placement,
    )
    from wattmesh.controller.cli.experts.placement_screen import place_lines  # noqa: PLC0415

    answer = place_json(read_problem(file), copies)
    if out is not None:
        write_placement(out, answer)
    if as_json:
        print_json(answer)
    else:
        print_lines(place_lines(answer))


@app.command()
def bench(
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="GPUS", help="Like 4xh100,4xa100: one layer's group.")
    ],
    experts: Annotated[
        int, typer.Option("--experts", min=1, max=4096, help="Experts of a layer.")
    ] = 64,
    load_cap: Annotated[
        float,
        typer.Option("--load-cap", min=1.0, max=4.0, help="How far loads may lean, over the mean."),
    ] = 1.15,
    as_json: options.AsJson = False,
) -> None:
    """Model what counts by speed and leaning can save on a group, by the vendors' watts."""
    from wattmesh.controller.cli.experts.group_screen import bench_lines  # noqa: PLC0415
    from wattmesh.controller.cli.experts.group_worth import bench_json  # noqa: PLC0415

    answer = bench_json(gpus, experts, load_cap)
    if as_json:
        print_json(answer)
    else:
        print_lines(bench_lines(answer))
