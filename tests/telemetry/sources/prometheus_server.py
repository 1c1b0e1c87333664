"""A small HTTP server that answers range selectors as Prometheus does, and that can misbehave.

Invariant: it gives exactly the samples that the selector asks for: by name, by label, by window.
"""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

QUERY = re.compile(r"^\{(?P<matchers>.*)\}\[(?P<window>\d+)s\]$")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')


@dataclass
class Series:
    """One series. `samples`: (seconds before now, value as text)."""

    name: str
    labels: dict[str, str]
    samples: list[tuple[float, str]]


@dataclass
class Prometheus:
    """What the server holds, and how it misbehaves.

    Attributes:
        ahead_s: of its clock against ours. `status`, `body`: answered instead, when set.
        gate: set: requests pass. `asked`: the queries so far.
    """

    series: list[Series] = field(default_factory=list)
    ahead_s: float = 0.0
    status: int = 200
    body: bytes | None = None
    location: str = ""
    gate: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def scrape(
        self, name: str, labels: dict[str, str], *samples: tuple[float, float | str]
    ) -> None:
        """Add a series."""
        told = sorted(((ago, str(value)) for ago, value in samples), reverse=True)
        self.series.append(Series(name, labels, told))

    @property
    def now_s(self) -> float:
        """Its clock."""
        return time.time() + self.ahead_s

    def answer(self, query: str) -> dict[str, object]:
        """Evaluate a selector."""
        parsed = QUERY.match(query)
        if parsed is None:
            return {"status": "error", "errorType": "bad_data", "error": f"parse error: {query}"}
        wanted = MATCHER.findall(parsed["matchers"])
        now_s = self.now_s
        result = []
        for each in self.series:
            labels = {"__name__": each.name, **each.labels}
            if not all(_matches(labels.get(key, ""), how, value) for key, how, value in wanted):
                continue
            values = [
                [now_s - ago_s, text]
                for ago_s, text in each.samples
                if ago_s <= float(parsed["window"])
            ]
            if values:
                result.append({"metric": labels, "values": values})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def _matches(said: str, how: str, wanted: str) -> bool:
    """Apply one matcher; regular expressions are anchored."""
    return said == wanted if how == "=" else re.fullmatch(wanted, said) is not None


@contextmanager
def prometheus() -> Iterator[Prometheus]:
    """Run a server on a free port."""
    state = Prometheus()
    state.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query).get("query", [""])[0]
            state.asked.append(asked)
            state.gate.wait(30)
            answer = state.answer(asked)
            status = 400 if answer["status"] == "error" else state.status
            body = json.dumps(answer).encode() if state.body is None else state.body
            self.send_response_only(status)
            self.send_header("Date", formatdate(state.now_s, usegmt=True))
            self.send_header("Content-Type", "application/json")
            if state.location:
                self.send_header("Location", state.location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield state
        finally:
            state.gate.set()
            server.shutdown()
            thread.join()
