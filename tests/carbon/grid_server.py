"""A grid server on real HTTP that answers like NESO's Carbon Intensity API, its faults too.

National values only: `/intensity/{from}/{to}` and `/intensity/{from}/fw48h`. Invariant: without a
fault every answer has the form of the recorded ones: half hours, `actual` null from the server's
`now` on, the first half hour before `from` when `from` lies on a border (as the real one does).
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HALF_HOUR = timedelta(minutes=30)
FORM = "%Y-%m-%dT%H:%MZ"
LONGEST = timedelta(days=14)


class Fault(StrEnum):
    """What one answer may suffer from."""

    NONE = "none"
    SERVER_ERROR = "500 with NESO's outage body"
    BAD_REQUEST = "400"
    TOO_MANY = "429 with Retry-After"
    NOT_FOUND = "404 in HTML"
    HANG = "no byte ever"
    DRIP = "a byte now and then"
    DRIP_HEADERS = "header lines without end"
    BAD_JSON = "not JSON"
    NOT_OBJECT = "JSON, but not of the form"
    EMPTY = "an empty list"
    BROKEN_OFF = "half of the body"
    HUGE = "more bytes than anybody should read"
    REDIRECT = "302 to elsewhere"


@dataclass(slots=True)
class Grid:
    """The state of the server.

    Attributes:
        now: the server's clock: half hours that end later have no actual value.
        faults: one per request, first come first served; then none.
        zeros, holes: starts of half hours with a false zero, and of those left out.
        delay: half hours that end less than this before `now` have no actual value yet.
        rows: answers served instead of computed ones, as they are.
        asked: paths of all requests. `retry_after`: what a 429 says.
        released: set when hanging answers shall end.
    """

    now: datetime
    faults: list[Fault] = field(default_factory=list)
    zeros: set[datetime] = field(default_factory=set)
    holes: set[datetime] = field(default_factory=set)
    delay: timedelta = timedelta()
    rows: list[Any] | None = None
    asked: list[str] = field(default_factory=list)
    retry_after: str = "1"
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @staticmethod
    def actual(start: datetime) -> int:
        """Give the true value of a half hour: 150 to 245 g/kWh over the day."""
        return 150 + 2 * (start.hour * 2 + start.minute // 30)

    def answer(self, path: str) -> Any:
        """Give the body of a well-formed request, None for another one."""
        parts = path.strip("/").split("/")
        if len(parts) != 3 or parts[0] != "intensity":
            return None
        start = _moment(parts[1])
        end = start + timedelta(hours=48) if parts[2] == "fw48h" else _moment(parts[2])
        if not start < end <= start + LONGEST:
            return None
        if self.rows is not None:
            return {"data": self.rows}
        first = start.replace(minute=start.minute // 30 * 30)
        if first == start:
            first -= HALF_HOUR
        count = -((first - end) // HALF_HOUR)
        starts = [first + i * HALF_HOUR for i in range(count)]
        return {"data": [self._row(each) for each in starts if each not in self.holes]}

    def _row(self, start: datetime) -> dict[str, Any]:
        """Give one half hour."""
        actual: int | None = 0 if start in self.zeros else self.actual(start)
        if start + HALF_HOUR > self.now - self.delay:
            actual = None
        return {
            "from": f"{start:{FORM}}",
            "to": f"{start + HALF_HOUR:{FORM}}",
            "intensity": {
                "forecast": self.actual(start) + 5,
                "actual": actual,
                "index": "moderate",
            },
        }


def _moment(text: str) -> datetime:
    """Read a time of a path."""
    return datetime.strptime(text, FORM).replace(tzinfo=UTC)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    grid: Grid

    def do_GET(self) -> None:
        """Answer, or misbehave."""
        self.grid.asked.append(self.path)
        fault = self.grid.faults.pop(0) if self.grid.faults else Fault.NONE
        body = self.grid.answer(self.path)
        if body is None and fault is Fault.NONE:
            fault = Fault.BAD_REQUEST
        try:
            if fault in STATUS:
                self._send(STATUS[fault], _error_body(fault))
            elif fault in (Fault.HANG, Fault.DRIP, Fault.DRIP_HEADERS):
                self._linger(fault)
            else:
                self._send(200, _spoiled(json.dumps(body).encode(), fault), fault)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def _send(self, status: int, body: bytes, fault: Fault = Fault.NONE) -> None:
        """Send a whole answer."""
        self.send_response(status)
        if status == 429:
            self.send_header("Retry-After", self.grid.retry_after)
        if status == 302:
            self.send_header("Location", self.grid.url + "/elsewhere")
        length = 2 * len(body) if fault is Fault.BROKEN_OFF else len(body)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def _linger(self, fault: Fault) -> None:
        """Send nothing, or a little at a time, until released."""
        if fault is Fault.DRIP:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
        if fault is Fault.DRIP_HEADERS:
            self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Slow: ")
        while not self.grid.released.wait(0.05):
            if fault is not Fault.HANG:
                self.wfile.write(b" ")
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


STATUS = {
    Fault.SERVER_ERROR: 500,
    Fault.BAD_REQUEST: 400,
    Fault.TOO_MANY: 429,
    Fault.NOT_FOUND: 404,
    Fault.REDIRECT: 302,
}


def _error_body(fault: Fault) -> bytes:
    """Give an error body as NESO writes them; HTML where a proxy would answer."""
    if fault in (Fault.NOT_FOUND, Fault.REDIRECT):
        return b"<html><body>Not here.</body></html>"
    text = {
        Fault.SERVER_ERROR: ("500 Internal Server Error", "Requested resource not found."),
        Fault.BAD_REQUEST: ("400 Bad Request", "Please enter a valid date in ISO8601 format."),
        Fault.TOO_MANY: ("429 Too Many Requests", "Slow down."),
    }[fault]
    return json.dumps({"error": {"code": text[0], "message": text[1]}}).encode()


def _spoiled(body: bytes, fault: Fault) -> bytes:
    """Give a body as a fault leaves it."""
    return {
        Fault.BAD_JSON: b"<html>Down for maintenance</html>",
        Fault.NOT_OBJECT: b'["data"]',
        Fault.EMPTY: b'{"data": []}',
        Fault.HUGE: body + b" " * (5 << 20),
    }.get(fault, body)


@contextmanager
def serving(now: datetime) -> Iterator[Grid]:
    """Run a grid server for as long as the block runs."""
    grid = Grid(now=now)
    handler = type("Handler", (_Handler,), {"grid": grid})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        grid.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield grid
        finally:
            grid.released.set()
            server.shutdown()
            thread.join()


def answered_within(began_s: float, limit_s: float) -> bool:
    """Say whether no more than `limit_s` have passed since."""
    return time.monotonic() - began_s < limit_s
