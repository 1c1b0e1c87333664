"""The thread that tells the daemon every few seconds that the launch is alive, whatever it does.

It is a thread of its own that sends only heartbeats, so that neither a step of an hour nor reports
that the daemon does not accept can delay them. Nothing is queued: a heartbeat that failed is not
sent later, so the daemon never hears from a process that has died meanwhile.

Invariant: nothing here raises into training or blocks it.
"""

import threading
from collections.abc import Callable
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.wire.link import DaemonAnswer, DaemonLink
from wattmesh.reconfig.wire.messages import HEARTBEAT_S, Heartbeat, HeartbeatAnswer

CALL_LIMIT_S = 10.0
"""Longer than for reports, since nothing waits for it: if the main thread holds the GIL for a
second at a time, each part of a call is delayed by as much."""

MOST_OFTEN_S, MOST_RARELY_S = 0.25, 60.0


class Heartbeats:
    """Sends one heartbeat after the other until it is stopped."""

    def __init__(
        self,
        link: DaemonLink,
        current: Callable[[], Heartbeat | None],
        refused: Callable[[DaemonAnswer], None],
    ) -> None:
        """Prepare to send; `start` begins.

        Args:
            link: the connection to the daemon.
            current: returns what to send now; None if the daemon does not know this launch.
            refused: called when the daemon answers that it knows a newer launch.
        """
        self._link = link
        self._current = current
        self._refused = refused
        self._every_s = HEARTBEAT_S
        self._stop = threading.Event()
        self._sooner = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattmesh-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more heartbeats; a call under way ends by itself."""
        self._stop.set()
        self._sooner.set()

    def pace(self, body: dict[str, Any]) -> None:
        """Adopt the interval in the daemon's answer, within `MOST_OFTEN_S` and `MOST_RARELY_S`."""
        try:
            asked_s = HeartbeatAnswer.from_json(body).heartbeat_s
        except InputInvalid:
            return
        # False for NaN, which changes nothing.
        if asked_s > 0:
            before_s, self._every_s = self._every_s, min(max(asked_s, MOST_OFTEN_S), MOST_RARELY_S)
            if self._every_s < before_s:
                self._sooner.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sooner.wait(self._every_s)
            self._sooner.clear()
            beat = None if self._stop.is_set() else self._current()
            if beat is not None:
                self._send(beat)

    def _send(self, beat: Heartbeat) -> None:
        path = f"/v1/runs/{beat.run}/heartbeat"
        try:
            answer = self._link.call("POST", path, beat.to_json(), CALL_LIMIT_S)
        except SourceUnavailable:
            return  # the reporting thread logs that
        if answer.accepted:
            self.pace(answer.body)
        elif answer.fenced:
            self._refused(answer)
