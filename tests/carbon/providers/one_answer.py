"""A server that answers every request with one document, for answers no provider should give."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(slots=True)
class Answering:
    """The running server. `asked`: paths of all requests."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def answering(document: Any) -> Iterator[Answering]:
    """Serve a document, as it is or as JSON, for as long as the block runs."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    running = Answering(url="")

    class Handler(BaseHTTPRequestHandler):
        """One request."""

        def do_GET(self) -> None:
            """Answer with the document."""
            running.asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()
