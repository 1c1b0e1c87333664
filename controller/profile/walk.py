"""Walk one job through a list of layouts: a stand-in daemon that neither measures nor decides.

It speaks protocol 1 over its own Unix socket, so the job is the real one and makes real switches;
only the orders follow a list instead of the grid.

Invariant: one order at a time; the next one is given only after the one before has ended.
"""

import json
import math
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from wattmesh.controller.profile.job import Candidate
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.fingerprint import Fingerprint
from wattmesh.reconfig.itinerary import EPOCH, Itinerary
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire.messages import (
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Orders,
    Progress,
    Register,
    Registered,
    Transition,
)

_LONGEST_BODY = 1 << 20
_NEVER_LATE = 1 << 40
"""In steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One switch of the walk that was confirmed.

    Attributes:
        step: the boundary's.
        elapsed_s: from the boundary until it was confirmed.
    """

    origin: str
    target: str
    step: int
    elapsed_s: float


class ProfileWalk:
    """Where the walk stands. Several threads may use it.

    Attributes:
        started: step at which each point that was reached began, by id; the first time.
        refused: why a point was not reached, by id.
        evidence: what the job reported of the switch to each point that was reached, by id.
        arrivals: every confirmed switch, in order.
        failures: every other one, as origin, target and why.
        registered: how the job introduced itself; None before.
        unwelcome: why the job was turned away; "".
        newest: its newest progress; None before.
        heard_s: when it last made headway (monotonic); a heartbeat is none.
        due_s: since when it trains on past a boundary at which it should have switched (monotonic);
            None while it does not.
    """

    def __init__(
        self,
        points: Sequence[Candidate],
        tell: Callable[[str], None],
        *,
        steps_each: int = 0,
        least_s: float = 0.0,
    ) -> None:
        """Begin at `points[0]`, where the job begins.

        Args:
            points: the walk. It may grow, by `go`.
            tell: called with a sentence whenever something happens.
            steps_each: how many steps each point trains before the next is ordered; 0: each next
                point is ordered by `go`.
            least_s: for how long a walk of `steps_each` trains at least, counted from its first
                report: the orders of another walk take their time, however fast the job is.
        """
        self._tell = tell
        self._lock = threading.Lock()
        self._points = list(points)
        self._steps_each, self._least_s = steps_each, least_s
        self._first_s: float | None = None
        self._itinerary = Itinerary(
            layouts=[each.layout for each in points], steps_each=steps_each, next=1
        )
        self._may_go = steps_each > 0
        self._here = self._points[0]
        self.started: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.evidence: dict[str, dict[str, Any]] = {}
        self.arrivals: list[Arrival] = []
        self.failures: list[tuple[str, str, str]] = []
        self.registered: Register | None = None
        self.unwelcome = ""
        self.newest: Progress | None = None
        self.heard_s = time.monotonic()
        self.due_s: float | None = None

    @property
    def here(self) -> Candidate:
        """The point that the job trains at."""
        return self._here

    @property
    def computes_with(self) -> Fingerprint:
        """What the job says that it computes with; nothing is known before it registers."""
        said = self.registered.capabilities if self.registered is not None else ()
        return Fingerprint.from_capabilities(said)

    @property
    def bound_for(self) -> Candidate | None:
        """The point of the order that is open; None without one."""
        with self._lock:
            return self._next if self._may_go and not self._itinerary.over else None

    @property
    def over(self) -> bool:
        """Whether a walk of `steps_each` has trained them at every point that it reached."""
        with self._lock:
            step = self.newest.step if self.newest is not None else 0
            return (
                self._steps_each > 0
                and self._itinerary.over
                and step >= self._itinerary.since + self._steps_each
                and time.monotonic() - (self._first_s or math.inf) >= self._least_s
            )

    def go(self, point: Candidate) -> None:
        """Order a switch to `point` at the next boundary; the switch before has ended."""
        with self._lock:
            self._points.append(point)
            self._itinerary.layouts = [each.layout for each in self._points]
            self._may_go = True

    def register(self, message: Register) -> Registered:
        """Register the job.

        Raises:
            InputInvalid: it does not begin in the first point's layout.
        """
        first = self._points[0]
        with self._lock:
            self.heard_s = time.monotonic()
            if message.layout != first.layout and self.registered is None:
                self.unwelcome = (
                    f"the job begins in {message.layout}, its reference {first.id} is "
                    f"{first.layout}; correct `command` or `reference`"
                )
                raise InputInvalid(self.unwelcome)
            new, self.registered = self.registered is None, message
            self.started.setdefault(first.id, message.step)
        if new:
            self._tell(f"{first.id} ({first.layout}) trains")
        return Registered(
            run=message.run,
            incarnation=message.incarnation,
            attempt=message.attempt,
            epoch=EPOCH,
        )

    def orders(self) -> Orders:
        """Give the order for the next point, or none when there is none to go to."""
        with self._lock:
            order = None
            if self._may_go and not self._itinerary.over and self.registered is not None:
                order = self._itinerary.order(
                    run=self.registered.run,
                    attempt=self.registered.attempt,
                    point=self._next.id,
                    reason="profiling",
                    late_steps=_NEVER_LATE,
                )
            return Orders(order=order, epoch=EPOCH)

    def progress(self, message: Progress) -> None:
        """Note how far the job is."""
        with self._lock:
            self.newest, self.heard_s = message, time.monotonic()
            self._first_s = self._first_s or self.heard_s
            open_ = self._may_go and not self._itinerary.over
            if open_ and message.step > self._itinerary.since + self._steps_each:
                self.due_s = self.due_s or self.heard_s

    def transition(self, message: Transition) -> None:
        """Go on to the next point when a switch has ended, confirmed or not."""
        with self._lock:
            self.heard_s, self.due_s = time.monotonic(), None
            target = None if self._itinerary.over else self._next
            if target is None or not self._itinerary.ended(message):
                return
            self._may_go = self._steps_each > 0
            if message.state is SwitchState.CONFIRMED:
                self.arrivals.append(
                    Arrival(
                        origin=self._here.id,
                        target=target.id,
                        step=message.step,
                        elapsed_s=message.elapsed_s,
                    )
                )
                self._here = target
                self.started.setdefault(target.id, message.step)
                self.evidence[target.id] = message.evidence
                words = f"{target.id} ({target.layout}) trains"
            else:
                why = message.detail or str(message.state)
                self.refused[target.id] = why
                self.failures.append((self._here.id, target.id, why))
                words = f"{target.id} ({target.layout}) was not reached: {message.detail}"
                self._pass_over_here()
        self._tell(words)

    def _pass_over_here(self) -> None:
        """Skip the points whose layout the job stayed in: it takes no order to go where it is."""
        while self._steps_each and not self._itinerary.over:
            if self._next.layout != self._here.layout:
                return
            self._itinerary.skip()

    @property
    def _next(self) -> Candidate:
        return self._points[self._itinerary.next]


class WalkServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves one walk over a Unix socket; a context manager."""

    daemon_threads = True
    walk: ProfileWalk

    def __init__(self, path: Path, walk: ProfileWalk) -> None:
        """Bind `path`, which must not exist."""
        self.walk = walk
        super().__init__(str(path), _Handler)
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="walk", daemon=True
        )
        self._thread.start()

    def server_close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self._thread.join()
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a job may hang up in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: WalkServer

    def do_POST(self) -> None:
        """Take a report: /v1/runs/{run}/{kind}."""
        readers: dict[str, Callable[[object], Message]] = {
            "register": Register.from_json,
            "progress": Progress.from_json,
            "transitions": Transition.from_json,
            "heartbeat": Heartbeat.from_json,
        }
        walk, kind = self.server.walk, self.path.rpartition("/")[2]
        try:
            length = min(int(self.headers.get("Content-Length", "0")), _LONGEST_BODY)
            body = json.loads(self.rfile.read(length))
            message = readers[kind](body) if kind in readers else None
            if isinstance(message, Register):
                self._answer(200, walk.register(message).to_json())
                return
            if isinstance(message, Heartbeat):
                self._answer(200, HeartbeatAnswer().to_json())
                return
            if isinstance(message, Progress):
                walk.progress(message)
            if isinstance(message, Transition):
                walk.transition(message)
            self._answer(200, {})
        except (InputInvalid, ValueError) as error:
            self._answer(400, {"error": str(error)})

    def do_GET(self) -> None:
        """Give the newest order."""
        self._answer(200, self.server.walk.orders().to_json())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: the walk tells what matters."""

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
