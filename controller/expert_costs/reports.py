"""The newest reports of expert-tokens, by run, in memory between two turns of the learner.

Invariant: a run holds at most `MOST_WAITING` reports here, and only runs that the journal admitted.
"""

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock

from wattmesh.policies.experts.live_spans import HeardPair, RunCount
from wattmesh.reconfig.wire.experts import ExpertTokenReport

MOST_WAITING = 8
"""A report waits for one reading of the counters, some seconds; the oldest one goes first."""


class TokenReports:
    """Reports that wait; handlers add to them, the learner takes them."""

    def __init__(self) -> None:
        """Begin without any."""
        self._waiting: dict[str, deque[RunCount]] = {}
        self._newest: dict[str, tuple[str, int]] = {}
        self._lock = Lock()

    def add(self, report: ExpertTokenReport, at_s: float) -> bool:
        """Keep a report that counts from `at_s` on; False: it is a repeat, or older than one."""
        with self._lock:
            launch, seq = self._newest.get(report.run, ("", -1))
            if launch == report.incarnation and report.seq <= seq:
                return False
            self._newest[report.run] = (report.incarnation, report.seq)
            waiting = self._waiting.setdefault(report.run, deque(maxlen=MOST_WAITING))
            waiting.append(
                RunCount(
                    at_s=at_s - report.age_s,
                    launch=report.incarnation,
                    layout=str(report.layout),
                    tokens=report.tokens,
                    busy_s=report.busy_s,
                    strength=report.strength,
                    variation=report.variation,
                    stopped=report.stopped,
                    version=report.version,
                    pending=report.pending,
                    gap=report.gap,
                    pairs=tuple(
                        HeardPair(
                            step=each.step,
                            gap=each.gap,
                            strength=each.strength,
                            lean=each.lean,
                            generation=each.generation,
                        )
                        for each in report.pairs
                    ),
                    dropped=report.dropped,
                    seq=report.seq,
                )
            )
        return True

    def remember(self, run: str, launch: str, seq: int) -> None:
        """Take a launch's reports up to one for heard, as another daemon has learned from them."""
        with self._lock:
            self._newest.setdefault(run, (launch, seq))

    def runs(self) -> tuple[str, ...]:
        """Name the runs that ever reported, and were not forgotten."""
        with self._lock:
            return tuple(self._newest)

    def take(self, run: str, ready: Callable[[RunCount], bool]) -> tuple[RunCount, ...]:
        """Take the oldest reports of a run that are ready, up to the first that is not."""
        taken = []
        with self._lock:
            waiting = self._waiting.get(run, deque())
            while waiting and ready(waiting[0]):
                taken.append(waiting.popleft())
        return tuple(taken)

    def drop(self, run: str) -> None:
        """Drop what waits of a run: its times cannot be compared any more."""
        with self._lock:
            self._waiting.pop(run, None)

    def keep(self, runs: Iterable[str]) -> None:
        """Forget every other run."""
        kept = set(runs)
        with self._lock:
            for run in self._newest.keys() - kept:
                del self._newest[run]
                self._waiting.pop(run, None)
