"""This run's energy and grams, written to where people look at their losses; see integrations/.

A thread of its own asks the daemon what the run has spent, and hands each new answer to a tracker
at the newest step that the script told.

Invariant: the script never waits (`close` up to `CLOSE_S`), and nothing is raised into it. A figure
that is not known is not written, least of all as zero. What keeps figures away is told once.
"""

import atexit
import logging
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Protocol

from wattmesh.errors import SourceUnavailable
from wattmesh.reconfig.launch.closing import Closing
from wattmesh.reconfig.wire.link import DaemonLink
from wattmesh.reconfig.wire.messages import Spent

log = logging.getLogger(__name__)

CALL_LIMIT_S = 3.0
CLOSE_S = 5.0
"""How long `close` waits for the last answer and for the tracker to take it."""

FIRST_PAUSE_S, EVERY_S = 0.5, 10.0
"""Pause between two questions: the first one, doubled up to the second."""

FLAGS = ("estimated", "provisional", "simulated")

BOUNDARY = (
    "joules as the power sources measure them; grams of those, times the site's PUE if one is set"
)

WORDS = ("wattmesh/signal", "wattmesh/flags", "wattmesh/boundary", "wattmesh/why_unknown")

NO_MORE = "-"
"""Written once for words that may have been said before, by this process, an earlier launch or
another rank, and are not true (any more)."""

UNKNOWN_ASKS = 4
"""After so many answers that there is no such run, that is told: a run registers in a thread of its
own, so it is not known at once."""


class MeasuredRun(Protocol):
    """A run by one rank's handle: what `wattmesh.observe` and `wattmesh.attach` return."""

    @property
    def run(self) -> str:
        """The run's UUID; "" where this rank does not know it."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for the run now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedFigures:
    """What is written at one step.

    Attributes:
        step: the script's newest step.
        numbers: finite numbers by name; a name that is missing is not known.
        words: what the numbers are (signal, flags), by name; never empty texts.
        changed: those words that the tracker does not have from this process, or not as its newest.
    """

    step: int
    numbers: Mapping[str, float]
    words: Mapping[str, str]
    changed: Mapping[str, str] = field(default_factory=dict)


class Tracker(Protocol):
    """Where figures are written; called from one thread, may raise and may take its time."""

    def write(self, figures: LoggedFigures) -> None:
        """Write what is known at one step."""
        ...


def figures(spent: Spent, step: int) -> LoggedFigures | None:
    """Name what is known of a run; None where neither its energy nor its grams are. Pure."""
    amounts = {
        "wattmesh/energy_j": spent.energy_j,
        "wattmesh/carbon_g": spent.carbon_g,
    }
    numbers = {name: value for name, value in amounts.items() if _finite(value)}
    if not numbers:
        return None
    beside = {
        "wattmesh/energy_without_grams_j": spent.unpriced_j,
        "wattmesh/unobserved_gpu_s": spent.unobserved_s,
        "wattmesh/unobserved_at_most_j": spent.upper_j,
    }
    numbers |= {name: value for name, value in beside.items() if _finite(value)}
    numbers |= {f"wattmesh/is_{flag}": float(flag in spent.flags) for flag in FLAGS}
    signal = spent.signal if "wattmesh/carbon_g" in numbers else ""
    texts = (signal, "+".join(spent.flags) or "measured", BOUNDARY, spent.why_unknown)
    return LoggedFigures(
        step=step,
        numbers={name: value for name, value in numbers.items() if value is not None},
        # A store that takes UTF-8 alone would take no figure at all beside a text that is none.
        words={
            name: text.encode(errors="replace").decode()
            for name, text in zip(WORDS, texts, strict=True)
            if text
        },
    )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


class FigureLog(Closing):
    """Writes a run's figures to a tracker; call it after each step, or as rarely as you like."""

    def __init__(
        self,
        run: MeasuredRun,
        tracker: Tracker,
        *,
        every_s: float = EVERY_S,
        link: DaemonLink | None = None,
    ) -> None:
        """Prepare; the thread begins with the first call on the rank that leads.

        Args:
            run: what `wattmesh.observe` or `wattmesh.attach` returned.
            tracker: where to write.
            every_s: pause between two questions to the daemon, from 1 s on.
            link: the daemon; None finds it in WATTMESH_URL.
        """
        self._run = run
        self._tracker = tracker
        self._every_s = max(1.0, float(every_s)) if math.isfinite(every_s) else EVERY_S
        self._link = link
        self._name = ""
        self._step: int | None = None
        self._written: LoggedFigures | None = None
        self._told: set[str] = set()
        self._unknown = 0
        self._over = threading.Event()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    def __call__(self, step: int) -> None:
        """Tell the script's newest step; returns at once and raises nothing."""
        if self._over.is_set() or os.getpid() != self._pid:
            return
        try:
            if not self._run.leads:
                self._step = None  # another rank writes now
                return
            if self._step is None:
                self._written = None
            self._step = int(step)
            if self._thread is None:
                self._begin()
        except Exception as error:
            self._tell_once("begin", f"nothing of it is logged: {error!r}")
            self._step = None

    def _begin(self) -> None:
        self._name = self._run.run
        if self._link is None:
            self._link = DaemonLink.from_environment()
        if self._link is None or not self._name:
            self._over.set()
            self._tell_once("begin", "WATTMESH_URL is not set, so nothing of it is logged")
            return
        self._thread = threading.Thread(target=self._watch, name="wattmesh-figures", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def _watch(self) -> None:
        """Ask and write until the end, and once more then; the body of the thread."""
        pause_s = FIRST_PAUSE_S
        while not self._over.wait(pause_s):
            self._turn()
            pause_s = min(2 * pause_s, self._every_s)
        self._turn()

    def _turn(self) -> None:
        """Ask once, and write what is new."""
        try:
            spent = self._ask()
            step = self._step
            new = figures(spent, step) if spent is not None and step is not None else None
            if new is None or (self._written is not None and _same(new, self._written)):
                return
        except Exception as error:
            self._tell_once("daemon", f"nothing of it is logged meanwhile: {error}")
            return
        try:
            self._tracker.write(_with_endings(new, self._written))
            self._written = new
        except Exception as error:
            self._tell_once("tracker", f"the tracker did not take its figures: {error!r}")

    def _ask(self) -> Spent | None:
        """Ask the daemon what the run has spent; None while it may not know the run yet.

        Raises:
            SourceUnavailable: no usable answer came. InputInvalid: it is no such answer.
        """
        assert self._link is not None
        path = f"/v1/runs/{self._name}/spent"
        answer = self._link.call("GET", path, None, CALL_LIMIT_S)
        if answer.accepted:
            return Spent.from_json(answer.body)
        self._unknown += answer.status == HTTPStatus.NOT_FOUND
        if answer.status == HTTPStatus.NOT_FOUND and self._unknown < UNKNOWN_ASKS:
            return None
        raise SourceUnavailable(f"the daemon answered {answer.status} to {path}")

    def _tell_once(self, kind: str, why: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning(
                "energy and grams of %s: %s (training goes on; this is said once)",
                self._name or "this run",
                why.rstrip("."),
            )

    def _close(self, error: BaseException | None) -> None:
        """Ask and write once more, for at most `CLOSE_S`, then stop."""
        if self._over.is_set() or os.getpid() != self._pid:
            return
        self._over.set()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                self._tell_once("close", f"its newest figures are not written after {CLOSE_S:g} s")


def _same(one: LoggedFigures, other: LoggedFigures) -> bool:
    """Tell whether only the step differs: the daemon books in batches."""
    return one.numbers == other.numbers and one.words == other.words


def _with_endings(new: LoggedFigures, written: LoggedFigures | None) -> LoggedFigures:
    """Take back what was said last and holds no more: a tracker keeps the newest text for ever."""
    said = WORDS if written is None else written.words
    over = {name: NO_MORE for name in said if name not in new.words}
    words = {**new.words, **over}
    before = {} if written is None else written.words
    changed = {name: text for name, text in words.items() if before.get(name) != text}
    return replace(new, words=words, changed=changed)
