"""The bell that wakes waiting runs."""

import asyncio
import threading

from wattmesh.controller.bell import Bell


def test_a_ring_wakes_every_waiter() -> None:
    """Ten waiters in the server's loop hear one ring of another thread."""
    bell = Bell()

    async def waiters() -> list[bool]:
        seen = bell.rings
        tasks = [asyncio.create_task(bell.heard_after(seen, 10.0)) for _ in range(10)]
        await asyncio.sleep(0)
        threading.Thread(target=bell.ring).start()
        return await asyncio.gather(*tasks)

    assert asyncio.run(waiters()) == [True] * 10


def test_a_ring_between_looking_and_waiting_is_not_lost() -> None:
    """Whoever took its number before the ring does not wait at all."""
    bell = Bell()
    seen = bell.rings
    bell.ring()
    assert asyncio.run(bell.heard_after(seen, 0.0001))


def test_silence_ends_at_the_limit() -> None:
    """Without a ring a waiter goes home at its limit."""
    bell = Bell()
    assert not asyncio.run(bell.heard_after(bell.rings, 0.01))
    bell.ring()
