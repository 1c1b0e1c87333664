"""Whom a reading command asks: a daemon, or a journal whose daemon is gone."""

from pathlib import Path
from typing import Any, Protocol

from wattmesh.controller.cli.client import TIMEOUT_S, DaemonConnection


class Answers(Protocol):
    """Something that answers like the API: a daemon, or a journal alone."""

    def get(self, path: str, **query: object) -> Any:
        """Read one answer as JSON.

        Raises:
            WattmeshError: nothing answered, or the answer is an error.
        """
        ...


def ask(socket: str, offline: Path | None, *, timeout_s: float = TIMEOUT_S) -> Answers:
    """Give the daemon at `socket`, or the journal of the settings file `offline`."""
    if offline is None:
        return DaemonConnection(socket, timeout_s=timeout_s)
    # Imported only here: it needs the database and half of the daemon.
    from wattmesh.controller.cli.journal_answers import JournalAnswers  # noqa: PLC0415

    return JournalAnswers(offline)
