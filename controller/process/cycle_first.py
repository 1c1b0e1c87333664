"""The cycle goes first: threads that compute beside it give way while a turn is in progress.

One interpreter runs one thread at a time, so a thread that turns a thousand runs into numbers would
double the turn that it meets. Such a thread gives way between two small pieces of its work.

Invariant: nobody gives way for more than half of the time, even if turns follow each other without
a pause; and the cycle waits for nobody.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_S = 5.0
"""The most seconds of any two times as many that are spent giving way: a long turn."""


class CycleFirst:
    """Says whether a turn is in progress; for use from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """No turn is in progress. `monotonic`: gives seconds."""
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._turns = 0

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Mark the block as a turn of the cycle."""
        with self._changed:
            self._turns += 1
        try:
            yield
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    def of(self, body: Callable[[], None]) -> Callable[[], None]:
        """Make each call of `body` a turn of the cycle."""

        def turn() -> None:
            with self.turn():
                body()

        return turn

    def until_over(self, most_s: float) -> float:
        """Wait until no turn is in progress, or for so many seconds; return those that passed."""
        with self._changed:
            if not self._turns:
                return 0.0
            began_s = self._monotonic()
            self._changed.wait_for(lambda: not self._turns, most_s)
            return self._monotonic() - began_s

    def giving_way(self, most_s: float = MOST_S) -> "GivesWay":
        """Make what one thread calls between two pieces of its work."""
        return GivesWay(self, most_s, self._monotonic)


class GivesWay:
    """Gives way to the cycle when called; of one thread."""

    def __init__(self, first: CycleFirst, most_s: float, monotonic: Callable[[], float]) -> None:
        """Give way for `most_s` of any two times as many seconds."""
        self._first, self._most_s, self._monotonic = first, most_s, monotonic
        self._since_s, self._waited_s = monotonic(), 0.0

    def __call__(self) -> None:
        """Wait while a turn is in progress, unless too much was waited already."""
        now_s = self._monotonic()
        if now_s >= self._since_s + 2 * self._most_s:
            self._since_s, self._waited_s = now_s, 0.0
        left_s = self._most_s - self._waited_s
        if left_s > 0:
            self._waited_s += self._first.until_over(left_s)
