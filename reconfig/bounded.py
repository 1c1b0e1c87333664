"""Calls that may never come back (a store, a disk, a group's end), in a thread of their own.

Invariant: the caller waits no longer than it said; a thread that hangs is left behind and keeps no
process alive.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def within(seconds: float, act: Callable[[], Answer], default: Answer) -> Answer:
    """Give what `act` gives, or `default` when it takes longer than `seconds`.

    Raises:
        Exception: whatever `act` raised within its time.
    """
    answer: list[Answer] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(act())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="wattmesh-bounded", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return answer[0] if answer else default
