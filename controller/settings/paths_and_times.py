"""Paths and times as a settings file writes them.

Invariant: a relative path counts from the file's folder, and a time carries its zone.
"""

import os
import re
from contextvars import ContextVar
from datetime import date, datetime
from pathlib import Path

from wattmesh.controller.settings.mistakes import quoted

EXAMPLE_TIME = "2026-12-01T00:00:00Z"

base_folder: ContextVar[Path] = ContextVar("base_folder", default=Path("/"))
"""Folder that relative paths of the file being read count from."""


CREDENTIAL = "credential:"
"""Prefix of a credential that the service manager loads (systemd.exec(5), LoadCredential=)."""

NOWHERE = Path("/run/credentials/nowhere")
"""The folder of credentials in a process that has none; it does not exist."""


def credentials_folder() -> Path:
    """Give the folder in which the service manager put this process's credentials."""
    return Path(os.environ.get("CREDENTIALS_DIRECTORY") or NOWHERE)


def as_path(value: object) -> object:
    """Read a path: `~` is the home folder, a relative one counts from the file's folder.

    `credential:NAME` is a credential that the service manager has loaded for this process.
    """
    if not isinstance(value, str):
        return value
    if not value or "\0" in value:
        raise ValueError(f"{quoted(value)} is not a path")
    if value.startswith(CREDENTIAL):
        name = value.removeprefix(CREDENTIAL)
        if not re.fullmatch("[A-Za-z0-9_.-]{1,255}", name) or name.strip(".") == "":
            raise ValueError(f"{quoted(value)} names no credential; write credential:NAME")
        return credentials_folder() / name
    return base_folder.get() / Path(value).expanduser()


def as_time(value: object) -> object:
    """Read a moment from TOML's own date-time or from text; it must carry a time zone."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{quoted(value)} is not a time; write {EXAMPLE_TIME}") from None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"{value.isoformat()} has no time zone; write {value.isoformat()}Z for UTC"
            )
        return value
    if isinstance(value, date):
        raise ValueError(f"{value.isoformat()} has no hour; write {value.isoformat()}T00:00:00Z")
    raise ValueError(f"{quoted(value)} is not a time; write {EXAMPLE_TIME}")
