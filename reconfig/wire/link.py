"""HTTP to the daemon over its Unix socket, with a hard time limit on every call.

Invariant: a call ends within its limit whatever the other side does (silence, one byte a second, an
endless answer), and every failure is a `RetryLater` or a `DaemonAnswer` with a status.
"""

import grp
import http.client
import json
import os
import socket
import stat
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable

LONGEST_ANSWER = 1 << 20

URL_VARIABLE = "WATTMESH_URL"
"""Environment variable with the daemon's address."""


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """The daemon's answer: HTTP status and JSON object."""

    status: int
    body: dict[str, Any]

    @property
    def accepted(self) -> bool:
        """Tell whether the message was accepted."""
        return 200 <= self.status < 300

    @property
    def final(self) -> bool:
        """Tell whether a retry cannot change the answer: 4xx except 408, 425 and 429."""
        return 400 <= self.status < 500 and self.status not in (408, 425, 429)

    @property
    def fenced(self) -> bool:
        """Tell whether the daemon knows a newer launch, or another live one."""
        return self.status == 409 and self.body.get("kind") == "fenced"


def unix_path(address: str) -> str | None:
    """Return the path in `unix:///path`; None for any other address."""
    # Not read as a URL: `?` and `#` may stand in a path.
    scheme, _, rest = address.partition(":")
    path = rest.removeprefix("//")
    is_path = scheme.lower() == "unix" and path.startswith("/")
    return path if is_path else None


class DaemonLink:
    """A client of one daemon."""

    def __init__(self, path: str) -> None:
        """Use the Unix socket at `path`, which the first call opens."""
        self._path = path

    @classmethod
    def from_environment(cls) -> "DaemonLink | None":
        """Find the daemon in WATTMESH_URL; None when the job runs without one.

        Raises:
            InputInvalid: WATTMESH_URL is not of the form unix:///path.
        """
        url = os.environ.get(URL_VARIABLE, "")
        if not url:
            return None
        path = unix_path(url)
        if path is None:
            raise InputInvalid(
                f"WATTMESH_URL = {url!r} is not understood; write unix:///path/to/wattmesh.sock."
            )
        return cls(path)

    def call(
        self,
        method: str,
        path: str,
        message: dict[str, Any] | None,
        limit_s: float,
        end: "EndOfCalls | None" = None,
    ) -> DaemonAnswer:
        """Make one call, which another thread may end by `end`.

        Raises:
            SourceUnavailable: no answer within `limit_s`, it is not a JSON object, or it was ended.
        """
        connection = UnixConnection(self._path, limit_s)
        if end is not None:
            end.apply_to(connection)
        # A socket timeout limits each read; this timer limits the whole call.
        limit = threading.Timer(limit_s, connection.end)
        limit.daemon = True
        limit.start()
        try:
            data = None if message is None else json.dumps(message).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read(LONGEST_ANSWER)
            body = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise SourceUnavailable(f"{_unanswered(error, self._path)}.") from error
        finally:
            limit.cancel()
            connection.close()
        if not isinstance(body, dict):
            raise SourceUnavailable(f"the daemon at {self._path} answered no JSON object.")
        return DaemonAnswer(response.status, body)


class UnixConnection(http.client.HTTPConnection):
    """http.client over a Unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        """Prepare a connection to the socket at `path`."""
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._ended = False

    def connect(self) -> None:
        """Connect to the Unix socket.

        Raises:
            ConnectionAbortedError: `end` was called.
        """
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if self._ended:
            raise ConnectionAbortedError("ended")

    def end(self) -> None:
        """End the call from another thread, also one that has not connected yet."""
        # In this order: `connect` looks at the flag last, so that one of both sees the other.
        self._ended = True
        cut(self)


class EndOfCalls:
    """Ends, once and for all, the calls it is given to: the one under way and all later ones."""

    def __init__(self) -> None:
        """Let calls pass until `end`."""
        self._lock = threading.Lock()
        self._ended = False
        self._last: UnixConnection | None = None

    def apply_to(self, connection: UnixConnection) -> None:
        """Have `end` end this connection's call too; only the newest can be under way."""
        with self._lock:
            self._last = connection
            if self._ended:
                connection.end()

    def end(self) -> None:
        """End them."""
        with self._lock:
            self._ended = True
            if self._last is not None:
                self._last.end()


def no_socket(path: str) -> str:
    """Say what is at `path` if it is no socket; "" for a socket, or if nothing is there."""
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError:
        return f"{path} is a link to nothing" if os.path.islink(path) else ""
    if kind == stat.S_IFSOCK:
        return ""
    return f"{path} is a {'folder' if kind == stat.S_IFDIR else 'file'}, not a socket"


def who_may_open(path: str) -> str:
    """Say who besides its owner may open the socket at `path`."""
    try:
        gid = os.stat(path).st_gid
        return f"the group {grp.getgrgid(gid).gr_name}" if gid else "root (no api.group is set)"
    except (OSError, KeyError):
        return "the group of its socket (api.group in its settings)"


def _unanswered(error: Exception, path: str) -> str:
    if isinstance(error, PermissionError):
        return f"the daemon at {path} lets in only {who_may_open(path)}, and this process is not in"
    return no_socket(path) or (
        f"the daemon at {path} gave no usable answer ({type(error).__name__}: {error})"
    )


def cut(connection: http.client.HTTPConnection) -> None:
    """End a call from another thread: pending reads return at once."""
    if connection.sock is not None:
        cut_socket(connection.sock)


def cut_socket(connection: socket.socket) -> None:
    """Shut a connection down from another thread: its reader reads the end."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
