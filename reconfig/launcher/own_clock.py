"""A supervisor that is its own alarm clock: it holds the next launch, and starts it.

It needs no daemon and no network to wake a run. Invariant: it wakes at the wall clock's time or
after as many seconds as were left when it was asked, whichever comes first, so a wall clock that is
set back keeps no run asleep.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from wattmesh.reconfig.launcher.contract import HeldLaunch, HeldState, NextLaunch


class OwnClock:
    """Holds one launch in memory; a supervisor that is started anew begins at once.

    `resizes`: whether it may hold a launch of another number of ranks.
    """

    resizes = False

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Hold nothing; `now` gives the wall clock."""
        self._now = now
        self._held: HeldLaunch | None = None
        self._until_s = 0.0

    def find(self, key: str) -> HeldLaunch | None:
        """Return the held launch."""
        return self._held if self._held is not None and self._held.key == key else None

    def hold(self, following: NextLaunch) -> HeldLaunch:
        """Hold a launch instead of any other."""
        found = self.find(following.key)
        if found is not None:
            return found
        self._held = HeldLaunch(
            key=following.key,
            name=f"the supervisor of pid {os.getpid()} on {socket.gethostname()}",
            state=HeldState.HELD,
            begins_at=following.begins_at,
        )
        self._until_s = time.monotonic() + self._left_s(following.begins_at)
        return self._held

    def withdraw(self, key: str) -> bool:
        """Let go of a held launch."""
        if self.find(key) is not None:
            self._held = None
        return True

    def begin_now(self, key: str) -> HeldLaunch:
        """Make a held launch due."""
        self._until_s = 0.0
        held = self.find(key) or HeldLaunch(key=key, name="", state=HeldState.WITHDRAWN)
        return replace(held, begins_at=None)

    def due(self) -> bool:
        """Return whether what is held should begin, or nothing is held."""
        if self._held is None:
            return True
        return self._left_s(self._held.begins_at) <= 0 or time.monotonic() >= self._until_s

    def _left_s(self, moment: datetime | None) -> float:
        return (moment - self._now()).total_seconds() if moment else 0.0
