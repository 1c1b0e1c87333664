"""The control cycle: observe, decide, act, and say in one English sentence what was decided.

`Cycle` does no I/O of its own: it observes through one port and acts through another, and has no
third. In the daemon both are the journal (`observe.py`, `act.py`); in replay and in property tests
they are a simulated run (`wattmesh.controller.replay.drivers`). Time is an argument.

The cycle is level-triggered: every turn starts only from what it observes, so a daemon that was
killed continues from the journal. An observation carries the newest plan of each run; nothing waits
for one, and a run without a plan is still decided on.
An error in one run's numbers does not affect other runs.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from wattmesh.controller.cycle.cap_held import CapNow
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.errors import Fenced, FixInput, JournalUnavailable
from wattmesh.policies.decision import Action, Decision, Mode, Observation
from wattmesh.policies.powercap.triggers import Response
from wattmesh.policies.rules.decide import decide

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleObservation:
    """What one observation found.

    Attributes:
        cap: the power cap in force, and how it is kept; None if there is none.
        caps_ahead: those that are announced, the next first. `caps_beside`: those that hold too,
            and are no lower.
        demand: what demand response makes of its signals.
        leads: whether this daemon leads, and so may act.
    """

    observation: Observation
    cap: CapNow | None = None
    caps_ahead: tuple[CapRow, ...] = ()
    caps_beside: tuple[CapRow, ...] = ()
    demand: tuple[Response, ...] = ()
    leads: bool = True


Shown = TypeVar("Shown", bound=CycleObservation)
Shown_co = TypeVar("Shown_co", bound=CycleObservation, covariant=True)
Shown_contra = TypeVar("Shown_contra", bound=CycleObservation, contravariant=True)


class Observer(Protocol[Shown_co]):
    """The port through which a cycle observes."""

    def observe(self, now: datetime) -> Shown_co:
        """Observe everything, the runs' newest plans included, without deciding anything.

        Raises:
            JournalUnavailable, FixInput: nothing can be observed; every run is held.
        """
        ...


class Actor(Protocol[Shown_contra]):
    """The port through which a cycle acts. It does nothing while another daemon leads."""

    def settle(self, seen: Shown_contra) -> bool:
        """Close what can no longer end by itself; return whether anything changed.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        ...

    def act(self, seen: Shown_contra, decisions: Sequence[Decision]) -> None:
        """Record and carry out what was decided about `seen`.

        Raises:
            Fenced: another daemon leads by now; nothing was written.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What one turn saw and decided.

    Attributes:
        trouble: why the turn failed; "" if it did not.
        cap: the power cap in force, and how it is kept. `caps_ahead`: those announced;
            `caps_beside`: those that hold too, and are no lower.
        demand: what demand response makes of its signals.
    """

    at: datetime
    sentence: str
    decisions: tuple[Decision, ...] = ()
    observation: Observation | None = None
    trouble: str = ""
    cap: CapNow | None = None
    caps_ahead: tuple[CapRow, ...] = ()
    caps_beside: tuple[CapRow, ...] = ()
    demand: tuple[Response, ...] = ()


TOLD_AGAIN = timedelta(hours=1)
"""How often an unchanged decision is logged at INFO."""


class Cycle(Generic[Shown]):
    """Runs one turn after another; between turns it keeps only what it logged last."""

    def __init__(self, observer: Observer[Shown], actor: Actor[Shown]) -> None:
        """Take the two ports."""
        self._observer = observer
        self._actor = actor
        self._told: tuple[object, datetime | None] = (None, None)

    def run(self, now: datetime) -> CycleReport:
        """Run one turn at `now`; holds every run, instead of raising, if the journal fails."""
        try:
            report = self._turn(now)
        except (JournalUnavailable, FixInput) as error:
            sentence = f"Holding every run: {error}."
            report = CycleReport(at=now, sentence=sentence, trouble=str(error))
        except Fenced as error:
            report = CycleReport(at=now, sentence=f"Standing by: {error}.", trouble=str(error))
        self._tell(report)
        return report

    def _turn(self, now: datetime) -> CycleReport:
        seen = self._observer.observe(now)
        if self._actor.settle(seen):
            seen = self._observer.observe(now)
        decisions = decide(seen.observation)
        self._actor.act(seen, decisions)
        return CycleReport(
            at=now,
            sentence=summary(seen.observation, decisions, leading=seen.leads),
            decisions=decisions,
            observation=seen.observation,
            cap=seen.cap,
            caps_ahead=seen.caps_ahead,
            caps_beside=seen.caps_beside,
            demand=seen.demand,
        )

    def _tell(self, report: CycleReport) -> None:
        """Log the decisions at INFO if they changed, or once every `TOLD_AGAIN`."""
        gist = report.trouble or tuple(
            (each.run, each.action, each.kind, each.current, each.target)
            for each in report.decisions
        )
        said, at = self._told
        if gist == said and at is not None and abs(report.at - at) < TOLD_AGAIN:
            log.debug("%s", report.sentence)
            return
        self._told = (gist, report.at)
        log.info("%s", report.sentence)


def summary(
    observation: Observation, decisions: Sequence[Decision], *, leading: bool = True
) -> str:
    """Say in one English sentence what a turn decided: the most eventful run first.

    The same sentence goes to the log, the journal and the screen.
    """
    role = "" if leading else "Standing by, another daemon leads: "
    if not decisions:
        return f"{role}No live run; observing {observation.carbon.signal or 'no grid signal'}."
    names = {run.run: run.name for run in observation.runs}
    first = max(decisions, key=lambda each: each.action is not Action.HOLD)
    would = ""
    if observation.mode is not Mode.ACT and first.action is not Action.HOLD:
        would = f"(mode {observation.mode}, so only said) "
    others = len(decisions) - 1
    tail = f" ({others} other run{'s' if others > 1 else ''} decided too.)" if others else ""
    return f"{role}{names[first.run]}: {would}{first.reason}{tail}"
