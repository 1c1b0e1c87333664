"""Places that many want at the same time: so many in all, and so many of one user.

Invariant: whatever one user does, his places come to an end before the others' do.
"""

import threading
from collections import Counter


class Places:
    """Places of one kind; for any thread."""

    def __init__(self, most: int, of_one: int) -> None:
        """Begin with none taken. `most`: in all; `of_one`: of one user."""
        self._most, self._of_one = most, of_one
        self._taken: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, uid: int) -> bool:
        """Take a place; False when there is none for this user."""
        with self._lock:
            free = self._taken.total() < self._most and self._taken[uid] < self._of_one
            self._taken[uid] += free
            return free

    def give_back(self, uid: int) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[uid] -= 1
            self._taken += Counter()
