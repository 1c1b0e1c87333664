"""The control cycle: observe, decide, act, and say in one English sentence what was decided.

Level-triggered: every cycle reads the whole observed state and starts from nothing else, so a
daemon that was killed goes on where the journal stands. The same code runs live, in replay and in
the demo; time is an argument.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

from wattmesh.controller.cycle.act import carry_out, settle, settle_clock
from wattmesh.controller.cycle.cap_held import CapNow
from wattmesh.controller.cycle.capping import apply
from wattmesh.controller.cycle.clocks import BACK_S, Controls
from wattmesh.controller.cycle.fleet import LOST_HELD, GpusRead
from wattmesh.controller.cycle.isolation import Isolation
from wattmesh.controller.cycle.measured_speeds import note_speeds
from wattmesh.controller.cycle.observe import SignalFacts, observe
from wattmesh.controller.cycle.think import NoPlans, Plans, think
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.nodes.caps import CapRow
from wattmesh.controller.journal.nodes.node_store import NodeRow
from wattmesh.controller.journal.runs.run_store import EXPIRED, RunRow
from wattmesh.errors import Fenced, FixInput, JournalUnavailable
from wattmesh.policies.decision import (
    Action,
    BudgetLeft,
    CarbonView,
    Decision,
    Mode,
    Observation,
    PolicySettings,
    Rung,
)
from wattmesh.policies.isolation import UNDECIDABLE
from wattmesh.policies.words import duration

log = logging.getLogger(__name__)

LONGEST_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSettings:
    """What a reload, or the nodes, may change between two cycles.

    Attributes:
        gpus: which are read; None: power is not read at all, or was not yet.
        controls: what the nodes' actuators said lately, by GPU.
        nodes: every node that was not retired.
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
    gpus: GpusRead | None = None
    controls: Controls = field(default_factory=dict)
    nodes: tuple[NodeRow, ...] = ()
    budgets: Mapping[str, BudgetLeft] = field(default_factory=dict)
    clock_lag_s: float = BACK_S
    lost_s: float = inf
    stepped_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleReport:
    """What one cycle saw and decided.

    Attributes:
        trouble: why it could not do its work; "" when it could.
        cap: the operator's power cap in force, and how it is kept.
    """

    at: datetime
    sentence: str
    decisions: tuple[Decision, ...] = ()
    observation: Observation | None = None
    trouble: str = ""
    cap: CapNow | None = None


TOLD_AGAIN = timedelta(hours=1)
"""What stays as it was is logged so often."""


class Cycle:
    """One control cycle after another; keeps nothing between them but what it logged last."""

    def __init__(
        self,
        journal: Journal,
        settings: Callable[[], CycleSettings],
        epoch: Callable[[], int | None],
        plans: Plans | None = None,
        isolation: Isolation | None = None,
    ) -> None:
        """Take the journal, the settings as they stand, this daemon's epoch and who plans.

        Args:
            journal: what is remembered.
            settings: as they stand.
            epoch: None while another daemon leads.
            plans: None: nobody plans, and the price rule decides alone.
            isolation: counts what fails for one run alone.
        """
        self._journal = journal
        self._settings = settings
        self._epoch = epoch
        self._plans = plans or NoPlans()
        self._isolation = isolation or Isolation()
        self._told: tuple[object, datetime | None] = (None, None)

    def run(self, now: datetime) -> CycleReport:
        """Run one cycle at `now`; never raises for an outside failure, holds instead."""
        try:
            report = self._run(now)
        except (JournalUnavailable, FixInput) as error:
            sentence = f"Holding every run: {error}."
            report = CycleReport(at=now, sentence=sentence, trouble=str(error))
        except Fenced as error:
            report = CycleReport(at=now, sentence=f"Standing by: {error}.", trouble=str(error))
        self._tell(report)
        return report

    def _tell(self, report: CycleReport) -> None:
        """Log what was decided when it is another than before, and once an hour."""
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

    def _run(self, now: datetime) -> CycleReport:
        """Settle what is over, observe, decide, act."""
        settings, epoch = self._settings(), self._epoch()
        # Another version may have upgraded the database under us: its rows are not ours to judge.
        self._journal.check_revision()
        if epoch is not None:
            self._settle(settings, now, epoch)
        unstepped = now - timedelta(seconds=settings.stepped_s)
        cap_row = self._journal.caps.in_force(now, unstepped)
        observation = observe(
            self._journal,
            now=now,
            mode=settings.mode,
            policy=settings.policy,
            facts=settings.facts,
            cycle_s=settings.cycle_s,
            clock_lag_s=settings.clock_lag_s,
            gpus=settings.gpus,
            controls=settings.controls,
            budgets=settings.budgets,
            # Nothing is decided about who is silent, but their boards draw under a cap.
            silent=LOST_HELD if cap_row else timedelta(0),
        )
        observation, cap = self._capped(observation, cap_row, settings)
        observation, decisions = think(observation, self._plans)
        self._tell_undecidable(observation, decisions)
        if epoch is not None:
            self._note_rung(settings.facts, observation.carbon, now)
            note_speeds(self._journal, observation, epoch=epoch, isolation=self._isolation)
            self._act(decisions, observation, epoch)
        return CycleReport(
            at=now,
            sentence=summary(observation, decisions, leading=epoch is not None),
            decisions=decisions,
            observation=observation,
            cap=cap,
        )

    def _capped(
        self, seen: Observation, row: CapRow | None, settings: CycleSettings
    ) -> tuple[Observation, CapNow | None]:
        """Bring the operator's power cap into what was seen, if one is in force."""
        if row is None:
            return seen, None
        return apply(seen, row, settings.nodes, self._journal.runs.open(seen.now))

    def _settle(self, settings: CycleSettings, now: datetime, epoch: int) -> None:
        """Give up on switches that cannot be confirmed and clocks that cannot be kept."""
        frozen = self._journal.runs.frozen_all()
        timeout_s = settings.switch_timeout_s
        switching = self._journal.switches.open_runs()
        # Longer than any clock tells where nobody is to be ended.
        silent = timedelta(seconds=min(settings.lost_s, LONGEST_S))
        for row in self._journal.runs.unsettled(now, switching, silent):
            with self._isolation.alone(row.run, "settling what is over"):
                self._expire(row, settings.lost_s, now, epoch)
                if row.run in switching:
                    settle(self._journal, row, now=now, epoch=epoch, timeout_s=timeout_s)
                if row.state == "lost" and row.clock_mhz is None:
                    continue
                settle_clock(
                    self._journal,
                    row,
                    settings.controls,
                    now=now,
                    epoch=epoch,
                    mode=settings.mode,
                    frozen=frozen,
                )

    def _expire(self, row: RunRow, lost_s: float, now: datetime, epoch: int) -> None:
        """End a run that has been silent for too long; it goes on when it is heard again."""
        silent_s = (now - row.last_seen_at).total_seconds()
        if row.state == "lost" and silent_s > lost_s:
            reason = f"not heard for {duration(silent_s)}"
            self._journal.runs.end(row.run, EXPIRED + reason, now=now, epoch=epoch)
            log.info("%s: ended, %s", row.name, reason)

    def _note_rung(self, facts: SignalFacts | None, carbon: CarbonView, now: datetime) -> None:
        """Remember since when decisions rest on what they rest on; the first has no "since"."""
        if facts is None:
            return
        fetch = self._journal.carbon.last_fetch(facts.signal)
        before = fetch.rung if fetch else ""
        if before != carbon.rung and (before or carbon.rung is not Rung.NONE):
            since = now if before else None
            self._journal.carbon.stands_on(facts.signal, carbon.rung.value, since)

    def _act(self, decisions: Sequence[Decision], seen: Observation, epoch: int) -> None:
        """Remember every decision; carry it out only in mode `act`."""
        now, mode = seen.now, seen.mode
        rows = {row.run: row for row in self._journal.runs.live(now)}
        for decision in decisions:
            with self._isolation.alone(decision.run, "carrying out what was decided"):
                self._journal.decisions.record(
                    decision, now=now, epoch=epoch, mode=mode, forecast=seen.carbon.forecast
                )
                if mode is Mode.ACT:
                    carry_out(self._journal, rows[decision.run], decision, now=now, epoch=epoch)

    def _tell_undecidable(self, seen: Observation, decisions: Sequence[Decision]) -> None:
        """Count the runs that nothing could be decided about; each cause is told once."""
        for each in decisions:
            if each.kind == UNDECIDABLE:
                view = next(run for run in seen.runs if run.run == each.run)
                self._isolation.note(each.run, f"{view.name}: {each.reason}")


def summary(
    observation: Observation, decisions: Sequence[Decision], *, leading: bool = True
) -> str:
    """Say in one English sentence what a cycle decided: the most eventful run first.

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
