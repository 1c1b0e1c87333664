"""Calls that may never come back (a store, a disk, a group's end), in a thread of their own.

Invariant: the caller waits no longer than it said; a thread that hangs is left behind and keeps no
process alive.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Attempt(Generic[Answer]):
    """One call under way."""

    def __init__(self, act: Callable[[], Answer]) -> None:
        """Begin to `act`."""
        self._act = act
        self._answer: list[Answer] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="wattmesh-bounded", daemon=True)
        self._thread.start()

    def done(self, seconds: float) -> bool:
        """Wait for the end; whether it came within `seconds`.

        Raises:
            Exception: whatever the call raised.
        """
        self._thread.join(seconds)
        if self._raised:
            raise self._raised[0]
        return bool(self._answer)

    @property
    def ended(self) -> bool:
        """Whether the call has come back, well or not."""
        return not self._thread.is_alive()

    def answer(self, default: Answer) -> Answer:
        """What the call gave; `default` while it has not ended."""
        return self._answer[0] if self._answer else default

    def _run(self) -> None:
        try:
            self._answer.append(self._act())
        except BaseException as error:
            self._raised.append(error)


def within(seconds: float, act: Callable[[], Answer], default: Answer) -> Answer:
    """Give what `act` gives, or `default` when it takes longer than `seconds`.

    Raises:
        Exception: whatever `act` raised within its time.
    """
    attempt = Attempt(act)
    attempt.done(seconds)
    return attempt.answer(default)
