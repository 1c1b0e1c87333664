"""What an operator may ask for: freeze, thaw, one switch, the end of a run, a month anew.

Every act is a request to the daemon, which checks who asks and writes down who asked and why.
"""

from typing import Annotated

import typer

from wattmesh.controller.cli import options
from wattmesh.controller.cli.client import DaemonConnection, segment
from wattmesh.controller.cli.output import print_done

POINT_HELP = "Id of a point in its catalogue; `paused`: put it to sleep."

OneRun = Annotated[
    str | None, typer.Argument(metavar="RUN", help="Name or id of one run; without it, all runs.")
]


def freeze(
    run: OneRun = None,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; `wattmesh status` shows it until the thaw.")
    ] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Stop acting on one run, or on all: they are still observed and accounted."""
    print_done(DaemonConnection(socket).post("/v1/freeze", {"run": run, "reason": reason}), as_json)


def thaw(
    run: OneRun = None,
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """End a freeze, and forget the failed switches that caused it."""
    print_done(DaemonConnection(socket).post("/v1/thaw", {"run": run}), as_json)


def switch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    point: Annotated[str, typer.Argument(metavar="POINT", help=POINT_HELP)],
    reason: Annotated[str, typer.Option("--reason", help="Why; the journal keeps it.")],
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Order a run to a point: it switches at its next boundary if the deadline guard permits.

    A run that sleeps is woken there.
    """
    path = f"/v1/runs/{segment(run)}/switch"
    print_done(DaemonConnection(socket).post(path, {"point": point, "reason": reason}), as_json)


def retire(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or id of the run.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; the journal keeps it.")] = "by hand",
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Stop following a run that is over or lost; keep its rows. A new launch takes it up again."""
    print_done(
        DaemonConnection(socket).post(f"/v1/runs/{segment(run)}/retire", {"reason": reason}),
        as_json,
    )


def reopen(
    month: Annotated[str, typer.Argument(metavar="YYYY-MM", help="The closed month.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; the report and the audit show it.")],
    socket: options.Socket = options.SOCKET,
    as_json: options.AsJson = False,
) -> None:
    """Reopen a month that was closed wrongly; it closes again, and the old figures are kept."""
    path = f"/v1/report/{segment(month)}/reopen"
    print_done(DaemonConnection(socket).post(path, {"reason": reason}), as_json)
