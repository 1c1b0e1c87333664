"""What the daemon knows this moment without asking anybody: the newest facts of its own loops.

Nothing here matters after a kill: whatever must survive is in the journal. Invariant: every fact is
frozen and replaced whole, by its one owner, so a reader never sees half of one.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from wattmesh.controller.cycle.fleet import Fleet, FleetSnapshot
from wattmesh.controller.cycle.isolation import Isolation, NodeFaults
from wattmesh.controller.journal.nodes.tokens import NodeToken
from wattmesh.controller.planner.asking import Planning
from wattmesh.controller.process.loops import Clock, LoopState
from wattmesh.controller.process.trusted_time import TrustedTime
from wattmesh.controller.settings.model import Settings
from wattmesh.controller.views import PointLine, StatusView
from wattmesh.policies.decision import Decision
from wattmesh.telemetry.energy.exporter import DeviceExporter
from wattmesh.telemetry.energy.sampler import Sample

if TYPE_CHECKING:
    from wattmesh.controller.accounting.budgets.spending import PeriodLine
    from wattmesh.controller.cycle.carbon_view import SignalFacts
    from wattmesh.controller.cycle.cycle import CycleReport

log = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0
"""While the journal does not answer, at most one caller in this many seconds tries it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """Who leads, as the lease's loop saw it last.

    Attributes:
        epoch: the fence under which this daemon acts; None while it stands by.
        journal: identity of the journal that the epoch counts in; "" before this daemon led.
        leader: who leads, as the journal says.
        until_s: monotonic; from then on another daemon may lead, whatever this one knows.
    """

    epoch: int | None = None
    journal: str = ""
    leader: str = ""
    until_s: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Device-seconds that passed and those that nobody measured, since the daemon started."""

    device_s: float = 0.0
    unobserved_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestSample:
    """The newest power sample of the sampler's loop, all devices at once, with its time."""

    monotonic_s: float
    sample: Sample
    coverage: Coverage = field(default_factory=Coverage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Where each budget stood when the `periods` job last looked.

    Attributes:
        sealed_ahead: months that are closed though they had not ended by then.
    """

    lines: "tuple[PeriodLine, ...]" = ()
    sealed_ahead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The two grid signals as the settings name them; None where there is none.

    Attributes:
        reports: further signals that reports are computed with. `fallbacks`: signals that stand in
            for the accounting one. `exogenous`: names of the series that are forecast beside the
            decision signal.
    """

    decision: "SignalFacts | None" = None
    accounting: "SignalFacts | None" = None
    reports: "tuple[SignalFacts, ...]" = ()
    fallbacks: "tuple[SignalFacts, ...]" = ()
    exogenous: tuple[str, ...] = ()

    @property
    def ahead(self) -> "tuple[SignalFacts, ...]":
        """The signals whose hours ahead are forecast (see `GridProviders.ahead`), each once."""
        return _once(self.decision, self.accounting)

    @property
    def all(self) -> "tuple[SignalFacts, ...]":
        """Every signal that is polled, once."""
        return _once(*self.ahead, *self.fallbacks, *self.reports)


def _once(*named: "SignalFacts | None") -> "tuple[SignalFacts, ...]":
    """Give each signal once, in the order in which they are named."""
    known: dict[str, SignalFacts] = {}
    for each in named:
        if each is not None:
            known.setdefault(str(each.signal), each)
    return tuple(known.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The journal does not answer. `since_s`, `tried_s`: monotonic, first and newest failure."""

    since_s: float
    tried_s: float
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTurn:
    """The newest turn of the cycle, with its monotonic time."""

    monotonic_s: float
    report: "CycleReport"


@dataclass(slots=True)
class LoopFacts:
    """The newest facts; one instance per daemon.

    Attributes:
        settings_trouble: why the newest settings file was not taken; "" when it was.
        certificate_trouble: what is wrong with the agents' certificate; "" when nothing is.
        lead: who leads (owner: the lease's loop).
        turned: the newest turn (owner: the cycle). `fleet`: what it saw of all GPUs. `snapshot`:
            nodes and runs as it left them; None before the first that the journal answered.
        sampled: the newest sample (owner: the sampler); None before the first.
        budgets: where they stand (owner: the `periods` job).
        points: by run, what was measured of its points (owner: the `points` job).
        trusted: whether the wall clock may be trusted now.
        newest_status: the last screen that was built while the journal answered.
        loops: the state of each loop, read live.
        breakers: the state of the circuit breaker of each signal's provider, read live.
        planning: the planner's state, read live.
        exporter: follows the devices that this process samples itself.
        isolation: counts what failed for one run alone.
        tokens: which node each valid agent token belongs to, by the token's digest.
        node_faults: why deliveries of single nodes are refused.
    """

    clock: Clock
    settings: Settings
    started_s: float
    settings_path: str = ""
    settings_trouble: str = ""
    certificate_trouble: str = ""
    signals: Signals = field(default_factory=Signals)
    lead: Lead = field(default_factory=Lead)
    turned: NewestTurn | None = None
    fleet: Fleet = field(default_factory=Fleet)
    snapshot: FleetSnapshot | None = None
    sampled: NewestSample | None = None
    budgets: Budgets = field(default_factory=Budgets)
    points: Mapping[str, tuple[PointLine, ...]] = field(default_factory=dict)
    outage: Outage | None = None
    trusted: TrustedTime = field(init=False)
    newest_status: StatusView | None = None
    loops: dict[str, Callable[[], LoopState]] = field(default_factory=dict)
    breakers: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    planning: Callable[[], Planning] = Planning
    exporter: DeviceExporter = field(default_factory=DeviceExporter)
    isolation: Isolation = field(default_factory=Isolation)
    node_faults: NodeFaults = field(default_factory=NodeFaults)
    tokens: Mapping[str, NodeToken] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trusted = TrustedTime(self.clock, lambda: self.settings.journal.trust_clock)

    @property
    def gpu_coverage(self) -> tuple[int, int]:
        """Count (GPUs whose power was read lately, GPUs that were ever read); (0, 0): not known."""
        return self.fleet.gpus.site if self.fleet.gpus else (0, 0)

    @property
    def leading(self) -> bool:
        """Whether this daemon leads, and its term has not run out unrenewed."""
        return self.lead.epoch is not None and self.clock.monotonic() < self.lead.until_s

    def journal_failed(self, sentence: str) -> None:
        """Note that the journal did not answer; logged once per outage."""
        now_s = self.clock.monotonic()
        if self.outage is None:
            log.warning("The journal does not answer: %s.", sentence.rstrip("."))
        since_s = self.outage.since_s if self.outage else now_s
        self.outage = Outage(since_s=since_s, tried_s=now_s, sentence=sentence)

    def journal_answered(self) -> str:
        """Note that the journal takes writes (again); give a sentence on an outage that ended."""
        outage, self.outage = self.outage, None
        if outage is None:
            return ""
        for_s = self.clock.monotonic() - outage.since_s
        why = outage.sentence.partition(";")[0]
        return f"The journal answers again; it had not for {for_s:.0f} s ({why})."

    def journal_worth_a_try(self) -> bool:
        """Whether a caller should ask the journal now; keeps a crowd off a locked database."""
        outage, now_s = self.outage, self.clock.monotonic()
        if outage is None:
            return True
        if now_s - outage.tried_s < RETRY_AFTER_S:
            return False
        self.outage = replace(outage, tried_s=now_s)
        return True

    def decisions(self) -> Mapping[str, Decision]:
        """Give the decisions of the newest turn, by run."""
        return {each.run: each for each in self.turned.report.decisions} if self.turned else {}
