"""The options that commands share, spelt once."""

from pathlib import Path
from typing import Annotated

import typer

from wattmesh.controller.cli.client import DEFAULT_CONFIG, DEFAULT_SOCKET

__all__ = ["DEFAULT_CONFIG", "SOCKET", "AsJson", "Config", "Offline", "Socket"]

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON value with stable keys, not a screen.")
]

Socket = Annotated[
    str,
    typer.Option(
        "--socket",
        envvar="WATTMESH_URL",
        metavar="PATH",
        help="The daemon's Unix socket, as a path or unix:///path.",
    ),
]

Config = Annotated[
    Path,
    typer.Option(
        "--config", envvar="WATTMESH_CONFIG", metavar="FILE", help="The daemon's settings file."
    ),
]

Offline = Annotated[
    Path | None,
    typer.Option(
        "--offline",
        metavar="FILE",
        help="Ask no daemon: read the journal that this settings file names.",
    ),
]

SOCKET = DEFAULT_SOCKET
"""Default of every `Socket`."""
