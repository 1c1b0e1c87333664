"""`wattmesh status` without the command tree: it must answer at once.

Typer needs 0.1 to 0.2 s before it reads the first word (it loads pydantic). The usual forms of
`status` are read here instead; anything unusual, `--help` included, goes to the tree.
Invariant: what this reads means the same to the tree (a test holds both to it).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattmesh.controller.cli.client import (
    DEFAULT_CONFIG,
    DEFAULT_SOCKET,
    DaemonConnection,
    DaemonUnreachable,
)
from wattmesh.controller.cli.output import columns, print_json, print_lines, rows
from wattmesh.controller.cli.runs.status_screen import screen


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusWords:
    """What was asked of `status`."""

    socket: str
    config: Path
    as_json: bool = False


def read(words: Sequence[str]) -> StatusWords | None:
    """Read the words after `status`; None when they are for the tree."""
    asked = StatusWords(
        socket=os.environ.get("WATTMESH_URL") or DEFAULT_SOCKET,
        config=Path(os.environ.get("WATTMESH_CONFIG") or DEFAULT_CONFIG),
    )
    rest = [part for word in words for part in _parts(word)]
    while rest:
        word = rest.pop(0)
        if word == "--json":
            asked = replace(asked, as_json=True)
        elif word == "--socket" and rest:
            asked = replace(asked, socket=rest.pop(0))
        elif word == "--config" and rest:
            asked = replace(asked, config=Path(rest.pop(0)))
        else:
            return None
    return asked


def _parts(word: str) -> list[str]:
    """Split `--socket=PATH`."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in ("--socket", "--config") else [word]


def report(asked: StatusWords) -> None:
    """Show the daemon's status; without a daemon, what is still known, and fail.

    Raises:
        WattmeshError: the daemon did not answer, or said no.
    """
    try:
        view = DaemonConnection(asked.socket, config=asked.config).get("/v1/status")
    except DaemonUnreachable as error:
        # Imported only here: it reads the journal, which costs most of a second.
        from wattmesh.controller.cli.offline import last_known, screen_of  # noqa: PLC0415

        known = last_known(asked.config, str(error))
        print_json(known) if asked.as_json else print_lines(screen_of(known))
        raise
    if asked.as_json:
        print_json(view)
    else:
        print_lines(screen(view, columns(), rows()))
