"""What each loop and job does in one turn: the cycle, the sampler, the polls, the housekeeping.

Each duty takes its clocks from the pulse and leaves its newest facts there. Invariant: a duty may
be killed at any instruction and done again by the next process; what matters is in the journal.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from wattmesh.controller.accounting.closing_runs import close_runs
from wattmesh.controller.cycle.cap_held import CapNow
from wattmesh.controller.cycle.cycle import Cycle
from wattmesh.controller.cycle.fleet import SILENT_HELD, FleetSnapshot, holders
from wattmesh.controller.cycle.fleet import sample as fleet_sample
from wattmesh.controller.cycle.journal_snapshot import JournalObservation
from wattmesh.controller.cycle.observe import JournalObserver
from wattmesh.controller.daemon.metering import Metering
from wattmesh.controller.journal.carbon.forecasts import ISSUES_KEPT
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.pulse import Coverage, NewestSample, NewestTurn, Pulse
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
        pulse: Pulse,
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
        self._pulse = pulse
        self._changes = changes
        self._on_clock_step = on_clock_step
        self._screened: tuple[str, ...] = ()

    def turn(self) -> None:
        """Follow the wall clock, run the cycle, keep its facts, wake runs that await an order."""
        pulse = self._pulse
        self._follow_clock()
        try:
            report = self._cycle.run(pulse.clock.now())
            if report.observation is not None:
                self._take_nodes()
                self._keep_signs()
                self._take_snapshot(report.cap)
        finally:
            # Even after a failure: what waiting runs know is now one cycle old.
            self._changes.ring()
        pulse.turned = NewestTurn(monotonic_s=pulse.clock.monotonic(), report=report)
        if report.observation is None:
            return
        self._keep_screen(tuple(each.run for each in report.observation.runs))

    def _take_nodes(self) -> None:
        """Keep the nodes, and the agents' valid tokens, as the newest cycle saw them.

        Raises:
            JournalUnavailable: the tokens that were kept before stay.
        """
        pulse, seen = self._pulse, self._observer.newest
        if seen is None:
            return
        pulse.fleet = seen.snapshot.fleet
        if pulse.settings.power.source == "agents":
            pulse.tokens = self._journal.tokens.valid(seen.snapshot.now)

    def _keep_signs(self) -> None:
        """Write down from time to time which runs are alive; only the leader hears them.

        Raises:
            JournalUnavailable: they are written later.
        """
        if self._pulse.lead.epoch is not None:
            self._journal.signs.keep(self._pulse.clock.now())

    def _take_snapshot(self, cap: CapNow | None) -> None:
        """Keep the runs and claims that agents and the sampler ask for between two turns.

        Read again, since what the turn did (a wished clock) and a freeze meanwhile count at once.

        Raises:
            JournalUnavailable: the snapshot that was kept before stays.
        """
        pulse = self._pulse
        now = pulse.clock.now()
        runs = self._journal.runs.recent(now, now - SILENT_HELD)
        pulse.snapshot = FleetSnapshot.of(
            pulse.clock.monotonic(),
            runs,
            pulse.fleet.nodes,
            frozen=self._journal.runs.frozen_all(),
            claims=attribute(holders(runs, now, seen=False)),
            cap=cap,
        )

    def _keep_screen(self, runs: tuple[str, ...]) -> None:
        """Keep a status screen at most `SCREEN_S` old, for when the journal does not answer."""
        known, now = self._pulse.newest_status, self._pulse.clock.now()
        old = known is None or abs((now - known.at).total_seconds()) >= SCREEN_S
        if old or runs != self._screened:
            self._pulse.newest_status = status(self._journal, self._pulse)
            self._screened = runs

    def _follow_clock(self) -> None:
        """Shift dates by every new step of the wall clock, and write each step as an event."""
        runs, trusted = self._journal.runs, self._pulse.trusted
        leads = self._pulse.lead.epoch is not None  # a standby leaves the leader's runs alone
        for step in trusted.take_steps():
            log.warning("%s", step.sentence)
            runs.liveness.shift(step.step_s)
            if leads:
                runs.doubtful.follow(step.step_s)
            self._on_clock_step()
            remember(self._journal, self._pulse, "clock_step", step.sentence)
        try:
            runs.doubtful.settle(trusted=not leads or trusted.held_s() == 0)
        except JournalUnavailable as error:
            log.warning("the dates of runs that began under a wrong clock stand: %s", error)


def remember(journal: Journal, pulse: Pulse, kind: str, detail: str) -> None:
    """Write an event row; an event is not worth failing for."""
    try:
        journal.events.add(kind, detail, pulse.clock.now())
    except JournalUnavailable as error:
        log.warning("the event %r was not written: %s", kind, error)


class SampleDuty(Metering):
    """Read all GPUs, and book what they drew every `flush_s`."""

    def __init__(
        self,
        sampler: Sampler,
        pulse: Pulse,
        flush_s: float,
        slots: Callable[[datetime], SlotGrid],
        node: NodeClaims | None = None,
    ) -> None:
        """Keep the sampler, and where slots and owners come from.

        Args:
            sampler: reads the power source and books the rows.
            pulse: what the daemon knows.
            flush_s: seconds between two bookings.
            slots: gives the ledger's slot grid at a moment; a reload may name another signal.
            node: says which run owns each GPU; default: the run that registered it.
        """
        super().__init__(sampler, pulse.exporter, pulse.clock, flush_s, node)
        self._pulse = pulse
        self._newest_slots = slots
        self._grid: SlotGrid | None = None

    def _slots(self, now: datetime, *, due: bool) -> SlotGrid:
        if due or self._grid is None:  # it may ask the journal: not at every sample
            self._grid = self._newest_slots(now)
        return self._grid

    def _claims(self, now: datetime, monotonic_s: float) -> Mapping[str, EnergyClaim] | None:
        pulse, snapshot = self._pulse, self._pulse.snapshot
        if self._node is None or snapshot is None:
            return snapshot.claims if snapshot else None
        known = holders(snapshot.runs, now, seen=True)
        return self._node.claims(known, pulse.sampled.sample.devices if pulse.sampled else ())

    def _took(self, sample: Sample, monotonic_s: float) -> None:
        self._pulse.sampled = _sampled(self._pulse.sampled, monotonic_s, sample)


class FleetDuty:
    """Combine what the nodes' agents have read, where this daemon reads no power itself."""

    def __init__(self, pulse: Pulse) -> None:
        """Keep the pulse."""
        self._pulse = pulse

    def turn(self) -> None:
        """Take the nodes as the newest cycle saw them."""
        pulse = self._pulse
        monotonic_s = pulse.clock.monotonic()
        newest = fleet_sample(pulse.fleet.nodes, pulse.clock.now())
        pulse.sampled = _sampled(pulse.sampled, monotonic_s, newest)

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

    def __init__(self, poll: Callable[[datetime], Polled], name: str, pulse: Pulse) -> None:
        """Keep how to poll, and what the provider is called in the log."""
        self._poll, self._name, self._pulse = poll, name, pulse
        self._not_before_s = 0.0

    def turn(self, now: datetime) -> Polled:
        """Poll, and log what was not trusted; nothing is new while it is left alone.

        Raises:
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        monotonic_s = self._pulse.clock.monotonic()
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
        pulse: Pulse,
        wake: Callable[[], None],
    ) -> None:
        """Keep the poller and the forecaster; `wake` makes the next control cycle due."""
        self._polls = PatientPolls(poller.poll, str(poller.provider.signal), pulse)
        self._forecaster = forecaster
        self._pulse = pulse
        self._wake = wake

    def turn(self) -> None:
        """Poll and store what is new; then forecast, even where the poll failed.

        A provider that refused is asked again after `REFUSED_AGAIN_S`.

        Raises:
            SourceUnavailable: the provider did not answer; stored points stand.
            SourceRefused: a person must fix something; stored points stand.
            JournalUnavailable: nothing could be stored; the next poll asks again.
        """
        now = self._pulse.clock.now()
        polled = self._polls.turn(now)
        if polled.new + self._forecaster.turn(now):
            self._wake()
        if polled.failure is not None:
            raise polled.failure


class Housekeeping:
    """Keep the journal small: roll up old slots, delete old detail."""

    def __init__(self, journal: Journal, pulse: Pulse) -> None:
        """Keep the journal and the pulse."""
        self._journal = journal
        self._pulse = pulse

    def turn(self) -> None:
        """Roll up and delete rows past their retention; nothing while the clock is in doubt.

        Only the leader does this: a standby's clock may be wrong, and its settings may differ.
        """
        doubt = self._pulse.trusted.doubt()
        if doubt or self._pulse.lead.epoch is None:
            log.info("no slot is rolled up and no row deleted: %s", doubt or "another daemon leads")
            return
        days = self._pulse.settings.journal.retention_days
        before = self._pulse.clock.now() - timedelta(days=days)
        timezone = self._pulse.settings.site.timezone
        close_runs(self._journal, before, self._pulse.clock.now())
        rolled = self._journal.retention.roll_up(before, timezone)
        pruned = self._journal.retention.prune(before)
        # After the decisions: a forecast issue is deleted once no decision rests on it.
        pruned += self._journal.forecasts.prune(self._pulse.clock.now() - ISSUES_KEPT)
        now = self._pulse.clock.now()
        pruned += self._journal.exogenous.prune(now - EXOGENOUS_KEPT, now)
        if rolled or pruned:
            sentence = f"Rolled up {rolled} ledger slots and let {pruned} old rows go."
            remember(self._journal, self._pulse, "retention", sentence)
