"""Two threads per process that end it when a phase outlives its deadline or a peer has failed.

One thread reads the store (`FailureDetector`), which may hang when its host is lost. The other
checks the deadline and waits for nothing. Neither uses a process group. They also end peers on this
host that cannot end themselves.

Invariant: whatever hangs (a collective, the disk, the store, user code that releases the GIL), this
process ends within its phase's deadline plus a few seconds.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wattmesh.reconfig.launch.failures.bounded import within
from wattmesh.reconfig.launch.failures.deadlines import Deadlines, Phase
from wattmesh.reconfig.launch.failures.failure_detector import FailureDetector, Watch
from wattmesh.reconfig.launch.folder import RunFolder, write_json
from wattmesh.reconfig.launch.launch_store import LaunchStore
from wattmesh.reconfig.launch.peers import end_stopped, end_stragglers

log = logging.getLogger(__name__)

EXIT_DEADLINE = 70
EXIT_TOLD = 71
EXIT_PEER_GONE = 72

TICK_S = 0.1
TRAINING_TICK_S = 0.5
GUARD_TICK_S = 0.2
PATIENCE_S = 2.0
"""How long a call to the store or to the disk may take while this process ends."""


class RankWatchdog:
    """Watches one rank; armed by `phase` and `resting`."""

    def __init__(
        self,
        launch_store: LaunchStore,
        *,
        deadlines: Deadlines,
        folder: RunFolder,
        interrupt: Callable[[], None],
    ) -> None:
        """Watch the calling process.

        Args:
            launch_store: the store; a connection of the watchdog's own is opened from it.
            deadlines: seconds per phase.
            folder: where the failure sentence of an ended rank is kept.
            interrupt: frees the main thread from a collective of a spoiled generation.
        """
        self._rank = launch_store.rank
        self._detector = FailureDetector(
            launch_store.separate(PATIENCE_S), deadlines=deadlines, interrupt=interrupt
        )
        self._deadlines = deadlines
        self._folder = folder
        self._watch = Watch(phase=Phase.WAKE, generation=0, step=0, since=time.monotonic())
        self._trained = 0
        self._failed_at_s = 0.0
        self._stop = threading.Event()
        self._ending = threading.Lock()
        self._kick = threading.Event()
        self._threads = [
            threading.Thread(target=act, name=f"wattmesh-{name}", daemon=True)
            for act, name in ((self._look_around, "failure detector"), (self._count, "watchdog"))
        ]

    @property
    def watch(self) -> Watch:
        """What this rank is doing now."""
        return self._watch

    @property
    def trained(self) -> int:
        """Number of the newest generation that this rank has trained in; 0 before the first."""
        return self._trained

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop watching: this process ends by itself from here."""
        self._stop.set()
        self._kick.set()
        if self._threads[0].is_alive():
            self._threads[0].join(PATIENCE_S)

    def resting(self, phase: Phase, *, generation: int, step: int) -> None:
        """Note that the rank now trains or is parked; restarts the deadline."""
        self._set(phase, generation, step)

    @contextmanager
    def phase(self, phase: Phase, *, generation: int, step: int) -> Iterator[None]:
        """Bound the block by the deadline of `phase`, then return to the phase before."""
        before = self._watch
        self._set(phase, generation, step)
        try:
            yield
        finally:
            self._set(before.phase, before.generation, step)

    def give_reason(self, sentence: str) -> None:
        """Keep on disk why this process ends, stop watching, and tell every rank; names lost peers.

        For a process that ends by itself. The disk comes first: once one rank has ended, the
        launcher may end this one at any moment.
        """
        if not self._ending.acquire(blocking=False):
            return  # a thread of this process ends the launch and said why, before it caused this
        self._note(1, sentence)
        self.stop()
        gone = self._detector.gone()
        if gone:
            sentence = f"{', '.join(gone)} is gone; {sentence}"
        self._detector.tell(sentence)
        # The first sentence names the cause; what this rank saw is mostly its consequence.
        self._note(1, self._detector.failure() or sentence)

    def _set(self, phase: Phase, generation: int, step: int) -> None:
        self._watch = Watch(phase=phase, generation=generation, step=step, since=time.monotonic())
        if phase is not Phase.TRAIN:
            self._kick.set()
        elif generation > self._trained:
            self._trained = generation

    def _look_around(self) -> None:
        """Poll the store; this thread may hang in a call to it."""
        while not self._stop.is_set():
            resting = self._watch.phase in (Phase.TRAIN, Phase.PARKED)
            self._kick.wait(TRAINING_TICK_S if resting else TICK_S)
            self._kick.clear()
            if self._stop.is_set():
                return
            watch = self._watch
            # A store that does not answer is no failure yet: `_count` allows `silence_s`.
            with suppress(RuntimeError):
                told = self._detector.failure()
                if told is not None and self._ending.acquire(blocking=False):
                    sentence = f"rank {self._rank} leaves {watch}: {told}"
                    self._end(EXIT_TOLD, sentence, quiet=True)
                problem = self._detector.look(watch)
                if problem:
                    self._fail(EXIT_PEER_GONE, f"{problem}; {self._all_leave()}.")

    def _count(self) -> None:
        """End this process when its deadline has passed; nothing here may wait without a bound."""
        while not self._stop.wait(GUARD_TICK_S):
            watch, now = self._watch, time.monotonic()
            lasted_s, allowed_s = now - watch.since, self._deadlines.of(watch.phase)
            silent_s = now - self._detector.heard_at
            if lasted_s > allowed_s:
                self._expire(watch, lasted_s)
            elif silent_s > self._deadlines.silence_s:
                self._fail(
                    EXIT_DEADLINE,
                    f"rank {self._rank} (pid {os.getpid()}), in {watch}, has heard nothing from "
                    f"the launch's store at {os.environ.get('MASTER_ADDR', 'an unknown host')} for "
                    f"{silent_s:.1f} s (it may be silent for {self._deadlines.silence_s:g} s): its "
                    f"host or the way to it is lost; {self._all_leave()}.",
                )

    def _expire(self, watch: Watch, lasted_s: float) -> None:
        sentence = (
            f"rank {self._rank} (pid {os.getpid()}) has been in {watch} for {lasted_s:.1f} "
            f"s, past its deadline of {self._deadlines.of(watch.phase):g} s; {self._all_leave()}."
        )
        with suppress(RuntimeError):
            others = within(PATIENCE_S, self._detector.others, "")
            sentence += f" Seen last: {others}." if others else " The store does not answer."
        self._fail(EXIT_DEADLINE, sentence)

    def _fail(self, code: int, sentence: str) -> None:
        """End the launch: tell why, end stopped peers, which cannot end themselves, then leave."""
        if not self._ending.acquire(blocking=False):
            # The other thread is doing this already, and needs time to report why.
            return
        # Kept and told before any peer is ended: ranks that lose their connection to it would name
        # that as the cause. A store whose own process is stopped does not answer.
        within(PATIENCE_S, lambda: self._note(code, sentence), None)
        first = within(PATIENCE_S, lambda: self._detector.tell(sentence), True)
        end_stopped(self._detector.on_this_host())
        if first:
            killed = end_stragglers(self._detector.on_this_host(), self._deadlines.leave_s)
            if killed:
                sentence += f" Ended by force: rank {', '.join(map(str, killed))}."
        self._end(code, sentence, quiet=not first)

    def _end(self, code: int, sentence: str, *, quiet: bool) -> None:
        """Report why on stderr and on disk, unless `quiet`, and exit without Python's cleanup."""
        if not quiet:
            within(PATIENCE_S, lambda: say(sentence), None)
            within(PATIENCE_S, lambda: self._note(code, sentence), None)
        end_stopped(self._detector.on_this_host())
        os._exit(code)

    def _note(self, code: int, sentence: str) -> None:
        """Write this rank's failure sentence to the run folder; errors are ignored.

        A better sentence replaces the first one and keeps its time.
        Without fsync: this process ends within seconds, and a busy disk may take longer.
        """
        self._failed_at_s = self._failed_at_s or time.time()
        words = {
            "rank": self._rank, "code": code, "sentence": sentence, "at_s": self._failed_at_s
        }  # fmt: skip
        with suppress(OSError):
            write_json(self._folder.failures / f"rank-{self._rank}.json", words, sync=False)

    def _all_leave(self) -> str:
        point = within(PATIENCE_S, self._resume_point, "the last verified checkpoint")
        return f"all ranks leave so that the launcher restarts from {point}"

    def _resume_point(self) -> str:
        """Name the newest checkpoint, from which a restart will resume."""
        with suppress(OSError):
            found = self._folder.checkpoints()
            return found[0].name if found else "the beginning"
        return "the last verified checkpoint"


def say(sentence: str) -> None:
    """Write a sentence to stderr directly, without Python's buffers."""
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"wattmesh: {sentence}\n".encode())
