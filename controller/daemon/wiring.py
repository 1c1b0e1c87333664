"""Build a whole daemon from its settings, start its parts in order, stop them in reverse.

Invariant: every part is made here and nowhere else; what a reload may change is read from the loop
facts each time, so a reload is one assignment.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from math import inf
from pathlib import Path

from wattmesh.controller.accounting.own_budgets import own_budgets
from wattmesh.controller.api.agents_server import agents_server
from wattmesh.controller.api.request_context import RequestContext
from wattmesh.controller.api.server import ApiServer
from wattmesh.controller.api.transport.sockets import Listening, listen
from wattmesh.controller.cycle import fleet
from wattmesh.controller.cycle.act import JournalActor
from wattmesh.controller.cycle.clocks import back_s
from wattmesh.controller.cycle.cycle import Cycle
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.cycle.journal_snapshot import CycleSettings
from wattmesh.controller.cycle.observe import JournalObserver
from wattmesh.controller.daemon.epoch_fence import EpochFence
from wattmesh.controller.daemon.lease import Lease, holder_name
from wattmesh.controller.daemon.loop_bodies import (
    CycleDuty,
    FleetDuty,
    Housekeeping,
    SampleDuty,
    remember,
)
from wattmesh.controller.daemon.metering import hold_s
from wattmesh.controller.daemon.opening import open_journal
from wattmesh.controller.daemon.period_roll import PeriodRoll
from wattmesh.controller.daemon.point_watch import EVERY_S, PointWatch
from wattmesh.controller.daemon.polls import SignalPolls
from wattmesh.controller.daemon.power import power_source
from wattmesh.controller.daemon.pricing import PricingDuty
from wattmesh.controller.expert_costs import learner
from wattmesh.controller.expert_costs.reports import TokenReports
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.controller.loop_facts import LoopFacts
from wattmesh.controller.metrics.metrics import MetricsServer
from wattmesh.controller.planner.joint_worker import JointWorker
from wattmesh.controller.planner.worker import PlanWorker
from wattmesh.controller.process import kernel_clock
from wattmesh.controller.process.change_signal import ChangeSignal
from wattmesh.controller.process.cycle_first import CycleFirst
from wattmesh.controller.process.life import boot_id
from wattmesh.controller.process.loops import Clock, Loop, LoopState
from wattmesh.controller.process.scheduler import Jobs
from wattmesh.controller.settings.checks import listen_address, uid_of
from wattmesh.controller.settings.expert_sweep import sweeps_by_run
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.signals.grid import grid
from wattmesh.errors import FixInput, JournalUnavailable, WattmeshError
from wattmesh.policies.ladder import DAY_S
from wattmesh.reconfig import catalogue_file
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.energy.node_claims import NodeClaims, compute_pids
from wattmesh.telemetry.energy.sampler import Sampler
from wattmesh.telemetry.readings import PowerSource

log = logging.getLogger(__name__)

LOOP_STOP_S = 8.0
LAST_WORDS_S = 10.0
"""For the journal's last rows; with every loop hanging as well, 60 s (TimeoutStopSec=) are left."""

CERTIFICATE_S = 600.0
FIXED = (
    "journal.url",
    "journal.password_file",
    "api",
    "metrics",
    "power",
    "loops.lease_s",
    "site.timezone",
)
"""Keys that a running daemon cannot change; a reload says so."""


def run_plans(settings: Settings) -> dict[str, RunPlan]:
    """Read what the settings say of each run; a catalogue that went bad since is left out."""
    plans: dict[str, RunPlan] = {}
    for name, section in settings.runs.items():
        catalogue = None
        if section.catalogue is not None:
            try:
                catalogue = catalogue_file.load(section.catalogue)
            except WattmeshError as error:
                log.warning("run %s: %s", name, error)
        plans[name] = RunPlan(
            catalogue=catalogue,
            baseline=section.baseline,
            deadline=section.deadline,
            deadline_after_s=section.deadline_after_s,
            named=True,
            owner_uid=uid_of(section.owner) if section.owner else None,
        )
    return plans


class Parts:
    """Every part of one daemon."""

    def __init__(
        self,
        settings: Settings,
        path: Path,
        clock: Clock | None = None,
        power: PowerSource | None = None,
    ) -> None:
        """Open what the settings name, the socket first: its lock says whether we may run at all.

        Args:
            settings: what to build.
            path: the file they came from.
            clock: a clock other than this machine's (a simulation); then there is no planner,
                because plans take real time and would come hours late.
            power: a source other than the settings name (a simulation).

        Raises:
            WattmeshError: something is not as it must be; nothing is left open.
        """
        self._power = power
        self._cycle_first = CycleFirst()
        ways = [self._cycle_first.giving_way() for _ in range(2)]
        joint = JointWorker(wake=self._look_again, give_way=ways[0])
        self._planner = (
            None if clock else PlanWorker(wake=self._look_again, joint=joint, give_way=ways[1])
        )
        self.loop_facts = LoopFacts(
            clock=clock or Clock(synchronised=kernel_clock.synchronised),
            settings=settings,
            started_s=time.monotonic(),
            settings_path=str(path),
            exporter=DeviceExporter(socket.gethostname(), hold_s=hold_s(settings)),
        )
        self._listening = listen(
            settings.api.socket, settings.api.group or settings.api.operators_group
        )
        try:
            self.journal = open_journal(settings, self.loop_facts)
        except BaseException:
            self._listening.close()
            raise
        self._build(self._listening)

    def _build(self, listening: Listening) -> None:
        loop_facts, settings = self.loop_facts, self.loop_facts.settings
        loop_facts.trusted.await_journal()
        self._read_runs(settings)
        reports = TokenReports()
        self._expert_costs = learner.CostLearner(
            self.journal, loop_facts, reports, lambda name: self._sweeps.get(name, {})
        )
        self._grid = grid(settings, loop_facts.clock.now())
        loop_facts.signals = self._grid.signals
        self.changes = ChangeSignal()
        lease_s = settings.loops.lease_s
        holder = holder_name(settings.api.socket)
        self._lease = Lease(
            self.journal.leadership,
            loop_facts,
            holder,
            lease_s,
            lambda said: remember(self.journal, loop_facts, "journal_outage", said),
            liveness=self.journal.runs.liveness,
            simulated=self._planner is None,
        )
        self._fence = EpochFence(self.journal.leadership, loop_facts)
        self.journal.runs.liveness.pace(settings.loops.live_s, settings.loops.waking_s)
        if self._planner is not None:
            loop_facts.planning = self._planner.planning
        observer = JournalObserver(
            self.journal,
            self._cycle_settings,
            lambda: loop_facts.lead.epoch,
            self._fleet,
            self._planner,
        )
        actor = JournalActor(self.journal, loop_facts.isolation)
        cycle = Cycle(observer, actor)
        duty = CycleDuty(
            cycle,
            observer,
            self.journal,
            loop_facts,
            self.changes,
            on_clock_step=self._follow_wall_clock,
        )
        self._sampling = self._sampler()
        clock = loop_facts.clock
        self.leases = Loop("leases", lease_s / 3, self._lead, clock)
        turn = self._cycle_first.of(self._fence.of("cycle", duty.turn))
        self.cycle = Loop("cycle", settings.loops.cycle_s, turn, clock)
        self.sampler = Loop("sampler", settings.loops.sample_s, self._sample, clock)
        pricing = PricingDuty(self.journal, loop_facts, lambda: self._grid)
        price = self._fence.of("accounts", pricing.turn)
        self.accounts = Loop("accounts", self._accounts_every_s(), price, clock)
        self.loops = (self.leases, self.sampler, self.cycle, self.accounts)
        for loop in self.loops:
            loop_facts.loops[loop.state.name] = _reader(loop)
        self.jobs = Jobs()
        self._polls = SignalPolls(
            self.journal, loop_facts, self.jobs, self.cycle.wake, self._fence.of
        )
        context = RequestContext(
            journal=self.journal,
            loop_facts=loop_facts,
            changes=self.changes,
            plan_for=lambda name: self._plans.get(name, RunPlan()),
            wake=self.cycle.wake,
            grid=lambda: self._grid.slots,
            token_reports=reports,
            expert_costs=self._expert_costs.view,
        )
        self.api = ApiServer(context, listening)
        self.agents = agents_server(context, settings.api)
        self.metrics = MetricsServer(
            listen_address(settings.metrics.listen), self.journal, loop_facts, self.jobs
        )

    @property
    def accounting_source(self) -> Provider:
        """The source that grams are booked with.

        Raises:
            FixInput: the settings name none.
        """
        if self._grid.accounting is None:
            raise FixInput("no signal is set; add [carbon.accounting] to the settings")
        return self._grid.accounting

    def start(self) -> None:
        """Start everything; when it returns, requests are answered.

        Raises:
            WattmeshError: a part did not start.
        """
        self._housekeeping()
        if self.loop_facts.outage is None:
            self.leases.turn()
            with suppress(JournalUnavailable):  # read again by every cycle
                self.loop_facts.tokens = self.journal.tokens.valid(self.loop_facts.clock.now())
        self.api.start()
        if self.agents is not None:
            self.agents.start()
            self._renew_certificate()
        self.metrics.start()
        for loop in self.loops:
            loop.start()
        self._schedule()
        self.jobs.start()

    def stop(self) -> None:
        """Stop every part, those that make work first; what hangs ends with the process."""
        self.jobs.stop()
        self._polls.stop()
        self.changes.close()
        for loop in (self.cycle, self.accounts, self.sampler, self.leases):
            if not loop.stop(LOOP_STOP_S):
                log.warning("the %s loop did not end in %.0f s", loop.state.name, LOOP_STOP_S)
        if self._planner is not None:
            self._planner.stop()
        if self._sampling is not None:
            self._sampling.close()
        if self.agents is not None:
            self.agents.stop()
        if not self.api.stop():
            log.warning("the HTTP server did not end in time")
        self.metrics.stop()
        words = threading.Thread(target=self._last_words, name="last words", daemon=True)
        words.start()
        words.join(LAST_WORDS_S)
        if words.is_alive():
            log.warning(
                "the journal did not take its last rows in %.0f s: the lease runs out by itself",
                LAST_WORDS_S,
            )
        self.journal.close()

    def _last_words(self) -> None:
        """Write what the next daemon goes by, and let it lead at once; a server may hang."""
        self._keep_signs()
        self._keep_time()
        self._lease.release()

    def reload(self, settings: Settings) -> str:
        """Take new settings; give one sentence on what changed, and what needs a restart."""
        old = self.loop_facts.settings
        fixed = [key for key in FIXED if _value(old, key) != _value(settings, key)]
        new_grid = grid(settings, self.loop_facts.clock.now())
        self._renew_certificate()
        self._read_runs(settings)
        self.loop_facts.settings = settings
        if settings.carbon != old.carbon:
            self._grid = new_grid
            self.loop_facts.signals = new_grid.signals
            self._schedule()
        self.cycle.pace(settings.loops.cycle_s)
        self.journal.runs.liveness.pace(settings.loops.live_s, settings.loops.waking_s)
        self.sampler.pace(settings.loops.sample_s)
        self.accounts.pace(self._accounts_every_s())
        tail = f"; {', '.join(fixed)} changed too and need a restart" if fixed else ""
        sentence = f"Reloaded {self.loop_facts.settings_path}: mode {settings.mode.value}{tail}."
        remember(self.journal, self.loop_facts, "reload", sentence)
        return sentence

    def _read_runs(self, settings: Settings) -> None:
        """Read the files that the settings of runs name."""
        self._plans = run_plans(settings)
        sweeps = {name: section.expert_sweep for name, section in settings.runs.items()}
        self._sweeps = sweeps_by_run(sweeps)

    def _cycle_settings(self) -> CycleSettings:
        settings, trusted = self.loop_facts.settings, self.loop_facts.trusted
        return CycleSettings(
            mode=settings.mode,
            policy=settings.policy.limits(),
            facts=self.loop_facts.signals.decision,
            # An open switch's age is wall time: a clock stepped by a year must not time it out.
            switch_timeout_s=inf if trusted.held_s() > 0 else settings.policy.switch_timeout_s,
            cycle_s=settings.loops.cycle_s,
            lost_s=inf if trusted.doubt() else settings.journal.lost_days * DAY_S,
            stepped_s=trusted.stepped_s(),
            clock_doubt=trusted.doubt() if settings.demand_response else "",
            demand=settings.demand(),
            budgets=own_budgets(self.loop_facts),
            clock_lag_s=back_s(settings.actuator.step_share, settings.actuator.write_every_s),
        )

    def _keep_signs(self) -> None:
        """Write down until when each run lived, for the next daemon."""
        if self.loop_facts.lead.epoch is None:
            return
        try:
            with self._fence.last_words():
                self.journal.signs.keep(self.loop_facts.clock.now(), everything=True)
        except JournalUnavailable as error:
            log.warning("the newest heartbeats were not written down: %s", error)

    def _keep_time(self) -> None:
        """Write down what time it is, for the next daemon on this machine."""
        try:
            self.loop_facts.trusted.keep(self.journal.clock_marks, ends=True)
        except JournalUnavailable as error:
            log.warning("the daemon's clock was not noted in the journal: %s", error)

    def _look_again(self) -> None:
        """Make the next cycle due: a plan is new."""
        self.cycle.wake()

    def _fleet(self, now: datetime) -> Fleet:
        """Say what is known of the GPUs: by the nodes' agents, or by the sampler of this daemon.

        Raises:
            JournalUnavailable: the nodes are not known; the cycle holds.
        """
        sampled = self.loop_facts.sampled
        if self.loop_facts.settings.power.source == "agents":
            return Fleet.of(self.journal.nodes.all(), now)
        return Fleet(gpus=fleet.own_gpus_read(sampled.sample) if sampled else None)

    def _sampler(self) -> SampleDuty | FleetDuty | None:
        """Make the sampler; None when power is not read."""
        settings = self.loop_facts.settings
        if settings.power.source == "agents":
            return FleetDuty(self.loop_facts)
        source = self._power or power_source(settings)
        if source is None:
            return None
        slots = self._grid.slots
        held_s = hold_s(settings)
        sampler = Sampler(source, self.journal.ledger, slots, boot_id=boot_id(), hold_s=held_s)
        flush_s = min(settings.loops.cycle_s, slots.interval_s)
        pids = compute_pids(source)
        node = NodeClaims(pids, socket.gethostname()) if pids else None
        return SampleDuty(sampler, self.loop_facts, flush_s, self._slots_at, node)

    def _sample(self) -> None:
        if self._sampling is not None:
            self._sampling.turn()

    def _accounts_every_s(self) -> float:
        """Give the seconds between two bookings: a tenth of a slot, or a cycle; at most 60."""
        tenth_s = self._grid.slots.interval_s / 10
        return min(60.0, max(self.loop_facts.settings.loops.cycle_s, tenth_s))

    def _lead(self) -> None:
        """Renew or seek the lease, and write down what time it is.

        Raises:
            JournalUnavailable: the next turn does it.
        """
        self._lease.turn()
        self.loop_facts.trusted.keep(self.journal.clock_marks)

    def _renew_certificate(self) -> None:
        """Take the agents' TLS certificate again where its files have changed."""
        if self.agents is not None:
            self.agents.renew()
            self.loop_facts.certificate_trouble = self.agents.trouble(self.loop_facts.clock.now())

    def _follow_wall_clock(self) -> None:
        """Schedule the jobs anew, because the wall clock was stepped."""
        self._schedule()
        self._housekeeping()

    def _housekeeping(self) -> None:
        """Schedule the journal's daily cleaning, and the hourly look at budget periods."""
        cleaning = Housekeeping(self.journal, self.loop_facts)
        self.jobs.daily("retention", 3, self._fence.of("retention", cleaning.turn))
        watch = PointWatch(self.journal, self.loop_facts, self._slots_at)
        for name, every_s, turn in (
            # Hourly and level-triggered: a period that ended while no daemon ran is not missed.
            ("periods", 3600.0, PeriodRoll(self.journal, self.loop_facts).turn),
            ("points", EVERY_S, watch.turn),
            ("expert costs", learner.EVERY_S, self._expert_costs.turn),
        ):
            self.jobs.every(name, every_s, self._fence.of(name, turn))
        self.jobs.every("certificate", CERTIFICATE_S, self._renew_certificate)

    def _slots_at(self, now: datetime) -> SlotGrid:
        """Give the slots of the ledger; while the journal is away, as the settings cut them."""
        return self.journal.ledger_slots.known(lambda: self._grid.slots, now)

    def _schedule(self) -> None:
        """Schedule the polls of each signal at its provider's cadence."""
        self._polls.schedule(self._grid)


def _reader(loop: Loop) -> Callable[[], LoopState]:
    return lambda: loop.state


def _value(settings: Settings, key: str) -> object:
    value: object = settings
    for part in key.split("."):
        value = getattr(value, part)
    return value
