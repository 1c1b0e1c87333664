"""`wattmesh budget`: grams spent and saved, and with --audit every slot behind them."""

from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.budget_screen import audit_screen, screen
from wattmesh.controller.cli.client import segment
from wattmesh.controller.cli.output import print_json, print_lines


def budget(
    audit: Annotated[
        str | None,
        typer.Option("--audit", metavar="RUN", help="Every slot of both ledgers of this run."),
    ] = None,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what was spent, and what was saved against the submitted points."""
    path = "/v1/budget" if audit is None else f"/v1/runs/{segment(audit)}/audit"
    answer = ask(socket, offline).get(path)
    if as_json:
        print_json(answer)
    else:
        print_lines(screen(answer) if audit is None else audit_screen(answer))
