"""What a rank learns of the others while its main thread is busy: failures, losses, silence.

Everything comes through the launch's store, but for peers on this host, whose processes it can
see. Any call to the store may hang when the store's host is lost: no connection breaks then.

Invariant: nobody waits for a look; `heard_at` says when the store last answered one.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from wattmesh.reconfig.launch.deadlines import Deadlines, Phase
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.peers import Peer

PEER_GONE_LOOKS = 2
"""A peer must be missing this often in a row: it may be about to say that it left on purpose."""

BEATS_PER_SILENCE = 10
"""A rank says that it is there this often in the time after which it would be missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What this rank is doing. `generation` is the one being built or trained."""

    phase: Phase
    generation: int
    step: int
    since: float

    def __str__(self) -> str:
        """Give the words that failure sentences use."""
        return f"{self.phase} at step {self.step}"


class FailureDetector:
    """Looks at the store for one rank; used by one thread."""

    def __init__(
        self, launch_store: LaunchStore, *, deadlines: Deadlines, interrupt: Callable[[], None]
    ) -> None:
        """Look through `launch_store`, a connection that nobody else uses.

        Args:
            launch_store: the store.
            deadlines: how long others may be silent, or take to leave.
            interrupt: frees the main thread from a collective of a spoiled generation.
        """
        self._launch_store = launch_store
        self._deadlines = deadlines
        self._interrupt = interrupt
        self._posted: Watch | None = None
        self._peers: dict[int, Peer] = {}
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

    def told(self) -> str | None:
        """Why this launch must end, as some rank said; None while it need not."""
        return self._launch_store.failure()

    def beside(self) -> list[Peer]:
        """Peers on this host, this process left out; asks nobody."""
        me = self._peers.get(self._launch_store.rank)
        if me is None:
            return []
        return [each for each in self._peers.values() if each.rank != me.rank and each.beside(me)]

    def others(self) -> str:
        """Say where every other rank was seen last."""
        beside = self.beside()
        lines = []
        for rank in range(self._launch_store.launched):
            if rank != self._launch_store.rank:
                peer = self._peers.get(rank)
                held = " (stopped)" if peer in beside and peer.stopped() else ""
                lines.append(f"rank {rank} in {self._launch_store.peek(f'phase/{rank}')}{held}")
        return ", ".join(lines) or "no other rank"

    def gone(self) -> list[str]:
        """Peers on this host that ended without a word, as words for a sentence."""
        return [
            f"rank {peer.rank} (pid {peer.pid})"
            for peer in self.beside()
            if not peer.alive() and not self._launch_store.has_left(peer.rank)
        ]

    def tell(self, sentence: str) -> bool:
        """Tell every rank why all must leave; whether this is the first on its host to do so."""
        with suppress(RuntimeError):
            self._launch_store.fail(sentence)
            me = self._peers.get(self._launch_store.rank)
            host = f"{me.host} {me.pids}" if me else "?"
            return self._launch_store.count(f"undertaker/{host}") == 1
        return True

    def _gone_peer(self) -> str:
        for peer in self.beside():
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
        """Say that this rank is there, and miss the next one when it does not say so.

        Each rank minds one other, so that any number of ranks costs the store the same per rank.
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
        """The next rank that has come and not left."""
        store = self._launch_store
        around = ((store.rank + step) % store.launched for step in range(1, store.launched))
        return next((r for r in around if r in self._peers and not store.has_left(r)), None)

    def _stuck_in_spoiled(self, watch: Watch) -> str:
        """Free a main thread that waits for a rank which already gave this generation up."""
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
