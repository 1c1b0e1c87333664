"""`wattmesh actuator`: its help; `main` replaces the process before this is ever called."""

from typing import Annotated

import typer


def actuator(
    config: Annotated[str, typer.Option("--config", metavar="FILE", help="The settings file.")],
    obey: Annotated[
        str,
        typer.Option(
            "--obey",
            metavar="JOURNAL:EPOCH",
            help="Make this node obey another journal, then exit (root; `wattmesh status` names "
            "it).",
        ),
    ] = "",
    restore: Annotated[
        bool,
        typer.Option(
            "--restore", help="Restore every GPU except where an operator's cap holds, then exit."
        ),
    ] = False,
    restore_at_stop: Annotated[
        bool,
        typer.Option(
            "--restore-at-stop",
            help="Also restore at SIGTERM; for a service manager without ExecStopPost.",
        ),
    ] = False,
) -> None:
    """Run the one process that may set clocks and power limits (its systemd unit starts it)."""
