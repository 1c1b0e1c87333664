"""Asks a launcher again that does not answer, where what was begun must not be left half done.

Invariant: only what the launcher did not answer is repeated; its refusal ends it.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from wattmesh.errors import SourceUnavailable

ASK_S = 5.0
"""Seconds between two tries."""

T = TypeVar("T")


def until_answered(
    act: Callable[[], T],
    wanted: Callable[[], bool],
    say: Callable[[str], None],
    patience_s: float,
) -> T:
    """Do an act that may be repeated until it is answered, and return its answer.

    Args:
        act: asks the launcher.
        wanted: whether the act still is, when it was not answered.
        say: called with sentences for people.
        patience_s: how long it is tried, in seconds.

    Raises:
        SourceUnavailable: not answered in time, or not wanted any more.
        InputInvalid: refused.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except SourceUnavailable as error:
            if time.monotonic() >= until or not wanted():
                raise
            say(f"not answered yet: {error}; asking again.")
        time.sleep(ASK_S)
