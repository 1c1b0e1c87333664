"""Loops on monotonic time: cycle, sampler and leases each run on one of these.

Invariant: turns are due on a fixed grid of `every_s`, however long earlier turns took, so a loop
never drifts; a turn that overruns is counted, and the next one follows at once and begins a new
grid; no error ends a loop. A loop never waits for a wall time.
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from wattmesh.controller.process.life import boot_id
from wattmesh.errors import WattmeshError
from wattmesh.telemetry.readings import utc_now

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The daemon's monotonic and wall clocks, as one value that tests can step by hand.

    Attributes:
        synchronised: whether the kernel calls the wall clock synchronised; None: it does not say.
        boot: names the boot in which `monotonic` counts.
    """

    monotonic: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = utc_now
    synchronised: Callable[[], bool | None] = lambda: None
    boot: Callable[[], str] = boot_id


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What one loop has done so far.

    Attributes:
        turns: turns that ended. `overruns`: of them, those that ended after the next was due.
        failures: turns that failed because of an outside part (the next turn tries again).
        bugs: turns that ended in an unexpected error.
        last_progress_s: monotonic time at which a turn last ended without a bug; None before.
        last_took_s: seconds that the newest turn took.
        trouble: the newest turn's failure in one sentence; "" when it went well.
    """

    name: str
    every_s: float
    turns: int = 0
    overruns: int = 0
    failures: int = 0
    bugs: int = 0
    last_progress_s: float | None = None
    last_took_s: float | None = None
    trouble: str = ""


def without_numbers(sentence: str) -> str:
    """Replace each number by `#`, so sentences that differ only in numbers compare equal."""
    return re.sub(r"\d+(\.\d+)?", "#", sentence)


class Loop:
    """Calls `body` every `every_s` seconds in a thread of its own, until stopped."""

    def __init__(
        self, name: str, every_s: float, body: Callable[[], None], clock: Clock | None = None
    ) -> None:
        """Prepare the loop; nothing runs before `start` (or `turn`, in tests)."""
        self._body = body
        self._clock = clock or Clock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._due_s: float | None = None
        self._said: set[str] = set()
        self.state = LoopState(name=name, every_s=every_s)

    def start(self) -> None:
        """Begin; the first turn is due now."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next turn due now (new data, an operator's act); callable from any thread."""
        self._wake.set()

    def pace(self, every_s: float) -> None:
        """Change the rhythm from the next turn on (a reload)."""
        self.state = replace(self.state, every_s=every_s)
        self._due_s = None
        self.wake()

    def stop(self, timeout_s: float) -> bool:
        """Ask the loop to end and wait for it; False when its turn did not end in time."""
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def turn(self) -> float:
        """Run one turn; give the seconds to wait before the next one is due."""
        began_s = self._clock.monotonic()
        every_s = self.state.every_s
        due_s = self._due_after(began_s, every_s)
        trouble, bug = self._guarded()
        ended_s = self._clock.monotonic()
        took_s = ended_s - began_s
        # What was missed is not made up for: every turn reads the whole state anyway.
        self._due_s = max(due_s, ended_s)
        self.state = replace(
            self.state,
            turns=self.state.turns + 1,
            overruns=self.state.overruns + (took_s > every_s),
            failures=self.state.failures + bool(trouble and not bug),
            bugs=self.state.bugs + bug,
            last_progress_s=self.state.last_progress_s if bug else ended_s,
            last_took_s=took_s,
            trouble=trouble,
        )
        return self._due_s - ended_s

    def _due_after(self, began_s: float, every_s: float) -> float:
        """Give the moment at which the turn after this one is due, on the loop's own grid."""
        if self._due_s is None or began_s >= self._due_s + every_s:
            return began_s + every_s
        # A turn that was woken early is an extra one: the grid stands.
        return self._due_s + every_s if began_s >= self._due_s else self._due_s

    def _guarded(self) -> tuple[str, bool]:
        """Run the body; give (what went wrong, whether it is a bug)."""
        try:
            self._body()
        except WattmeshError as error:
            # An outage is one line in the log, not one per turn, however it counts its tries.
            same = without_numbers(str(error))
            level = logging.DEBUG if same in self._said else logging.WARNING
            log.log(level, "%s: %s", self.state.name, error)
            self._said.add(same)
            return str(error), False
        except Exception as error:
            log.exception(
                "%s: unexpected error; this is a bug in wattmesh, please report it",
                self.state.name,
            )
            return f"a bug ended its turn ({type(error).__name__}: {error}); please report it", True
        if self._said:
            log.info("%s: works again", self.state.name)
            self._said.clear()
        return "", False

    def _run(self) -> None:
        while not self._stopping.is_set():
            wait_s = self.turn()
            self._wake.wait(wait_s)
            self._wake.clear()
        log.debug("%s: ended after %d turns", self.state.name, self.state.turns)
