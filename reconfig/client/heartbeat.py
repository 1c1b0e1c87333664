"""The thread that says every few seconds that the launch lives, whatever its training does.

It has a thread and a connection of its own, so that neither a step of an hour nor reports that
nobody takes hold it up. Nothing is queued: a heartbeat that did not get through is not sent later,
so nobody hears of a process that has died meanwhile.

Invariant: nothing here raises into training or blocks it.
"""

import threading
from collections.abc import Callable
from typing import Any

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.link import Answer, Link
from wattmesh.reconfig.wire import HEARTBEAT_S, Beaten, Heartbeat

CALL_LIMIT_S = 10.0
"""Longer than for reports, for nothing waits: a main thread that keeps Python's lock for a second
at a time holds up each part of a call by as much."""

MOST_OFTEN_S, MOST_RARELY_S = 0.25, 60.0


class Heartbeats:
    """Sends one heartbeat after the other until it is stopped."""

    def __init__(
        self,
        link: Link,
        current: Callable[[], Heartbeat | None],
        refused: Callable[[Answer], None],
    ) -> None:
        """Send through `link`.

        Args:
            link: the way to the daemon.
            current: what to send now; None: the daemon does not know this launch (any more).
            refused: told when the daemon says that a newer launch is known.
        """
        self._link = link
        self._current = current
        self._refused = refused
        self._every_s = HEARTBEAT_S
        self._stop = threading.Event()
        self._sooner = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattmesh-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; a call under way ends by itself."""
        self._stop.set()
        self._sooner.set()

    def pace(self, body: dict[str, Any]) -> None:
        """Beat as often as the daemon's answer asks for, within limits."""
        try:
            asked_s = Beaten.from_json(body).heartbeat_s
        except InputInvalid:
            return
        # A comparison with NaN is false: it changes nothing.
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
            return  # the thread that reports says so
        if answer.accepted:
            self.pace(answer.body)
        elif answer.fenced:
            self._refused(answer)
