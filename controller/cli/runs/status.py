"""`wattmesh status`, as the command tree and its help know it."""

from wattmesh.controller.cli import options
from wattmesh.controller.cli.runs.quick import StatusWords, report


def status(
    socket: options.Socket = options.SOCKET,
    config: options.Config = options.DEFAULT_CONFIG,
    as_json: options.AsJson = False,
) -> None:
    """Show what the daemon sees, does and needs; without a daemon, what the journal knows."""
    report(StatusWords(socket=socket, config=config, as_json=as_json))
