"""`wattmesh agent`: its help; `main` replaces the process before this is ever called."""

from typing import Annotated

import typer


def agent(
    config: Annotated[
        str, typer.Option("--config", metavar="FILE", help="The settings file of this node.")
    ],
) -> None:
    """Run this node's agent in the foreground (its systemd unit starts it)."""
