"""A threaded HTTP server on a Unix socket that answers every call by one function."""

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self

Answer = Callable[[str, str, dict[str, Any]], tuple[int, bytes]]
"""Gives (status, body) of a call: its method, its path, and what it said."""


class UnixHttp:
    """The server; a context manager, whose subclasses say what is answered."""

    def __init__(self, socket_path: Path) -> None:
        """Listen at `socket_path`; answers begin with `__enter__`."""
        self._server = _Server(str(socket_path), _handler(self.answer))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        """Begin to serve."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Answer one call, in a thread of its own."""
        raise NotImplementedError


def called(path: str) -> str:
    """Name the call that a path is for: its last part."""
    return path.partition("?")[0].rsplit("/", 1)[-1]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False


def _handler(answer: Answer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond("GET")

        def do_POST(self) -> None:
            self._respond("POST")

        def _respond(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            try:
                status, data = answer(method, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                return

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            return

    return Handler
