"""The bell that wakes waiting runs."""

import asyncio
import threading

from wattmesh.controller.process.change_signal import ChangeSignal


def test_a_ring_wakes_every_waiter() -> None:
    """Ten waiters in the server's loop hear one ring of another thread."""
    changes = ChangeSignal()

    async def waiters() -> list[bool]:
        seen = changes.rings
        tasks = [asyncio.create_task(changes.heard_after(seen, 10.0)) for _ in range(10)]
        await asyncio.sleep(0)
        threading.Thread(target=changes.ring).start()
        return await asyncio.gather(*tasks)

    assert asyncio.run(waiters()) == [True] * 10


def test_a_ring_between_looking_and_waiting_is_not_lost() -> None:
    """Whoever took its number before the ring does not wait at all."""
    changes = ChangeSignal()
    seen = changes.rings
    changes.ring()
    assert asyncio.run(changes.heard_after(seen, 0.0001))


def test_silence_ends_at_the_limit() -> None:
    """Without a ring a waiter goes home at its limit."""
    changes = ChangeSignal()
    assert not asyncio.run(changes.heard_after(changes.rings, 0.01))
    changes.ring()


def test_nobody_waits_for_a_daemon_that_ends() -> None:
    """A call that comes after the last ring returns at once: it would hold up the daemon's end."""
    changes = ChangeSignal()
    changes.close()
    limit_s = 60.0

    async def waiter() -> bool:
        return await asyncio.wait_for(changes.heard_after(changes.rings, limit_s), limit_s / 4)

    assert asyncio.run(waiter())
