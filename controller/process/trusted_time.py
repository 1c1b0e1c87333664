"""Whether the wall clock may be trusted now; all that deletes, closes or settles by it asks here.

It may not for an hour of monotonic time after a step in either direction, nor while the kernel says
that it is not synchronised. Invariant: whoever asks first notices a step, without waiting for the
next turn of a loop; a restart does not forget a step; and a step that happened while no daemon ran
is noticed when the next daemon reads the journal.
"""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Protocol

from wattmesh.controller.process.loops import Clock
from wattmesh.controller.process.wall_clock import (
    ClockReading,
    ClockRecord,
    ClockStep,
    left_s,
    step_clause,
    step_sentence,
    stepped_s,
    while_away,
)
from wattmesh.quantities import duration

HOLD_S = 3600.0
"""For this long after a step nothing is deleted, closed or settled: time to undo a wrong step."""

MARK_S = 30.0
"""Both clocks are written down this often."""

READS, READ_S = 3, 0.5
"""Both clocks are read up to `READS` times, until the reads are less than `READ_S` apart (a machine
may pause between them)."""

UNSYNCHRONISED = (
    "The kernel says that the wall clock is not synchronised, so nothing is deleted, closed or "
    "settled until it is: see that a time service runs (`timedatectl`; chrony needs `rtcsync`), or "
    "set journal.trust_clock where something else keeps the clock."
)
UNREAD = "The newest time in the journal is not read yet, so nothing is deleted, closed or settled."


class Marks(Protocol):
    """Where both clocks are written down."""

    def newest(self) -> ClockRecord | None:
        """Give the newest mark of this machine."""
        ...

    def newest_date(self) -> datetime | None:
        """Give the newest date of anything."""
        ...

    def keep(self, mark: ClockRecord) -> None:
        """Write a mark in the place of the one before."""
        ...


class TrustedTime:
    """Follows the wall and the monotonic clock; any thread may call it."""

    def __init__(self, clock: Clock, believed: Callable[[], bool] = lambda: False) -> None:
        """Begin with a clock that was not stepped.

        Args:
            clock: both clocks, and what the kernel says.
            believed: whether the operator vouches for a clock that the kernel calls unsynchronised.
        """
        self._clock = clock
        self._believed = believed
        self._lock = threading.Lock()
        self._before: ClockReading | None = None
        self._until_s = clock.monotonic()
        self._why = ""
        self._stepped_s = 0.0
        self._untold: list[ClockStep] = []
        self._recalled = True
        self._marked_s: float | None = None
        self.apart = ""
        """Why this clock and the database's are not one; "" while they are."""

    def await_journal(self) -> None:
        """Trust nothing before `keep` has read what time the journal knew last."""
        self._recalled = False

    def doubt(self) -> str:
        """Say why nothing may be deleted, closed or settled now, and what to do; "" if it may."""
        if not self._recalled:
            return UNREAD
        if (held_s := self.held_s()) > 0:
            return (
                f"{self._why}, so nothing is deleted, closed or settled for {duration(held_s)} "
                "more: if that time is wrong, put it right before then (`timedatectl`)."
            )
        if self.apart:
            return f"{self.apart}, so nothing is deleted, closed or settled."
        if self._clock.synchronised() is False and not self._believed():
            return UNSYNCHRONISED
        return ""

    def held_s(self) -> float:
        """Give the seconds for which a step still holds everything; 0 when none does.

        Until the journal has said what time it knew last, there may have been a step: `HOLD_S`.
        """
        with self._lock:
            look = self._look()
            rest_s = self._until_s - look.monotonic_s
            return max(0.0, rest_s) if self._recalled else HOLD_S

    def stepped_s(self) -> float:
        """Give the sum, in seconds, of the steps that still hold everything; positive is forward.

        Whatever must end neither earlier nor later because of a step ends by the wall clock less
        this sum.
        """
        with self._lock:
            self._look()
            return self._stepped_s

    def unstepped(self, now: datetime) -> datetime:
        """Give what the wall clock, which reads `now`, would read without those steps."""
        return now - timedelta(seconds=self.stepped_s())

    def take_steps(self) -> tuple[ClockStep, ...]:
        """Give the steps that this call has not given before, oldest first."""
        with self._lock:
            self._look()
            steps, self._untold = tuple(self._untold), []
        return steps

    def keep(self, marks: Marks, *, ends: bool = False) -> None:
        """Read once what time was known last, then write down both clocks now and then.

        Args:
            marks: where both clocks are written.
            ends: whether the daemon stops, so that they are written now.

        Raises:
            JournalUnavailable: the next call does it.
        """
        if not self._recalled:
            self._recall(marks.newest(), marks)
        with self._lock:
            look = self._look()
            due = self._marked_s is None or look.monotonic_s - self._marked_s >= MARK_S
            held_s = max(0.0, self._until_s - look.monotonic_s)
            mark = ClockRecord(
                at=look.now,
                monotonic_s=look.monotonic_s,
                boot_id=self._clock.boot(),
                held_s=held_s,
                why=self._why if held_s else "",
                stepped_s=self._stepped_s if held_s else 0.0,
            )
        if due or ends:
            marks.keep(mark)
            self._marked_s = mark.monotonic_s

    def _recall(self, known: ClockRecord | None, marks: Marks) -> None:
        """Compare with what an earlier daemon wrote down; hold where the clock was stepped."""
        newest = marks.newest_date() if known is None else None
        boot_id = self._clock.boot()
        with self._lock:
            look = self._look()
            clause, step_s = while_away(known, newest, look, boot_id)
            if known is not None and (rest_s := left_s(known, look, boot_id)) > 0:
                self._hold(known.why, look.monotonic_s + rest_s, known.stepped_s)
            if clause:
                self._untold.append(ClockStep(step_s=0.0, sentence=f"{clause}."))
                self._hold(clause, look.monotonic_s + HOLD_S, step_s)
            self._recalled = True

    def _look(self) -> ClockReading:
        """Read both clocks, and note a step since the look before; the caller holds the lock."""
        look = self._read()
        if look.monotonic_s >= self._until_s:
            self._stepped_s = 0.0
        step_s, self._before = stepped_s(self._before, look), look
        if step_s:
            sentence = step_sentence(step_s, look.now)
            self._untold.append(ClockStep(step_s=step_s, sentence=sentence))
            self._hold(step_clause(step_s, look.now), look.monotonic_s + HOLD_S, step_s)
            self._marked_s = None
        return look

    def _hold(self, why: str, until_s: float, step_s: float) -> None:
        """Add a step; hold everything until a monotonic time, unless it is held longer already."""
        self._stepped_s += step_s
        if until_s > self._until_s:
            self._why, self._until_s = why, until_s

    def _read(self) -> ClockReading:
        """Read both clocks as of one moment."""
        for _ in range(READS):
            began_s = self._clock.monotonic()
            now, ended_s = self._clock.now(), self._clock.monotonic()
            if ended_s - began_s < READ_S:
                break
        return ClockReading(now=now, monotonic_s=ended_s)
