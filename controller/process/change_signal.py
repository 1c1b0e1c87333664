"""Wake calls that wait for news of a run: any thread signals, asyncio waiters hear it.

Invariant: a ring between a waiter's look and its wait is not lost, because the waiter reads `rings`
before it looks.
"""

import asyncio
import threading


class ChangeSignal:
    """Counts rings; a waiter sleeps until the count differs from the one it saw."""

    def __init__(self) -> None:
        """Begin without a ring."""
        self.closed = False
        self._rings = 0
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def rings(self) -> int:
        """How often it was rung; take this before looking at what may change."""
        return self._rings

    def ring(self) -> None:
        """Wake every waiter; callable from any thread."""
        with self._lock:
            self._rings += 1
            waiters = tuple(self._waiters)
        for loop, event in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                # The server's loop has ended; its waiters went with it.
                continue

    def close(self) -> None:
        """Wake every waiter one last time: the daemon ends."""
        self.closed = True
        self.ring()

    async def heard_after(self, rings: int, timeout_s: float) -> bool:
        """Wait until it was rung more often than `rings`, or is closed; False after `timeout_s`."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            # Whoever comes after the last ring would hold up the daemon's end.
            if self.closed or self._rings != rings:
                return True
            self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter[1].wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(waiter)
        return True
