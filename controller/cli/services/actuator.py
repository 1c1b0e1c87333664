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
            help="Hand this node to another journal and end (root; `wattmesh status` names it).",
        ),
    ] = "",
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Give everything back but obligations, and end."),
    ] = False,
    restore_at_stop: Annotated[
        bool,
        typer.Option(
            "--restore-at-stop",
            help="Give everything back at SIGTERM, where no ExecStopPost does it.",
        ),
    ] = False,
) -> None:
    """Run the one process that may set clocks and power limits (what its systemd unit starts)."""
