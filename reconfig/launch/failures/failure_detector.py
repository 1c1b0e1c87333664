"""What a rank learns of the others while its main thread is busy: failures, losses, silence.

It learns everything through the launch's store, except for peers on this host, whose processes it
can see. Any call to the store may hang when the store's host is lost, because the connection does
not break.

Invariant: no other thread waits for a look; `heard_at` says when the store last answered one.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wattmesh.reconfig.launch.failures.deadlines import Deadlines, Phase
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.peers import RankProcess

PEER_GONE_LOOKS = 2
"""Looks in a row that must miss a peer: it may be about to write that it left on purpose."""

BEATS_PER_SILENCE = 10
"""How often a rank writes its beat within the time after which it counts as silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What this rank is doing.

    Attributes:
        generation: the one that is being built or trained.
        since: monotonic time at which the phase began.
    """

    phase: Phase
    generation: int
    step: int
    since: float

    def __str__(self) -> str:
        """Return the words that failure sentences use."""
        return f"{self.phase} at step {self.step}"


class FailureDetector:
    """Looks at the store for one rank; used by one thread."""

    def __init__(
        self, launch_store: LaunchStore, *, deadlines: Deadlines, interrupt: Callable[[], None]
    ) -> None:
        """Prepare; nothing is looked at yet.

        Args:
            launch_store: a connection to the store that nobody else uses.
            deadlines: how long others may be silent, or take to leave.
            interrupt: frees the main thread from a collective of a spoiled generation.
        """
        self._launch_store = launch_store
        self._deadlines = deadlines
        self._interrupt = interrupt
        self._posted: Watch | None = None
        self._peers: dict[int, RankProcess] = {}
        self._missing: dict[int, int] = {}
        self._spoiled: tuple[int, float] | None = None
        self._beats = 0
        self._beat_at = 0.0
        self._neighbour: tuple[int, int, float] | None = None
        self.heard_at = time.monotonic()

    def look(self, watch: Watch) -> str:
        """Say why all ranks must leave; "" when there is no reason.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        if watch != self._posted:
            self._launch_store.put(f"phase/{self._launch_store.rank}", str(watch))
            self._posted = watch
        if len(self._peers) < self._launch_store.launched:
            self._peers = self._launch_store.peers()
        found = self._gone_peer() or self._silent_neighbour() or self._stuck_in_spoiled(watch)
        self.heard_at = time.monotonic()
        return found

    def failure(self) -> str | None:
        """Return why this launch must end, as the first rank said; None if none did."""
        return self._launch_store.failure()

    def on_this_host(self) -> list[RankProcess]:
        """Return the other ranks on this host, from memory, without asking the store."""
        me = self._peers.get(self._launch_store.rank)
        if me is None:
            return []
        return [
            each
            for each in self._peers.values()
            if each.rank != me.rank and each.shares_host_with(me)
        ]

    def others(self) -> str:
        """Say which phase every other rank was last seen in."""
        beside = self.on_this_host()
        lines = []
        for rank in range(self._launch_store.launched):
            if rank != self._launch_store.rank:
                peer = self._peers.get(rank)
                held = " (stopped)" if peer in beside and peer.stopped() else ""
                lines.append(f"rank {rank} in {self._launch_store.peek(f'phase/{rank}')}{held}")
        return ", ".join(lines) or "no other rank"

    def gone(self) -> list[str]:
        """Name the peers on this host that died without leaving on purpose."""
        return [
            f"rank {peer.rank} (pid {peer.pid})"
            for peer in self.on_this_host()
            if not peer.alive() and not self._launch_store.has_left(peer.rank)
        ]

    def tell(self, sentence: str) -> bool:
        """Tell every rank why all must leave; True if first on this host, or the store fails."""
        with suppress(RuntimeError):
            self._launch_store.fail(sentence)
            me = self._peers.get(self._launch_store.rank)
            host = f"{me.host} {me.pids}" if me else "?"
            return self._launch_store.count(f"undertaker/{host}") == 1
        return True

    def _gone_peer(self) -> str:
        for peer in self.on_this_host():
            if peer.alive():
                self._missing.pop(peer.rank, None)
                continue
            if self._launch_store.has_left(peer.rank):
                continue
            self._missing[peer.rank] = self._missing.get(peer.rank, 0) + 1
            if self._missing[peer.rank] >= PEER_GONE_LOOKS:
                last = self._launch_store.peek(f"phase/{peer.rank}") or "no phase yet"
                return f"rank {peer.rank} (pid {peer.pid}) is gone, last seen in {last}"
        return ""

    def _silent_neighbour(self) -> str:
        """Write this rank's beat, and check the beat of the next rank.

        Each rank watches only one other, so the load on the store is constant per rank.
        """
        now = time.monotonic()
        if now - self._beat_at < self._deadlines.silence_s / BEATS_PER_SILENCE:
            return ""
        self._beat_at = now
        self._beats += 1
        self._launch_store.put(f"beat/{self._launch_store.rank}", self._beats)
        rank = self._next_rank()
        beat = None if rank is None else self._launch_store.peek(f"beat/{rank}")
        if rank is None or beat is None:
            self._neighbour = None
            return ""
        if self._neighbour is None or self._neighbour[:2] != (rank, beat):
            self._neighbour = (rank, int(beat), now)
        silent_s = now - self._neighbour[2]
        if silent_s <= self._deadlines.silence_s:
            return ""
        last = self._launch_store.peek(f"phase/{rank}") or "no phase yet"
        return (
            f"rank {rank} on host {self._peers[rank].host} has said nothing for {silent_s:.1f} s "
            f"(it may for {self._deadlines.silence_s:g} s), last seen in {last}"
        )

    def _next_rank(self) -> int | None:
        """Return the next rank, in a ring, that has introduced itself and not left."""
        store = self._launch_store
        around = ((store.rank + step) % store.launched for step in range(1, store.launched))
        return next((r for r in around if r in self._peers and not store.has_left(r)), None)

    def _stuck_in_spoiled(self, watch: Watch) -> str:
        """Interrupt the main thread if a peer gave this generation up; "" up to `leave_s` later."""
        if self._spoiled is not None and self._spoiled[0] != watch.generation:
            self._spoiled = None
        if watch.phase not in (Phase.REBUILD, Phase.LOAD, Phase.VERIFY):
            return ""
        spoiler = self._launch_store.spoiler(watch.generation)
        if not spoiler:
            return ""
        now = time.monotonic()
        if self._spoiled is None:
            self._spoiled = (watch.generation, now)
            self._interrupt()
        elif now - self._spoiled[1] > self._deadlines.leave_s:
            return (
                f"rank {self._launch_store.rank} could not get out of {watch} within "
                f"{self._deadlines.leave_s:g} s after a peer had failed ({spoiler})"
            )
        return ""
