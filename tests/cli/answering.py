"""A real HTTP server on a Unix socket that answers what it is told to, its faults included."""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any


class Answers(ThreadingUnixStreamServer):
    """Serves `answers`: path without its query -> (status, body). Keeps what was asked.

    A body of bytes is sent as it is; None answers nothing until the server stops.
    """

    daemon_threads = True

    def __init__(self, path: Path, answers: Mapping[str, tuple[int, Any]]) -> None:
        """Bind the socket."""
        super().__init__(str(path), _Handler)
        self.answers = answers
        self.asked: list[tuple[str, str, Any]] = []
        self.stopping = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Answers

    def do_GET(self) -> None:
        """Answer a reading."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer an act."""
        length = int(self.headers.get("Content-Length", 0))
        self._answer(json.loads(self.rfile.read(length)))

    def _answer(self, body: Any) -> None:
        """Give what the server was told to give."""
        self.server.asked.append((self.command, self.path, body))
        status, answer = self.server.answers[self.path.partition("?")[0]]
        if answer is None:
            self.server.stopping.wait(30)
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def address_string(self) -> str:
        """Unix sockets have no address."""
        return "local"


@contextmanager
def answering(path: Path, answers: Mapping[str, tuple[int, Any]]) -> Iterator[Answers]:
    """Serve `answers` on the Unix socket `path` while the block runs."""
    with Answers(path, answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


def dead_socket(path: Path) -> None:
    """Leave a socket file behind that nobody listens on, as a killed daemon does."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
