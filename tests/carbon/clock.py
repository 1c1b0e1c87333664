"""One time for a grid server and the provider that asks it, moved by the test."""

from datetime import datetime


class Clock:
    """Called, it gives the time."""

    def __init__(self, now: datetime) -> None:
        """Begin at `now`."""
        self.now = now

    def __call__(self) -> datetime:
        """Give the time."""
        return self.now

    def seconds(self) -> float:
        """Give the time for a breaker."""
        return self.now.timestamp()
