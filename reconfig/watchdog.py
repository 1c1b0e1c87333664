"""A thread per process that ends it when a phase outlives its deadline or a peer has failed.

It speaks through its own connection to the store and through a file, never through a process
group, and it ends same-host peers that cannot end themselves.

Invariant: whatever hangs (a collective, the disk, the store, user code that lets other threads
run), this process is gone within its phase's deadline plus a few seconds.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from wattmesh.reconfig.board import Board
from wattmesh.reconfig.deadlines import Deadlines, Phase
from wattmesh.reconfig.folder import RunFolder, write_json
from wattmesh.reconfig.peers import Peer, end_stopped, end_stragglers

log = logging.getLogger(__name__)

EXIT_DEADLINE = 70
EXIT_TOLD = 71
EXIT_PEER_GONE = 72

TICK_S = 0.1
TRAINING_TICK_S = 0.5
STORE_PATIENCE_S = 2.0
PEER_GONE_TICKS = 2
"""A peer must be missing this often in a row: it may be about to say that it left on purpose."""


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


class Watchdog:
    """Watches one rank; armed by `phase` and `resting`."""

    def __init__(
        self,
        board: Board,
        *,
        deadlines: Deadlines,
        folder: RunFolder,
        interrupt: Callable[[], None],
    ) -> None:
        """Watch over the calling process.

        Args:
            board: the store; a connection of the watchdog's own is opened from it.
            deadlines: seconds per phase.
            folder: where the sentence of an ended rank is kept.
            interrupt: frees the main thread from a collective of a spoiled generation.
        """
        self._board = board.separate(STORE_PATIENCE_S)
        self._deadlines = deadlines
        self._folder = folder
        self._interrupt = interrupt
        self._watch = Watch(phase=Phase.WAKE, generation=0, step=0, since=time.monotonic())
        self._posted: Watch | None = None
        self._peers: dict[int, Peer] = {}
        self._missing: dict[int, int] = {}
        self._spoiled_since: float | None = None
        self._stop = threading.Event()
        self._kick = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wattmesh-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: this process ends by itself from here."""
        self._stop.set()
        self._kick.set()
        self._thread.join(STORE_PATIENCE_S)

    def resting(self, phase: Phase, *, generation: int, step: int) -> None:
        """Say that the rank now trains or is parked; re-arms the deadline."""
        self._set(phase, generation, step)

    @contextmanager
    def phase(self, phase: Phase, *, generation: int, step: int) -> Iterator[None]:
        """Bound what happens inside by the deadline of `phase`, then go back to the one before."""
        before = self._watch
        self._set(phase, generation, step)
        try:
            yield
        finally:
            self._set(before.phase, before.generation, step)

    def _set(self, phase: Phase, generation: int, step: int) -> None:
        if generation != self._watch.generation:
            self._spoiled_since = None
        self._watch = Watch(phase=phase, generation=generation, step=step, since=time.monotonic())
        if phase is not Phase.TRAIN:
            self._kick.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            resting = self._watch.phase in (Phase.TRAIN, Phase.PARKED)
            self._kick.wait(TRAINING_TICK_S if resting else TICK_S)
            self._kick.clear()
            if not self._stop.is_set():
                self._look()

    def _look(self) -> None:
        watch = self._watch
        lasted_s = time.monotonic() - watch.since
        if lasted_s > self._deadlines.of(watch.phase):
            self._expire(watch, lasted_s)
        # A store that does not answer is no reason to end: the deadline above still holds.
        with suppress(RuntimeError):
            self._look_at_store(watch)

    def _look_at_store(self, watch: Watch) -> None:
        told = self._board.failure()
        if told is not None:
            self._end(EXIT_TOLD, f"rank {self._board.rank} leaves {watch}: {told}", quiet=True)
        if watch != self._posted:
            self._board.put(f"phase/{self._board.rank}", str(watch))
            self._posted = watch
        self._look_for_gone_peers(watch)
        self._look_for_spoiled(watch)

    def _look_for_gone_peers(self, watch: Watch) -> None:
        if len(self._peers) < self._board.launched:
            self._peers = self._board.peers()
        for peer in self._same_host():
            if peer.alive():
                self._missing.pop(peer.rank, None)
                continue
            if self._board.has_left(peer.rank):
                continue
            self._missing[peer.rank] = self._missing.get(peer.rank, 0) + 1
            if self._missing[peer.rank] >= PEER_GONE_TICKS:
                last = self._board.peek(f"phase/{peer.rank}") or "no phase yet"
                self._fail(
                    EXIT_PEER_GONE,
                    f"rank {peer.rank} (pid {peer.pid}) is gone, last seen in {last}; all ranks "
                    f"leave so that the launcher restarts from {self._resume_point()}.",
                )

    def _look_for_spoiled(self, watch: Watch) -> None:
        """Free a main thread that waits for a rank which already gave this generation up."""
        if watch.phase not in (Phase.REBUILD, Phase.LOAD, Phase.VERIFY):
            return
        spoiler = self._board.spoiler(watch.generation)
        if not spoiler:
            return
        now = time.monotonic()
        if self._spoiled_since is None:
            self._spoiled_since = now
            self._interrupt()
        elif now - self._spoiled_since > self._deadlines.leave_s:
            self._fail(
                EXIT_DEADLINE,
                f"rank {self._board.rank} could not get out of {watch} within "
                f"{self._deadlines.leave_s:g} s after a peer had failed "
                f"({spoiler}); all ranks leave so that the launcher restarts from "
                f"{self._resume_point()}.",
            )

    def _expire(self, watch: Watch, lasted_s: float) -> None:
        sentence = (
            f"rank {self._board.rank} (pid {os.getpid()}) has been in {watch} for {lasted_s:.1f} "
            f"s, past its deadline of {self._deadlines.of(watch.phase):g} s; all ranks leave so "
            f"that the launcher restarts from {self._resume_point()}."
        )
        with suppress(RuntimeError):
            sentence += f" Seen last: {self._others()}."
        self._fail(EXIT_DEADLINE, sentence)

    def _others(self) -> str:
        """Say where every other rank was seen last."""
        lines = []
        for rank in range(self._board.launched):
            if rank != self._board.rank:
                peer = self._peers.get(rank)
                held = " (stopped)" if peer in self._same_host() and peer.stopped() else ""
                lines.append(f"rank {rank} in {self._board.peek(f'phase/{rank}')}{held}")
        return ", ".join(lines) or "no other rank"

    def _fail(self, code: int, sentence: str) -> None:
        """End the whole launch, this process last: peers first, for they may be stopped."""
        end_stopped(self._same_host())
        first = True
        with suppress(RuntimeError):
            self._board.fail(sentence)
            host = self._peers[self._board.rank].host if self._board.rank in self._peers else "?"
            first = self._board.count(f"undertaker/{host}") == 1
        if first:
            killed = end_stragglers(self._same_host(), self._deadlines.leave_s)
            if killed:
                sentence += f" Ended by force: rank {', '.join(map(str, killed))}."
        self._end(code, sentence, quiet=not first)

    def _end(self, code: int, sentence: str, *, quiet: bool) -> None:
        """Say why, on stderr and on disk, and end without waiting for anything."""
        if not quiet:
            with suppress(OSError):
                os.write(sys.stderr.fileno(), f"wattmesh: {sentence}\n".encode())
            self._note(code, sentence)
        end_stopped(self._same_host())
        os._exit(code)

    def give_reason(self, sentence: str) -> None:
        """Tell every rank and the run folder why this process ends, naming peers that are gone.

        For a process that ends by itself, after `stop`.
        """
        self._note(1, sentence)
        gone = [
            f"rank {peer.rank} (pid {peer.pid})"
            for peer in self._same_host()
            if not peer.alive() and not self._board.has_left(peer.rank)
        ]
        if gone:
            sentence = f"{', '.join(gone)} is gone; {sentence}"
            self._note(1, sentence)
        self._board.fail(sentence)

    def _note(self, code: int, sentence: str) -> None:
        """Leave this rank's last words in the run folder, where they can be."""
        words = {"rank": self._board.rank, "code": code, "sentence": sentence}
        with suppress(OSError):
            write_json(self._folder.failures / f"rank-{self._board.rank}.json", words)

    def _same_host(self) -> list[Peer]:
        """Peers on this host, this process left out."""
        me = self._peers.get(self._board.rank)
        if me is None:
            return []
        return [
            peer for peer in self._peers.values() if peer.host == me.host and peer.rank != me.rank
        ]

    def _resume_point(self) -> str:
        """Name the checkpoint that a restart will resume from."""
        with suppress(OSError):
            found = self._folder.checkpoints()
            return found[0].name if found else "the beginning"
        return "the last verified checkpoint"
