"""Runs calls that may never return (to a store, a disk, a process group) in their own threads.

Invariant: the caller waits no longer than its limit. A thread that hangs is left behind, and does
not keep the process alive.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Attempt(Generic[Answer]):
    """One call in a thread of its own."""

    def __init__(self, act: Callable[[], Answer]) -> None:
        """Start calling `act`."""
        self._act = act
        self._answer: list[Answer] = []
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="wattmesh-bounded", daemon=True)
        self._thread.start()

    def done(self, seconds: float) -> bool:
        """Wait for the end of the call; return whether it came within `seconds`.

        Raises:
            Exception: whatever the call raised.
        """
        self._thread.join(seconds)
        if self._raised:
            raise self._raised[0]
        return bool(self._answer)

    @property
    def ended(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._thread.is_alive()

    def answer(self, default: Answer) -> Answer:
        """Return the call's result; `default` while it has not ended."""
        return self._answer[0] if self._answer else default

    def _run(self) -> None:
        try:
            self._answer.append(self._act())
        except BaseException as error:
            self._raised.append(error)


def within(seconds: float, act: Callable[[], Answer], default: Answer) -> Answer:
    """Return the result of `act`, or `default` if it takes longer than `seconds`.

    Raises:
        Exception: whatever `act` raised within its time.
    """
    attempt = Attempt(act)
    attempt.done(seconds)
    return attempt.answer(default)
