"""`wattmesh daemon`: its help; `main` replaces the process before this is ever called."""

from typing import Annotated

import typer


def daemon(
    config: Annotated[
        str, typer.Option("--config", metavar="FILE", help="The daemon's settings file.")
    ],
) -> None:
    """Run the daemon in the foreground (its systemd unit starts it)."""
