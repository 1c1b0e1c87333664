"""Connections to PostgreSQL that do not wait for ever, and tell how long one has waited.

The server ends what takes too long (`statement_timeout`), but one that hangs does not: the kernel
goes on taking our bytes, so neither TCP nor libpq notices. Invariant: every wait for an answer ends
after `limit_s`, and the connection with it. Imported where the journal is PostgreSQL only.
"""

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg


class Unanswered:
    """The queries that wait for an answer; for any thread."""

    def __init__(self) -> None:
        """Begin with no query."""
        self._since_s: dict[object, float] = {}
        self._lock = threading.Lock()

    def longest_s(self) -> float:
        """Return how long the oldest query has waited; 0 when none waits."""
        with self._lock:
            oldest_s = min(self._since_s.values(), default=None)
        return 0.0 if oldest_s is None else time.monotonic() - oldest_s

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count one more query until the block ends."""
        question = object()
        with self._lock:
            self._since_s[question] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._since_s[question]


class PatientConnection(psycopg.Connection[Any]):
    """A connection whose every wait for the server has an end."""

    unanswered: Unanswered
    limit_s: float

    @classmethod
    def opened(cls, unanswered: Unanswered, limit_s: float, *words: Any, **named: Any) -> Self:
        """Connect, within libpq's own `connect_timeout`.

        Raises:
            psycopg.OperationalError: nobody answers.
        """
        with unanswered.one():
            made = cls.connect(*words, **named)
        made.unanswered, made.limit_s = unanswered, limit_s
        return made

    def wait(self, gen: Any, *words: Any, **named: Any) -> Any:
        """Wait for the server, at most `limit_s`.

        Raises:
            psycopg.OperationalError: it does not answer; the connection is closed.
        """
        if not hasattr(self, "limit_s"):  # a query that `connect` itself sends
            return super().wait(gen, *words, **named)
        with self.unanswered.one():
            return super().wait(self._ending(gen), *words, **named)

    def _ending(self, gen: Any) -> Generator[Any, Any, Any]:
        """Forward to `gen` until the time is up; psycopg resumes us ten times a second."""
        ends_s = time.monotonic() + self.limit_s
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send((yield wanted))
                if time.monotonic() >= ends_s:
                    break
        except StopIteration as end:
            return end.value
        self.close()
        raise psycopg.OperationalError(f"timeout expired: no answer for {self.limit_s:.0f} s")
