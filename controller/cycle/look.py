"""Everything that a turn of the live cycle reads of the journal, in one transaction. I/O in.

Invariant: all of it is of one state of the journal, and every table is asked once, however many
runs there are. Nothing is decided here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from wattmesh.controller.cycle.carbon_view import SignalFacts, carbon_view
from wattmesh.controller.cycle.clocks import BACK_S
from wattmesh.controller.cycle.cycle import Seen
from wattmesh.controller.cycle.fleet import SILENT_HELD, Fleet
from wattmesh.controller.journal.energy.ledger import TokenMark
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.journal.runs.outages import Launches
from wattmesh.controller.journal.runs.run_store import RunRow
from wattmesh.controller.journal.runs.switches import Histories
from wattmesh.policies.decision import BudgetLeft, CarbonView, Mode, PolicySettings

SLOT = timedelta(days=1)
"""No slot of the ledger is longer: a budget's day ends each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """What a reload may change between two turns, and what else the daemon knows by itself.

    Attributes:
        budgets: what is left of the budgets that are a run's own, by its name.
        clock_lag_s: until a clock that is wished is in force (`controller.clocks.back_s`).
        lost_s: a run that was not heard for longer is ended.
        stepped_s: how far ahead the wall clock is by steps that may be a mistake.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The journal as one turn saw it.

    Attributes:
        runs: those that have not ended, or not long ago, or of which something is to be settled.
        frozen: why nothing at all is acted upon; "" when it is.
        launches: of runs that have not ended, by run; `marks` likewise, where a service level is
            kept.
        written_rung: what decisions rested on, as it was last written down; None: no poll yet.
    """

    now: datetime
    runs: tuple[RunRow, ...]
    fleet: Fleet
    frozen: str
    cap: CapRow | None
    histories: Histories
    launches: Mapping[str, Launches]
    marks: Mapping[str, tuple[TokenMark, ...]]
    carbon: CarbonView
    written_rung: str | None

    def live(self) -> tuple[RunRow, ...]:
        """Give the runs that are live, oldest first."""
        return tuple(each for each in self.runs if each.state == "live")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSeen(Seen):
    """What the journal showed, and what it was judged by. `epoch`: None while another leads."""

    look: Look
    settings: CycleSettings
    epoch: int | None


def look(
    journal: Journal,
    settings: CycleSettings,
    fleet: Callable[[datetime], Fleet],
    now: datetime,
) -> Look:
    """Read everything of one turn.

    Raises:
        JournalUnavailable: the database does not answer. FixInput: it is of another version, whose
            rows are not ours to judge.
    """
    level = settings.policy.sla_throughput_share
    begin = now - timedelta(seconds=settings.policy.sla_window_s)
    with journal.database.one_state():
        journal.check_revision()
        fetch = journal.carbon.last_fetch(settings.facts.signal) if settings.facts else None
        return Look(
            now=now,
            runs=journal.runs.looked_at(now, now - SILENT_HELD),
            fleet=fleet(now),
            frozen=journal.runs.frozen_all(),
            cap=journal.caps.in_force(now, now - timedelta(seconds=settings.stepped_s)),
            histories=journal.switches.histories(),
            launches=journal.outages.launches(),
            marks=journal.ledger.marks_of_runs(begin - SLOT) if level else {},
            carbon=carbon_view(journal, settings.facts, now),
            written_rung=fetch.rung if fetch else None,
        )
