"""What an operator may ask for: freeze, thaw, one switch, the end of a run, a month anew.

Every act is a request to the daemon, which checks who asks and writes down who asked and why.
"""

from typing import Annotated, Any

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.client import DaemonConnection, segment
from wattmesh.controller.cli.output import print_json, print_lines

OneRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Name or id of one run; without it, all.")
]


def freeze(
    run: OneRun = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; it stands in status until the thaw.")
    ] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Take hands off one run, or everything: observed and accounted, never acted on."""
    _report(DaemonConnection(socket).post("/v1/freeze", {"run": run, "reason": reason}), as_json)


def thaw(
    run: OneRun = None,
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """End a freeze, and forget the failed switches that caused it."""
    _report(DaemonConnection(socket).post("/v1/thaw", {"run": run}), as_json)


def switch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    point: Annotated[str, typer.Argument(metavar="POINT", help="Id of a point in its catalogue.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; the journal keeps it.")],
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Order a run to another point; it switches at its next boundary, the guard permitting."""
    path = f"/v1/runs/{segment(run)}/switch"
    _report(DaemonConnection(socket).post(path, {"point": point, "reason": reason}), as_json)


def retire(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; the journal keeps it.")] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """End a run that is over, or lost for good: its rows stay, another launch begins it again."""
    _report(
        DaemonConnection(socket).post(f"/v1/runs/{segment(run)}/retire", {"reason": reason}),
        as_json,
    )


def reopen(
    month: Annotated[str, typer.Argument(metavar="YYYY-MM", help="The closed month.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it stays in report and audit.")],
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Open a month that was closed wrongly; it is closed anew, and what it was stays on record."""
    path = f"/v1/report/{segment(month)}/reopen"
    _report(DaemonConnection(socket).post(path, {"reason": reason}), as_json)


def _report(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        print_lines([answer["done"]])
