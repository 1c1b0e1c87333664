"""Walk one job through a list of layouts: a stand-in daemon that neither measures nor decides.

It speaks protocol 1 over its own Unix socket, so the job is the real one and makes real switches;
only the orders follow a list instead of the grid.

Invariant: one order at a time; the next one is given only after the one before has ended.
"""

import json
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from wattmesh.controller.profile.job import Candidate, ProfileJob
from wattmesh.errors import InputInvalid
from wattmesh.reconfig.itinerary import EPOCH, Itinerary
from wattmesh.reconfig.switch import SwitchState
from wattmesh.reconfig.wire import (
    Message,
    Orders,
    Progress,
    Register,
    Registered,
    Transition,
)

_LONGEST_BODY = 1 << 20


class ProfileWalk:
    """Where the walk stands.

    Attributes:
        started: step at which each point that was reached began, by id.
        refused: why a point was not reached, by id.
        evidence: what the job reported of the switch to each point that was reached, by id.
    """

    def __init__(self, job: ProfileJob, tell: Callable[[str], None]) -> None:
        """Begin at the reference; `tell` is called with a sentence whenever something happens."""
        self._job = job
        self._tell = tell
        self._lock = threading.Lock()
        self._run: Register | None = None
        self._itinerary = Itinerary(
            layouts=[each.layout for each in job.walk], steps_each=job.steps_per_point, next=1
        )
        self.started: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.evidence: dict[str, dict[str, Any]] = {}

    def register(self, message: Register) -> Registered:
        """Register the job.

        Raises:
            InputInvalid: it does not begin in the reference's layout.
        """
        reference = self._job.walk[0]
        if message.layout != reference.layout:
            raise InputInvalid(
                f"the job begins in {message.layout}, its reference {reference.id} is "
                f"{reference.layout}; correct `command` or `reference`"
            )
        with self._lock:
            self._run = message
            self.started.setdefault(reference.id, message.step)
        self._tell(f"{reference.id} ({reference.layout}) trains")
        return Registered(
            run=message.run, incarnation=message.incarnation, attempt=message.attempt, epoch=EPOCH
        )

    def orders(self) -> Orders:
        """Give the order for the next point, or none when the walk is at its end."""
        with self._lock:
            order = None
            if not self._itinerary.over and self._run is not None:
                order = self._itinerary.order(
                    run=self._run.run,
                    attempt=self._run.attempt,
                    point=self._next_candidate.id,
                    reason="profiling",
                    late_steps=self._job.steps_per_point,
                )
            return Orders(order=order, epoch=EPOCH)

    def transition(self, message: Transition) -> None:
        """Go on to the next point when a switch has ended, confirmed or not."""
        with self._lock:
            target = None if self._itinerary.over else self._next_candidate
            if target is None or not self._itinerary.ended(message):
                return
            if message.state is SwitchState.CONFIRMED:
                self.started[target.id] = message.step
                self.evidence[target.id] = message.evidence
                words = f"{target.id} ({target.layout}) trains"
            else:
                self.refused[target.id] = message.detail or str(message.state)
                words = f"{target.id} ({target.layout}) was not reached: {message.detail}"
        self._tell(words)

    @property
    def _next_candidate(self) -> Candidate:
        return self._job.walk[self._itinerary.next]


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
    """The calls that a job makes."""

    server: WalkServer

    def do_POST(self) -> None:
        """Take a report: /v1/runs/{run}/{kind}."""
        readers: dict[str, Callable[[object], Message]] = {
            "register": Register.from_json,
            "progress": Progress.from_json,
            "transitions": Transition.from_json,
        }
        walk, kind = self.server.walk, self.path.rpartition("/")[2]
        try:
            length = min(int(self.headers.get("Content-Length", "0")), _LONGEST_BODY)
            body = json.loads(self.rfile.read(length))
            message = readers[kind](body) if kind in readers else None
            if isinstance(message, Register):
                self._answer(200, walk.register(message).to_json())
                return
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
