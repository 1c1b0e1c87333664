"""The daemon's API over its Unix socket: http.client and nothing else, so that `status` is quick.

Invariant: every way in which the daemon can fail to answer becomes one sentence with the next
step; an answer that says no becomes the error it names.
"""

import http.client
import json
import os
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from wattmesh.errors import (
    Fenced,
    InputInvalid,
    JournalUnavailable,
    Refused,
    RetryLater,
    WattmeshError,
)
from wattmesh.named_file import SETTINGS_BYTES, read_named
from wattmesh.reconfig.wire.link import UnixConnection, no_socket, unix_path, who_may_open

DEFAULT_SOCKET = "/run/wattmesh/wattmesh.sock"
DEFAULT_CONFIG = Path("/etc/wattmesh/wattmesh.toml")
TIMEOUT_S = 10.0

_KINDS: dict[str, type[WattmeshError]] = {
    "refused": Refused,
    "fenced": Fenced,
    "invalid": InputInvalid,
    "not_found": InputInvalid,
    "unavailable": JournalUnavailable,
}


class DaemonUnreachable(RetryLater):
    """The daemon did not answer; training goes on without it, unswitched."""


class DaemonConnection:
    """One daemon, as a person at the terminal reaches it."""

    def __init__(
        self, address: str, *, timeout_s: float = TIMEOUT_S, config: Path | None = None
    ) -> None:
        """Take a socket's path or `unix:///path`; nothing is opened yet.

        Args:
            address: of the daemon.
            timeout_s: for each answer.
            config: settings that name the socket, if nothing is at the default one; default the
                settings of this machine.

        Raises:
            InputInvalid: `address` is neither.
        """
        self.path = socket_path(address)
        self._timeout_s = timeout_s
        self._config = config or Path(os.environ.get("WATTMESH_CONFIG") or DEFAULT_CONFIG)

    def get(self, path: str, **query: object) -> Any:
        """Read one answer; parts of `query` that are None are left out.

        Raises:
            DaemonUnreachable: the daemon did not answer.
            WattmeshError: the daemon answered no; the kind follows its answer.
        """
        given = {key: str(value) for key, value in query.items() if value is not None}
        return self._call("GET", f"{path}?{urlencode(given)}" if given else path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Ask for an act.

        Raises:
            DaemonUnreachable: the daemon did not answer; whether it acted is unknown.
            WattmeshError: the daemon answered no; nothing was changed.
        """
        return self._call("POST", path, json.dumps(body).encode())

    def _call(self, method: str, path: str, body: bytes | None) -> Any:
        try:
            status, content = self._ask(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            elsewhere = socket_in(self._config) if self.path == DEFAULT_SOCKET else ""
            if isinstance(error, FileNotFoundError) and elsewhere not in ("", self.path):
                self.path = elsewhere  # nobody heard the call
                return self._call(method, path, body)
            raise DaemonUnreachable(_why_no_answer(error, self.path, self._timeout_s)) from error
        return _read(status, content, self.path)

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Send one request; give the answer's status and content."""
        connection = UnixConnection(self.path, self._timeout_s)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def socket_in(config: Path) -> str:
    """Give the daemon's socket that settings name; "" where they name none or cannot be read."""
    try:
        api = tomllib.loads(read_named(config, SETTINGS_BYTES).decode()).get("api", {})
        named = api.get("socket", "")
        return str(config.absolute().parent / Path(named).expanduser()) if named else ""
    except (OSError, ValueError, AttributeError, TypeError, RuntimeError):
        return ""  # `wattmesh settings check` says what is wrong with them


def socket_path(address: str) -> str:
    """Give the path in `unix:///path` or `/path`.

    Raises:
        InputInvalid: neither of the two.
    """
    path = unix_path(address)
    if path is not None:
        return path
    before, colon, _ = address.partition("/")[0].partition(":")
    if address and not (before and colon):
        return address
    raise InputInvalid(
        f"{address!r} is not the address of a daemon; write a socket's path like "
        f"{DEFAULT_SOCKET}, or unix://{DEFAULT_SOCKET}"
    )


def segment(text: str) -> str:
    """Make a run's name safe as one part of a path."""
    return quote(text, safe="")


def _why_no_answer(error: Exception, path: str, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return (
            f"The daemon at {path} did not answer within {timeout_s:.0f} s: it hangs, or the "
            "machine is overloaded; look at `journalctl -u wattmesh -n 50`, and restart it if its "
            "last line is old (training goes on meanwhile)."
        )
    if wrong := no_socket(path):
        return f"{wrong}: name the daemon's socket with --socket or WATTMESH_URL."
    if isinstance(error, FileNotFoundError):
        return (
            f"No daemon runs at {path} (no such socket): start it with `systemctl start wattmesh` "
            "or `wattmesh daemon --config FILE`, or name its socket with --socket."
        )
    if isinstance(error, ConnectionRefusedError):
        return (
            f"The daemon at {path} is gone: its socket is left but nobody listens; look at "
            "`journalctl -u wattmesh -n 50` for why, then `systemctl restart wattmesh`."
        )
    if isinstance(error, PermissionError):
        return (
            f"You may not open {path}: it lets in only {who_may_open(path)}; ask to join that, and "
            "log in again, or run this as the daemon's user."
        )
    return (
        f"The daemon at {path} closed the connection ({error or type(error).__name__}): run "
        "this again, and look at `journalctl -u wattmesh -n 50` if it stays so."
    )


def _read(status: int, content: bytes, path: str) -> Any:
    """Give the JSON of a success; raise the error that any other answer names."""
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise DaemonUnreachable(
            f"What listens at {path} answered {status} and no JSON: it is not wattmesh; name the "
            "right socket with --socket."
        ) from error
    if status < 300:
        return answer
    said = answer.get("error") if isinstance(answer, dict) else None
    kind = answer.get("kind", "") if isinstance(answer, dict) else ""
    raise _KINDS.get(kind, WattmeshError)(said or f"The daemon answered {status}: {answer!r}.")
