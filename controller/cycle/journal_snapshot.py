"""Everything that a turn of the live cycle reads from the journal, in one transaction. I/O in.

Invariant: all of it comes from one state of the journal, and every table is queried once, however
many runs there are. Nothing is decided here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from wattmesh.controller.cycle.carbon_view import SignalFacts, view_after
from wattmesh.controller.cycle.clocks import BACK_S
from wattmesh.controller.cycle.cycle import CycleObservation
from wattmesh.controller.cycle.demand_signals import LOOKS_BACK, read_series
from wattmesh.controller.cycle.fleet import SILENT_HELD, Fleet
from wattmesh.controller.cycle.queue_waits import with_measured_waits
from wattmesh.controller.journal.energy.ledger import TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.caps import CapRow, StandingCaps
from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import Histories
from wattmesh.policies.decision import BudgetLeft, CarbonView, Mode, PolicySettings
from wattmesh.policies.powercap.triggers import CapOrigin, DemandSource, SignalSeries

SLOT = timedelta(days=1)
"""The longest slot of the ledger: a budget's day ends every slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """The settings of one turn, which a reload may change, and what else only this daemon knows.

    Attributes:
        budgets: what is left of the budgets of single runs, by the run's name.
        clock_lag_s: time until a wished clock is in force (`controller.cycle.clocks.back_s`).
        lost_s: a run that was silent for longer is ended; infinite: none is.
        stepped_s: how far the wall clock was stepped ahead, where that may be a mistake.
        clock_doubt: why the wall clock may not be trusted now; "" when it may.
        demand: what demand response follows.
    """

    mode: Mode
    policy: PolicySettings
    facts: SignalFacts | None
    switch_timeout_s: float
    cycle_s: float
    budgets: Mapping[str, BudgetLeft] = field(default_factory=dict)
    clock_lag_s: float = BACK_S
    lost_s: float = inf
    stepped_s: float = 0.0
    clock_doubt: str = ""
    demand: tuple[DemandSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSnapshot:
    """The journal as one turn saw it.

    Attributes:
        runs: those that have not ended, have ended recently, or have something left to settle.
        frozen: why everything is frozen; "" if it is not.
        caps: the power caps that hold or are announced.
        triggered: what demand response set, from the day before on; empty where nothing is to be
            followed or taken back. `demand`: the signals that it follows, as its sources stand.
        launches: of runs that have not ended, by run.
        marks: tokens over time of those runs, if a service level is set; else empty.
        written_rung: the rung on which decisions rested, as last recorded; None: no poll yet.
    """

    now: datetime
    runs: tuple[RunRow, ...]
    fleet: Fleet
    frozen: str
    caps: StandingCaps
    triggered: tuple[CapRow, ...]
    demand: tuple[SignalSeries, ...]
    histories: Histories
    launches: Mapping[str, Launches]
    marks: Mapping[str, tuple[TokenMark, ...]]
    carbon: CarbonView
    written_rung: str | None

    def live(self) -> tuple[RunRow, ...]:
        """Return the live runs, oldest first."""
        return tuple(each for each in self.runs if each.state == "live")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalObservation(CycleObservation):
    """An observation with the snapshot and settings behind it; `epoch`: None if another leads."""

    snapshot: JournalSnapshot
    settings: CycleSettings
    epoch: int | None


def read_snapshot(
    journal: Journal,
    settings: CycleSettings,
    fleet: Callable[[datetime], Fleet],
    now: datetime,
) -> JournalSnapshot:
    """Read everything that one turn needs.

    Raises:
        JournalUnavailable: the database does not answer.
        FixInput: its schema is of another version, whose rows we cannot interpret.
    """
    level = settings.policy.sla_throughput_share
    begin = now - timedelta(seconds=settings.policy.sla_window_s)
    with journal.database.one_state():
        journal.check_revision()
        facts = settings.facts
        fetch = journal.carbon.last_fetch(facts.signal) if facts else None
        launches = journal.outages.launches()
        runs = journal.runs.looked_at(now, now - SILENT_HELD)
        caps = journal.caps.standing(now, now - timedelta(seconds=settings.stepped_s))
        carbon = view_after(journal, facts, fetch, now)
        return JournalSnapshot(
            now=now,
            runs=with_measured_waits(runs, launches),
            fleet=fleet(now),
            frozen=journal.runs.frozen_all(),
            caps=caps,
            triggered=_triggered(journal, settings, caps, now),
            demand=tuple(
                read_series(journal, each, facts, carbon, now) for each in settings.demand
            ),
            histories=journal.switches.histories(),
            launches=launches,
            marks=journal.ledger.marks_of_runs(begin - SLOT) if level else {},
            carbon=carbon,
            written_rung=fetch.rung if fetch else None,
        )


def _triggered(
    journal: Journal, settings: CycleSettings, caps: StandingCaps, now: datetime
) -> tuple[CapRow, ...]:
    """Read what demand response set before, where something follows from it."""
    left = any(each.origin is not CapOrigin.OPERATOR for each in caps.ahead)
    return journal.caps.triggered(now - LOOKS_BACK) if settings.demand or left else ()
