"""`wattmesh budget`: grams spent and saved, every slot behind them, and a plan made anew."""

from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.accounting import audit_screen, budget_screen
from wattmesh.controller.cli.answers import ask
from wattmesh.controller.cli.client import DaemonConnection, segment
from wattmesh.controller.cli.output import print_answer, print_done


def budget(
    audit: Annotated[
        str | None,
        typer.Option(
            "--audit", metavar="RUN", help="Show every slot of this run, in every scenario."
        ),
    ] = None,
    replan: Annotated[
        str | None,
        typer.Option(
            "--replan",
            metavar="NAME",
            help="Plan the rest of this budget's period anew; accept what was spent (operators).",
        ),
    ] = None,
    socket: options.Socket = options.SOCKET,
    offline: options.Offline = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the grams spent, and those saved against the points the runs were submitted at."""
    if replan is not None:
        done = DaemonConnection(socket).post(f"/v1/budget/{segment(replan)}/replan", {})
        print_done(done, as_json)
        return
    path = "/v1/budget" if audit is None else f"/v1/runs/{segment(audit)}/audit"
    answer = ask(socket, offline).get(path)
    print_answer(
        answer, lambda: (budget_screen if audit is None else audit_screen).screen(answer), as_json
    )
