"""Jobs of this node reach the controller through here: their calls, with the kernel's word on who.

Invariant: only the calls of runs pass, nothing that a job sends says who it is, and a controller
that does not answer costs a job one 503: it trains on.
"""

import json
import logging
import re
import socket
import socketserver
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wattmesh.controller.agent.link import Link, Reply
from wattmesh.controller.api.sockets import Listening, listen
from wattmesh.errors import SourceUnavailable

log = logging.getLogger(__name__)

ATTESTED_UID = "Wattmesh-Attested-Uid"

PASSED = re.compile(r"/v1/runs/[^/]{1,200}/(register|progress|heartbeat|transitions|finish|order)")
BODY_LIMIT_BYTES = 1 << 20
CALL_LIMIT_S = 10.0
LONGEST_WAIT_S = 60.0
IDLE_S = 75.0
MOST_CALLS = 256
MOST_CALLS_PER_USER = 64


class Places:
    """Calls that may be under way at the same time, in all and of one user."""

    def __init__(self, most: int, of_one: int) -> None:
        """Begin with none."""
        self._most, self._of_one = most, of_one
        self._taken: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, uid: int) -> bool:
        """Take a place; False when there is none for this user."""
        with self._lock:
            free = self._taken.total() < self._most and self._taken[uid] < self._of_one
            self._taken[uid] += free
            return free

    def give_back(self, uid: int) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[uid] -= 1
            self._taken += Counter()


class Relay:
    """Serves a Unix socket beside the jobs."""

    def __init__(self, path: Path, group: str, link: Link) -> None:
        """Bind the socket with mode 0660; nothing is passed on before `start`.

        Raises:
            FixInput: the path cannot be bound.
        """
        self._listening = listen(path, group)
        self._server = _Server(self._listening, link)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="relay", args=(0.5,), daemon=True
        )

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Take no further calls; those under way end with the process."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join(2.0)
        self._listening.close()


class _Server(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """A thread per connection, on a socket that is bound already."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: Listening, link: Link) -> None:
        super().__init__("relay", _Handler)
        self.socket = listening.socket
        self.link = link
        self.calls = Places(MOST_CALLS, MOST_CALLS_PER_USER)

    def fileno(self) -> int:
        """What the server waits on."""
        return self.socket.fileno()

    def get_request(self) -> tuple[socket.socket, str]:
        """Take a connection."""
        connection, _ = self.socket.accept()
        return connection, "job"

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A job that broke off is not worth a traceback."""
        log.debug("a relayed call broke off", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Passes the calls of one connection on."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_S
    server: _Server

    def do_GET(self) -> None:
        """Pass a question on."""
        self._pass()

    def do_POST(self) -> None:
        """Pass a report on."""
        self._pass()

    def address_string(self) -> str:
        """Name the caller."""
        return "job"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a call every few seconds is no news."""

    def _pass(self) -> None:
        """Pass one call on, as whoever the kernel says is at the other end."""
        body = self._body()
        if body is None:
            return
        if not PASSED.fullmatch(urlsplit(self.path).path):
            self._answer(_problem(404, "the agent passes on the calls of runs only", "not_found"))
            return
        uid = peer_uid(self.connection)
        if not self.server.calls.take(uid):
            self._answer(_problem(503, "the agent passes on too many calls already", "unavailable"))
            return
        try:
            reply = self.server.link.call(
                self.command,
                self.path,
                body if self.command == "POST" else None,
                limit_s=CALL_LIMIT_S + (LONGEST_WAIT_S if self.command == "GET" else 0.0),
                headers={ATTESTED_UID: str(uid)},
            )
        except SourceUnavailable as error:
            reply = _problem(503, str(error), "unavailable")
        finally:
            self.server.calls.give_back(uid)
        self._answer(reply)

    def _body(self) -> bytes | None:
        """Read what was sent; None when it was refused."""
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            self.close_connection = True
            self._answer(_problem(411, "send a body with its Content-Length", "invalid"))
            return None
        if int(length) > BODY_LIMIT_BYTES:
            self.close_connection = True
            self._answer(
                _problem(413, f"the body has more than {BODY_LIMIT_BYTES} bytes", "invalid")
            )
            return None
        return self.rfile.read(int(length))

    def _answer(self, reply: Reply) -> None:
        """Give an answer back."""
        self.send_response_only(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.content)


def peer_uid(connection: socket.socket) -> int:
    """Ask the kernel who is at the other end."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = struct.unpack("3i", credentials)[1]
    return uid


def _problem(status: int, sentence: str, kind: str) -> Reply:
    return Reply(status=status, content=json.dumps({"error": sentence, "kind": kind}).encode())
