"""What each loop and job does in one turn: the cycle, the sampler, the polls, the housekeeping.

Each duty takes its clocks from the loop facts and leaves its newest ones there. Invariant: it may
be killed at any instruction and done again by the next process; what matters is in the journal.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from wattmesh.controller.accounting.closing_runs import close_runs
from wattmesh.controller.cycle.cap_held import CapNow
from wattmesh.controller.cycle.cycle import Cycle
from wattmesh.controller.cycle.fleet import SILENT_HELD, FleetSampler, FleetSnapshot, holders
from wattmesh.controller.cycle.journal_snapshot import JournalObservation
from wattmesh.controller.cycle.observe import JournalObserver
from wattmesh.controller.daemon.metering import Metering
from wattmesh.controller.journal.carbon.forecasts import ISSUES_KEPT
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.loop_facts import Coverage, LoopFacts, NewestSample, NewestTurn
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.signals.exogenous_poller import KEPT as EXOGENOUS_KEPT
from wattmesh.controller.signals.forecaster import Forecaster, NoForecaster
from wattmesh.controller.signals.poller import Polled, Poller
from wattmesh.controller.status.status import status
from wattmesh.errors import JournalUnavailable, SourceRefused
from wattmesh.telemetry.energy.attribution import EnergyClaim, attribute
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.node_claims import NodeClaims
from wattmesh.telemetry.energy.sampler import Sample, Sampler

log = logging.getLogger(__name__)

SCREEN_S = 30.0
REFUSED_AGAIN_S = 900.0
"""A provider that refuses does so until a person fixes something, so it is asked this seldom."""


class CycleDuty:
    """One turn of the control cycle, and what follows from it inside the daemon."""

    def __init__(
        self,
        cycle: Cycle[JournalObservation],
        observer: JournalObserver,
        journal: Journal,
        loop_facts: LoopFacts,
        changes: ChangeSignal,
        *,
        on_clock_step: Callable[[], None],
    ) -> None:
        """Keep the cycle, its observer, and where its facts go.

        `on_clock_step` reschedules what waits on wall time.
        """
        self._cycle = cycle
        self._observer = observer
        self._journal = journal
        self._loop_facts = loop_facts
        self._changes = changes
        self._on_clock_step = on_clock_step
        self._screened: tuple[str, ...] = ()

    def turn(self) -> None:
        """Follow the wall clock, run the cycle, keep its facts, wake runs that await an order."""
        loop_facts = self._loop_facts
        self._follow_clock()
        try:
            report = self._cycle.run(loop_facts.clock.now())
            if report.observation is not None:
                self._take_nodes()
                self._keep_signs()
                self._take_snapshot(report.cap)
        finally:
            # Even after a failure: what waiting runs know is now one cycle old.
            self._changes.ring()
        loop_facts.turned = NewestTurn(monotonic_s=loop_facts.clock.monotonic(), report=report)
        if report.observation is None:
            return
        self._keep_screen(tuple(each.run for each in report.observation.runs))

    def _take_nodes(self) -> None:
        """Keep the nodes, and the agents' valid tokens, as the newest cycle saw them.

        Raises:
            JournalUnavailable: the tokens that were kept before stay.
        """
        loop_facts, seen = self._loop_facts, self._observer.newest
        if seen is None:
            return
        loop_facts.fleet = seen.snapshot.fleet
        if loop_facts.settings.power.source == "agents":
            loop_facts.tokens = self._journal.tokens.valid(seen.snapshot.now)

    def _keep_signs(self) -> None:
        """Write down from time to time which runs are alive; only the leader hears them.

        Raises:
            JournalUnavailable: they are written later.
        """
        if self._loop_facts.lead.epoch is not None:
            self._journal.signs.keep(self._loop_facts.clock.now())

    def _take_snapshot(self, cap: CapNow | None) -> None:
        """Keep the runs and claims that agents and the sampler ask for between two turns.

        Read again, since what the turn did (a wished clock) and a freeze meanwhile count at once.

        Raises:
            JournalUnavailable: the snapshot that was kept before stays.
        """
        loop_facts = self._loop_facts
        now = loop_facts.clock.now()
        runs = self._journal.runs.recent(now, now - SILENT_HELD)
        loop_facts.snapshot = FleetSnapshot.of(
            loop_facts.clock.monotonic(),
            runs,
            loop_facts.fleet.nodes,
            frozen=self._journal.runs.frozen_all(),
            claims=attribute(holders(runs, now, seen=False)),
            cap=cap,
        )

    def _keep_screen(self, runs: tuple[str, ...]) -> None:
        """Keep a status screen at most `SCREEN_S` old, for when the journal does not answer."""
        known, now = self._loop_facts.newest_status, self._loop_facts.clock.now()
        old = known is None or abs((now - known.at).total_seconds()) >= SCREEN_S
        if old or runs != self._screened:
            self._loop_facts.newest_status = status(self._journal, self._loop_facts)
            self._screened = runs

    def _follow_clock(self) -> None:
        """Shift dates by every new step of the wall clock, and write each step as an event."""
        runs, trusted = self._journal.runs, self._loop_facts.trusted
        leads = self._loop_facts.lead.epoch is not None  # a standby leaves the leader's runs alone
        for step in trusted.take_steps():
            log.warning("%s", step.sentence)
            runs.liveness.shift(step.step_s)
            if leads:
                runs.doubtful.follow(step.step_s)
            self._on_clock_step()
            remember(self._journal, self._loop_facts, "clock_step", step.sentence)
        try:
            runs.doubtful.settle(trusted=not leads or trusted.held_s() == 0)
        except JournalUnavailable as error:
            log.warning("the dates of runs that began under a wrong clock stand: %s", error)


def remember(journal: Journal, loop_facts: LoopFacts, kind: str, detail: str) -> None:
    """Write an event row; an event is not worth failing for."""
    try:
        journal.events.add(kind, detail, loop_facts.clock.now())
    except JournalUnavailable as error:
        log.warning("the event %r was not written: %s", kind, error)


class SampleDuty(Metering):
    """Read all GPUs, and book what they drew every `flush_s`."""

    def __init__(
        self,
        sampler: Sampler,
        loop_facts: LoopFacts,
        flush_s: float,
        slots: Callable[[datetime], SlotGrid],
        node: NodeClaims | None = None,
    ) -> None:
        """Keep the sampler, and where slots and owners come from.

        Args:
            sampler: reads the power source and books the rows.
            loop_facts: what the daemon knows.
            flush_s: seconds between two bookings.
            slots: gives the ledger's slot grid at a moment; a reload may name another signal.
            node: says which run owns each GPU; default: the run that registered it.
        """
        super().__init__(sampler, loop_facts.exporter, loop_facts.clock, flush_s, node)
        self._loop_facts = loop_facts
        self._newest_slots = slots
        self._grid: SlotGrid | None = None

    def _slots(self, now: datetime, *, due: bool) -> SlotGrid:
        if due or self._grid is None:  # it may ask the journal: not at every sample
            self._grid = self._newest_slots(now)
        return self._grid

    def _claims(self, now: datetime, monotonic_s: float) -> Mapping[str, EnergyClaim] | None:
        loop_facts, snapshot = self._loop_facts, self._loop_facts.snapshot
        if self._node is None or snapshot is None:
            return snapshot.claims if snapshot else None
        known = holders(snapshot.runs, now, seen=True)
        return self._node.claims(
            known, loop_facts.sampled.sample.devices if loop_facts.sampled else ()
        )

    def _took(self, sample: Sample, monotonic_s: float) -> None:
        self._loop_facts.sampled = _sampled(self._loop_facts.sampled, monotonic_s, sample)


class FleetDuty:
    """Combine what the nodes' agents have read, where this daemon reads no power itself."""

    def __init__(self, loop_facts: LoopFacts) -> None:
        """Keep the loop facts."""
        self._loop_facts = loop_facts
        self._sampler = FleetSampler()

    def turn(self) -> None:
        """Take the nodes as the newest cycle saw them."""
        loop_facts = self._loop_facts
        monotonic_s = loop_facts.clock.monotonic()
        newest = self._sampler.sample(loop_facts.fleet.nodes, loop_facts.clock.now())
        loop_facts.sampled = _sampled(loop_facts.sampled, monotonic_s, newest)

    def close(self) -> None:
        """Do nothing: no source is open here."""


def _sampled(before: NewestSample | None, monotonic_s: float, newest: Sample) -> NewestSample:
    """Add the device-seconds since the sample before, and those that nobody observed."""
    if before is None:
        return NewestSample(monotonic_s=monotonic_s, sample=newest)
    passed_s, known, missing = (
        monotonic_s - before.monotonic_s,
        before.coverage,
        len(newest.missing),
    )
    covered = Coverage(
        device_s=known.device_s + passed_s * (len(newest.readings) + missing),
        unobserved_s=known.unobserved_s + passed_s * missing,
    )
    return NewestSample(monotonic_s=monotonic_s, sample=newest, coverage=covered)


class PatientPolls:
    """Polls one provider; one that refused is left alone for `REFUSED_AGAIN_S`."""

    def __init__(
        self, poll: Callable[[datetime], Polled], name: str, loop_facts: LoopFacts
    ) -> None:
        """Keep how to poll, and what the provider is called in the log."""
        self._poll, self._name, self._loop_facts = poll, name, loop_facts
        self._not_before_s = 0.0

    def turn(self, now: datetime) -> Polled:
        """Poll, and log what was not trusted; nothing is new while it is left alone.

        Raises:
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        monotonic_s = self._loop_facts.clock.monotonic()
        if monotonic_s < self._not_before_s:
            return Polled(new=0)
        polled = self._poll(now)
        for sentence in polled.refused[:3]:
            log.warning("%s: %s", self._name, sentence)
        if isinstance(polled.failure, SourceRefused):
            self._not_before_s = monotonic_s + REFUSED_AGAIN_S
        return polled


class PollDuty:
    """Ask one grid signal's provider for what is new, and forecast from what is known."""

    def __init__(
        self,
        poller: Poller,
        forecaster: Forecaster | NoForecaster,
        loop_facts: LoopFacts,
        wake: Callable[[], None],
    ) -> None:
        """Keep the poller and the forecaster; `wake` makes the next control cycle due."""
        self._polls = PatientPolls(poller.poll, str(poller.provider.signal), loop_facts)
        self._forecaster = forecaster
        self._loop_facts = loop_facts
        self._wake = wake

    def turn(self) -> None:
        """Poll and store what is new; then forecast, even where the poll failed.

        A provider that refused is asked again after `REFUSED_AGAIN_S`.

        Raises:
            SourceUnavailable: the provider did not answer; stored points stand.
            SourceRefused: a person must fix something; stored points stand.
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        now = self._loop_facts.clock.now()
        polled = self._polls.turn(now)
        if polled.new + self._forecaster.turn(now):
            self._wake()
        if polled.failure is not None:
            raise polled.failure


class Housekeeping:
    """Keep the journal small: roll up old slots, delete old detail."""

    def __init__(self, journal: Journal, loop_facts: LoopFacts) -> None:
        """Keep the journal and the loop facts."""
        self._journal = journal
        self._loop_facts = loop_facts

    def turn(self) -> None:
        """Roll up and delete rows past their retention; nothing while the clock is in doubt.

        Only the leader does this: a standby's clock may be wrong, and its settings may differ.
        """
        doubt = self._loop_facts.trusted.doubt()
        if doubt or self._loop_facts.lead.epoch is None:
            log.info("no slot is rolled up and no row deleted: %s", doubt or "another daemon leads")
            return
        days = self._loop_facts.settings.journal.retention_days
        before = self._loop_facts.clock.now() - timedelta(days=days)
        timezone = self._loop_facts.settings.site.timezone
        close_runs(self._journal, before, self._loop_facts.clock.now())
        rolled = self._journal.retention.roll_up(before, timezone)
        pruned = self._journal.retention.prune(before)
        # After the decisions: a forecast issue is deleted once no decision rests on it.
        pruned += self._journal.forecasts.prune(self._loop_facts.clock.now() - ISSUES_KEPT)
        now = self._loop_facts.clock.now()
        pruned += self._journal.exogenous.prune(now - EXOGENOUS_KEPT, now)
        if rolled or pruned:
            sentence = f"Rolled up {rolled} ledger slots and let {pruned} old rows go."
            remember(self._journal, self._loop_facts, "retention", sentence)
