"""Limits concurrent connections or requests, in all and per user or address.

Invariant: one user cannot take every slot: its own limit is reached first.
"""

import threading
from collections import Counter
from collections.abc import Hashable


class ConcurrencyLimit:
    """A counter of slots in use. Thread safe."""

    def __init__(self, most: int, of_one: int) -> None:
        """Set the limits: `most` slots in all, `of_one` per user or address."""
        self._most, self._of_one = most, of_one
        self._taken: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def take(self, who: Hashable) -> bool:
        """Take a slot; False when none is free for this user."""
        with self._lock:
            free = self._taken.total() < self._most and self._taken[who] < self._of_one
            self._taken[who] += free
            return free

    def give_back(self, who: Hashable) -> None:
        """Free a slot."""
        with self._lock:
            self._taken[who] -= 1
            self._taken += Counter()
