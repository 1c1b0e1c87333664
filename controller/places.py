"""Places: how many may do something at the same time, in all and of one user or address."""

import threading
from collections import Counter
from collections.abc import Hashable


class Places:
    """Counts who is served at this moment, in all and of each."""

    def __init__(self, most: int, of_one: int) -> None:
        """Begin with nobody."""
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
