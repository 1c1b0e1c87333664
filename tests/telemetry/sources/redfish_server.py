"""A small management controller that serves Redfish over HTTPS, and can misbehave.

Invariant: every resource but the faults set by a test is served only to the right account, and the
paths that were asked for are kept, with whether they brought the account.
"""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

USER, PASSWORD = "wattmesh", "größe-7:x"
CHASSIS = "/redfish/v1/Chassis"


@dataclass
class Controller:
    """What the controller holds.

    Attributes:
        resources: by path. `answers`: (status, body) of paths that are answered otherwise.
        streams: what makes the pieces of a body that is sent in chunks, by path.
        asked: (path, whether the account was right), in order.
    """

    resources: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    streams: dict[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    asked: list[tuple[str, bool]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def chassis(self, name: str, *, inside: str = "", **resources: Any) -> None:
        """Add a chassis with its resources, e.g. `Power={...}`."""
        path = f"{CHASSIS}/{name}"
        document: dict[str, Any] = {"@odata.id": path, "Id": name}
        if inside:
            document["Links"] = {"ContainedBy": {"@odata.id": f"{CHASSIS}/{inside}"}}
        for kind, told in resources.items():
            document[kind] = {"@odata.id": f"{path}/{kind}"}
            self.resources[f"{path}/{kind}"] = told
        self.resources[path] = document
        listed = self.resources.setdefault(CHASSIS, {"Members": []})
        listed["Members"].append({"@odata.id": path})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_GET(self) -> None:
        """Answer one resource."""
        held = self.server.held
        told = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        known = self.headers.get("Authorization") == f"Basic {told}"
        held.asked.append((self.path, known))
        held.gate.wait(30)
        if self.path in held.streams:
            with suppress(OSError):
                self._stream(held.streams[self.path]())
            return
        if self.path in held.answers:
            status, body = held.answers[self.path]
        elif not known:
            status, body = 401, b"{}"
        elif self.path in held.resources:
            status, body = 200, json.dumps(held.resources[self.path]).encode()
        else:
            status, body = 404, b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if 300 <= status < 400:
            self.send_header("Location", f"http://127.0.0.1:1{self.path}")
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: Iterable[bytes]) -> None:
        """Send pieces as chunks, until the asker goes away."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    held: Controller


@contextmanager
def serving(certificate: Path, key: Path) -> Iterator[Controller]:
    """Run a controller until the block ends."""
    server = _Server(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.held = Controller(url=f"https://localhost:{server.server_address[1]}")
    server.held.gate.set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.held
    finally:
        server.held.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()
