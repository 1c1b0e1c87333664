"""Calls from an agent to its controller, over a Unix socket or TLS with a token.

Invariant: a call ends within its limit whatever the other side does (silence, one byte a second,
an endless answer); without a usable answer it raises `SourceUnavailable`, and nothing else.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from wattmesh.errors import FixInput, SourceUnavailable
from wattmesh.named_file import read_named
from wattmesh.reconfig.wire.link import UnixConnection, cut, unix_path

LONGEST_ANSWER = 4 << 20
DEFAULT_PORT = 9465

AUTHORITIES_BYTES = 8 << 20
"""Twenty times the size of all public certificate authorities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerAnswer:
    """The controller's answer to one call."""

    status: int
    content: bytes

    def json(self) -> dict[str, Any]:
        """Read the answer's JSON object.

        Raises:
            SourceUnavailable: the answer has no JSON object.
        """
        try:
            body = json.loads(self.content)
        except ValueError as error:
            raise SourceUnavailable(f"the controller answered {self.status} and no JSON") from error
        if not isinstance(body, dict):
            raise SourceUnavailable(f"the controller answered {self.status} and no JSON object")
        return body


class Link(Protocol):
    """What an agent sends its calls through."""

    def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        limit_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> ControllerAnswer:
        """Make one call; raise SourceUnavailable if nobody answers it."""
        ...


class ControllerLink:
    """One controller; a connection for each call, from any thread."""

    def __init__(self, address: str, *, token: str = "", ca_file: Path | None = None) -> None:
        """Keep the address; nothing is opened yet.

        Args:
            address: `unix:///path` or `https://host:port`.
            token: sent as a bearer token; "" sends none.
            ca_file: certificates to trust instead of the system's.

        Raises:
            FixInput: the address is neither, or the certificates cannot be read.
        """
        try:
            parts = urlsplit(address)
            self._host, self._port = parts.hostname or "", parts.port or DEFAULT_PORT
        except ValueError as error:  # half of a bracketed address, or no port
            raise FixInput(
                f"agent.controller {address!r} is no address ({error}); write https://host:port"
            ) from error
        self.address = address
        self._path = unix_path(address) or ""
        self._token = token
        self._context: ssl.SSLContext | None = None
        if parts.scheme == "https" and self._host:
            try:
                if ca_file is not None:
                    read_named(ca_file, AUTHORITIES_BYTES)
                self._context = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise FixInput(f"agent.ca_file {ca_file} cannot be used ({error})") from error
        elif not self._path:
            raise FixInput(
                f"agent.controller {address!r} is neither https://host:port nor unix:///path"
            )

    def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        limit_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> ControllerAnswer:
        """Make one call.

        Raises:
            SourceUnavailable: no complete answer came within `limit_s`.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        connection = self._connection(limit_s)
        # A socket timeout bounds each read; this timer bounds the whole call.
        limit = threading.Timer(limit_s, cut, (connection,))
        limit.daemon = True
        limit.start()
        try:
            connection.request(method, target, body, sent)
            response = connection.getresponse()
            content = response.read(LONGEST_ANSWER)
            if response.read(1):
                raise http.client.HTTPException("an endless answer")
            if response.length:
                raise http.client.IncompleteRead(content, response.length)
            return ControllerAnswer(status=response.status, content=content)
        except (OSError, http.client.HTTPException) as error:
            raise SourceUnavailable(
                f"the controller at {self.address} gave no usable answer "
                f"({type(error).__name__}: {error}); it is asked again, and what was measured waits"
            ) from error
        finally:
            limit.cancel()
            connection.close()

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._context is None:
            return UnixConnection(self._path, timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=self._context
        )


class ControllerLinks:
    """Daemons on one journal; the one that took the newest call is asked first, from any thread.

    Invariant: a call is repeated to the next daemon only where the one before did not take it
    (it stands by, its journal is away, or it gave no answer); every call may be repeated.
    """

    def __init__(self, links: Sequence[ControllerLink]) -> None:
        """Keep the links, in the order in which they are asked first."""
        self._links = tuple(links)
        self._leader = 0

    def call(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        limit_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> ControllerAnswer:
        """Make one call; each daemon that is asked has `limit_s` to answer.

        Raises:
            SourceUnavailable: none of them gave a complete answer.
        """
        first, refused, silent = self._leader, None, SourceUnavailable("no controller is named")
        for ahead in range(len(self._links)):
            index = (first + ahead) % len(self._links)
            try:
                answer = self._links[index].call(
                    method, target, body, limit_s=limit_s, headers=headers
                )
            except SourceUnavailable as error:
                silent = error
                continue
            if answer.status != HTTPStatus.SERVICE_UNAVAILABLE:
                self._leader = index
                return answer
            refused = answer
        if refused is None:
            raise silent
        return refused
