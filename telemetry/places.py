"""Places that many want at the same time: so many in all, and so many of one user or address.

Invariant: whatever one of them does, his places come to an end before the others' do.
"""

import threading
from collections import Counter
from collections.abc import Hashable


class Places:
    """Places of one kind; for any thread."""

    def __init__(self, most: int, of_one: int) -> None:
        """Begin with none taken. `most`: in all; `of_one`: of one user, or address."""
        self._most, self._of_one = most, of_one
        self._taken: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def take(self, who: Hashable) -> bool:
        """Take a place; False when there is none for this one."""
        with self._lock:
            free = self._taken.total() < self._most and self._taken[who] < self._of_one
            self._taken[who] += free
            return free

    def give_back(self, who: Hashable) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[who] -= 1
            self._taken += Counter()
