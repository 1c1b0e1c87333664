"""Runs calls that may hang (a driver, a network) in a worker thread, with a deadline.

Invariant: a worker runs one call at a time; while a call hangs, every further one fails at once, so
a hung driver costs one thread and no more. A late answer is discarded.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Overdue(TimeoutError):
    """No answer in time. `waited_s`: seconds since the call that hangs began."""

    def __init__(self, waited_s: float) -> None:
        """Keep how long has been waited."""
        self.waited_s = waited_s
        super().__init__(f"no answer for {waited_s:.1f} s")


class Worker:
    """A thread that runs one call at a time; a daemon thread, so it never blocks the exit."""

    def __init__(self, name: str) -> None:
        """Prepare; the thread starts with the first call."""
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: Future[Any] | None = None
        self._began_s = 0.0

    @property
    def idle(self) -> bool:
        """Tell whether no call is under way."""
        return self._pending is None or self._pending.done()

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Start a call without waiting; use `concurrent.futures.wait` to wait for many workers.

        Raises:
            Overdue: an earlier call still hangs.
        """
        if self._pending is not None and not self._pending.done():
            raise Overdue(time.monotonic() - self._began_s)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        answer: Future[T] = Future()
        self._pending, self._began_s = answer, time.monotonic()
        self._calls.put((work, answer))
        return answer

    def call(self, work: Callable[[], T], limit_s: float) -> T:
        """Make a call and wait for its answer, at most `limit_s`.

        Raises:
            Overdue: no answer in time, or an earlier call still hangs; else what `work` raises.
        """
        answer = self.begin(work)
        try:
            return answer.result(limit_s)
        except TimeoutError:
            if answer.done():  # the work itself raised it
                raise
            raise Overdue(time.monotonic() - self._began_s) from None

    def close(self) -> None:
        """End the thread after its current call."""
        self._calls.put(None)

    def ended(self, limit_s: float | None) -> bool:
        """Wait for the thread to end, at most `limit_s` (None: for ever); tell if it has."""
        if self._thread is not None:
            self._thread.join(limit_s)
        return self._thread is None or not self._thread.is_alive()

    def _run(self) -> None:
        while (task := self._calls.get()) is not None:
            work, answer = task
            try:
                answer.set_result(work())
            except BaseException as error:
                answer.set_exception(error)
