"""`wattmesh policy plan`: a run's points over time, against the grid; and the group `policy`.

Separate from `policy bench`, so that this command does not wait for the imports of replay.
"""

from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.client import segment
from wattmesh.controller.cli.drawing import drawn, put
from wattmesh.controller.cli.output import columns, print_json, print_lines
from wattmesh.controller.cli.policy.plan_screen import screen
from wattmesh.errors import InputInvalid

PICTURE = "wattmesh.controller.cli.policy.plan_picture"

app = typer.Typer(help="Show a run's plan, and what policies would have saved on recorded grids.")


@app.callback()
def policy() -> None:
    """Keep each command one of a group, however many are loaded."""


@app.command()
def plan(
    *,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FILE", help="Draw the plan as a picture into FILE."),
    ] = None,
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Show the plan of a run: the forecast, the point in each hour, when the work is done."""
    answer = ask(socket, None).get(f"/v1/runs/{segment(run)}/plan")
    if png is not None:
        if answer["plan"] is None:
            raise InputInvalid(f"there is nothing to draw: {answer['sentence']}")
        put(png, drawn(PICTURE, answer))
    if as_json:
        print_json(answer)
    elif png is not None:
        print_lines([f"Wrote {png}."])
    else:
        print_lines(screen(answer, columns()))
