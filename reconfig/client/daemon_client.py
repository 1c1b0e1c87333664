"""The threads that talk to the daemon for a job, on global rank 0; training never waits for them.

One thread posts: the messages that earlier launches left, the registration, transitions and the end
in order, and the newest progress. A second thread asks for orders, a third sends heartbeats.

Invariant: nothing here raises into training or blocks it. If the daemon is absent, slow, or answers
nonsense, the only effect is that no new order arrives.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.reconfig.client.heartbeat import Heartbeats
from wattmesh.reconfig.client.outbox import JobOutbox
from wattmesh.reconfig.wire.link import DaemonAnswer, DaemonLink, EndOfCalls
from wattmesh.reconfig.wire.messages import (
    Finish,
    Heartbeat,
    Orders,
    Progress,
    Register,
    Transition,
)

log = logging.getLogger(__name__)

CALL_LIMIT_S = 3.0
ORDER_WAIT_S = 10.0
"""How long the daemon may keep a call for orders waiting; it answers at once when it has one."""
PROGRESS_EVERY_S = 0.5
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
CLAIMS = 20
"""How often a higher attempt number is claimed when the daemon refuses ours as too old."""


class Fence(Protocol):
    """What a daemon client needs of the object that holds the run's attempt numbers."""

    def raise_above(self, floor: int) -> int:
        """Take an attempt number above `floor` and above every one known."""
        ...

    def accepted(self) -> None:
        """Record that the daemon has accepted this launch."""
        ...


class DaemonClient:
    """Sends one launch's reports to the daemon, and receives its orders."""

    def __init__(
        self,
        link: DaemonLink,
        register: Register,
        outbox: JobOutbox,
        fence: Fence,
        phase: Callable[[], str] = str,
        *,
        takes_orders: bool = True,
    ) -> None:
        """Prepare; `start` begins the threads.

        Args:
            link: the connection to the daemon.
            register: the registration; sent again whenever the daemon does not know this launch.
            outbox: where reports are kept until acknowledged.
            fence: claims higher attempt numbers.
            phase: returns what the launch is doing now.
            takes_orders: whether to ask for orders.
        """
        self._link = link
        self._register = register
        self._asked_s = time.monotonic()
        self._outbox = outbox
        self._fence = fence
        self._phase = phase
        self._new: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._progress: Progress | None = None
        self._orders = Orders()
        self._seq = 0
        self._claims_left = CLAIMS
        self._registered = threading.Event()
        self._once_registered = False
        self._silenced = threading.Event()
        self._silencing = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._idle = threading.Event()
        self._poster = threading.Thread(target=self._post, name="wattmesh-post", daemon=True)
        self._asker = threading.Thread(target=self._ask, name="wattmesh-order", daemon=True)
        self._end_of_asking = EndOfCalls()
        self._takes_orders = takes_orders
        self._corrected: Register | None = None
        self._heartbeats = Heartbeats(link, self._heartbeat, self._be_silent)

    def start(self) -> None:
        """Start the threads."""
        self._poster.start()
        if self._takes_orders:
            self._asker.start()
        self._heartbeats.start()

    @property
    def registered(self) -> bool:
        """Whether the daemon knows this launch, by its latest answer."""
        return self._registered.is_set()

    def correct(self, register: Register) -> None:
        """Register the same launch again, because more is known of it now."""
        self._corrected = register
        self._wake.set()

    def progress(self, message: Progress) -> None:
        """Keep the newest progress, which replaces one that was not sent."""
        self._progress = message

    def transition(self, message: Transition) -> None:
        """Queue one step of a switch."""
        self._queue("transitions", message.to_json())

    def finish(self, message: Finish) -> None:
        """Queue the end of this launch."""
        self._queue("finish", message.to_json())

    def orders(self) -> Orders:
        """Return the daemon's latest answer."""
        return self._orders

    def pump(self) -> None:
        """Do nothing: there is nothing to forward from here."""

    def close(self, patience_s: float) -> None:
        """Wait up to `patience_s` until the queue is sent, then stop; the rest stays on disk.

        A report under way may take `CALL_LIMIT_S` more; a call that waits for orders is ended.
        """
        until = time.monotonic() + patience_s
        while time.monotonic() < until and not self._silenced.is_set():
            self._wake.set()
            if self._new.empty() and self._idle.wait(0.05):
                break
        self._stop.set()
        self._end_of_asking.end()
        self._heartbeats.stop()
        self._wake.set()
        self._poster.join(CALL_LIMIT_S)

    def _queue(self, kind: str, body: dict[str, Any]) -> None:
        self._idle.clear()
        self._new.put((kind, body))
        self._wake.set()

    def _post(self) -> None:
        """Post until told to stop; the pause doubles with every failure in a row.

        Logs one line when the daemon stops answering, and one when it answers again.
        """
        pause_s, gone_s = FIRST_PAUSE_S, None
        while not self._stop.is_set():
            self._take_new()
            try:
                if self._post_next():
                    if gone_s is not None:
                        away_s = time.monotonic() - gone_s
                        log.warning("the daemon answers again, after %.0f s", away_s)
                    pause_s, gone_s = FIRST_PAUSE_S, None
            except SourceUnavailable as error:
                if gone_s is None:
                    gone_s = time.monotonic()
                    log.warning("%s (training goes on; this is said once)", str(error).rstrip("."))
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except OSError as error:
                log.warning("a report could not be kept on disk: %s", error)
                self._stop.wait(pause_s)
        self._take_new()

    def _take_new(self) -> None:
        while not self._new.empty():
            self._outbox.add(*self._new.get())

    def _post_next(self) -> bool:
        """Send the first message due, or wait a moment; return whether the daemon has answered."""
        corrected, self._corrected = self._corrected, None
        if corrected is not None:
            self._register = replace(corrected, attempt=self._register.attempt)
            self._registered.clear()
        entry = self._outbox.head()
        if self._silenced.is_set():
            self._stop.wait(LONGEST_PAUSE_S)
        elif entry is not None and (
            self._registered.is_set() or self._is_of_earlier_launch(entry.body)
        ):
            self._settle(entry.kind, self._call(entry.kind, self._stamped(entry.body)))
        elif not self._registered.is_set():
            self._introduce()
        elif self._progress is not None:
            self._send_progress()
        else:
            self._idle.set()
            self._wake.wait(PROGRESS_EVERY_S)
            self._wake.clear()
            return False
        return not self._silenced.is_set()

    def _send_progress(self) -> None:
        message, self._progress = self._progress, None
        if message is None:
            return
        self._seq += 1
        body = self._stamped(replace(message, seq=self._seq).to_json())
        answer = self._call("progress", body)
        if answer.status == 404:
            self._forgotten()
        if answer.fenced:
            self._be_silent(answer)
        if self._outbox.head() is None and self._new.empty():
            self._idle.set()
        self._wake.wait(PROGRESS_EVERY_S)
        self._wake.clear()

    def _introduce(self) -> None:
        told = replace(self._register, asked_s=round(time.monotonic() - self._asked_s, 3))
        answer = self._call("register", told.to_json())
        if answer.accepted:
            self._once_registered = True
            self._heartbeats.pace(answer.body)
            self._registered.set()
            self._fence.accepted()
        elif answer.fenced and not self._once_registered and self._claims_left > 0:
            self._claims_left -= 1
            self._register = replace(self._register, attempt=self._fence.raise_above(0))
            raise SourceUnavailable(f"the daemon did not let this launch in: {_words(answer)}")
        elif answer.fenced and self._once_registered:
            self._be_silent(answer)
        else:
            raise SourceUnavailable(
                f"the daemon answered {answer.status} to register: {_words(answer)}"
            )

    def _settle(self, kind: str, answer: DaemonAnswer) -> None:
        """Drop the head of the outbox if the daemon accepted it or refused it for good.

        Raises:
            SourceUnavailable: the message must be sent again.
        """
        if not answer.accepted and not answer.final:
            raise SourceUnavailable(f"the daemon answered {answer.status} to {kind}.")
        head = self._outbox.head()
        ours = head is not None and not self._is_of_earlier_launch(head.body)
        if answer.status == 404 and ours:
            self._forgotten()
        self._outbox.done()
        if answer.final:
            log.warning("the daemon refused %s (%d): %s", kind, answer.status, _words(answer))
            if answer.fenced and ours:
                self._be_silent(answer)

    def _forgotten(self) -> None:
        """Register again, because the daemon does not know this run (it has another journal).

        Raises:
            SourceUnavailable: always, so that the message is kept and a pause follows.
        """
        self._registered.clear()
        raise SourceUnavailable("the daemon does not know this run any more; registering again.")

    def _be_silent(self, answer: DaemonAnswer) -> None:
        """Stop reports and orders, because a newer launch reports for this run."""
        with self._silencing:
            if self._silenced.is_set():
                return
            self._silenced.set()
        log.error(
            "this launch reports no more and takes no orders, for the daemon refuses it (%s); it "
            "trains on. Stop it unless it is the one you want.",
            _words(answer),
        )
        self._orders = Orders()

    def _heartbeat(self) -> Heartbeat | None:
        """Return the heartbeat to send now; None while the daemon does not know this launch."""
        if self._silenced.is_set() or not self._registered.is_set():
            return None
        known = self._register
        return Heartbeat(
            run=known.run,
            incarnation=known.incarnation,
            attempt=known.attempt,
            phase=self._phase(),
        )

    def _call(self, kind: str, body: dict[str, Any]) -> DaemonAnswer:
        path = f"/v1/runs/{self._register.run}/{kind}"
        return self._link.call("POST", path, body, CALL_LIMIT_S)

    def _is_of_earlier_launch(self, body: dict[str, Any]) -> bool:
        """Return whether an earlier launch left this message; it is sent before registration."""
        return bool(body.get("incarnation") != self._register.incarnation)

    def _stamped(self, body: dict[str, Any]) -> dict[str, Any]:
        """Put the present attempt number, which may have risen, into our own messages."""
        return (
            body
            if self._is_of_earlier_launch(body)
            else {**body, "attempt": self._register.attempt}
        )

    def _ask(self) -> None:
        """Ask for the newest order until told to stop."""
        pause_s = FIRST_PAUSE_S
        path = f"/v1/runs/{self._register.run}/order?wait={ORDER_WAIT_S:g}"
        while not self._stop.is_set():
            if self._silenced.is_set() or not self._registered.wait(PROGRESS_EVERY_S):
                self._stop.wait(FIRST_PAUSE_S)
                continue
            began = time.monotonic()
            try:
                limit_s = CALL_LIMIT_S + ORDER_WAIT_S
                answer = self._link.call("GET", path, None, limit_s, self._end_of_asking)
                if answer.accepted:
                    self._orders = Orders.from_json(answer.body)
                elif answer.status == 404:
                    self._registered.clear()
                pause_s = FIRST_PAUSE_S if answer.accepted else min(2 * pause_s, LONGEST_PAUSE_S)
            except (SourceUnavailable, InputInvalid):
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            # If the daemon answers at once, ask again only after the pause, not in a tight loop.
            self._stop.wait(max(0.0, pause_s - (time.monotonic() - began)))


def _words(answer: DaemonAnswer) -> str:
    """Return the daemon's error sentence, cut to 300 characters for the log."""
    return str(answer.body.get("error", ""))[:300]
