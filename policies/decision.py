"""What the cycle sees and what it decides: frozen facts in, one decision per run out. Types only.

Invariant: everything a decision depends on is in these types, `now` included; the same observation
always gives the same decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from wattmesh.policies.speed import MeasuredSpeed, SpeedReserve
from wattmesh.policies.switch_time import SwitchRecord
from wattmesh.reconfig.catalogue import Catalogue, Equivalence, OperatingPoint, Release
from wattmesh.reconfig.layout import Layout


class Mode(StrEnum):
    """The trust ladder."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ACT = "act"


class Action(StrEnum):
    """What a decision asks for."""

    HOLD = "hold"
    SWITCH = "switch"
    CLOCK = "clock"
    SUSPEND = "suspend"
    RESUME = "resume"
    FREEZE = "freeze"


SUSPENDS = "suspend"
"""Capability of a run that can be stopped and started again to save carbon."""


RESIZES = "resize"
"""Capability of a run that goes on as a launch of another number of ranks, which is queued."""


class Sleep(StrEnum):
    """Where a run may be put to sleep: what must say how long it takes to stop and to start."""

    NEVER = "never"
    MEASURED = "measured"
    ASSUMED = "assumed"


class Rung(StrEnum):
    """What decisions rest on, best first: the ladder for stale signals (`policies/ladder.py`)."""

    ISSUED = "issued"
    PROFILE = "profile"
    STATIC = "static"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntensitySlot:
    """Intensity of [start, end) as known or forecast now, grams per kWh.

    Attributes:
        low_g_per_kwh, high_g_per_kwh: of a forecast, its 10 % and 90 % quantiles; None: not known.
    """

    start: datetime
    end: datetime
    g_per_kwh: float
    low_g_per_kwh: float | None = None
    high_g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Climatology:
    """A grid's usual day.

    Attributes:
        hours: mean of each hour of the day, UTC, g/kWh.
        low, high: 10 % and 90 % quantile of the hours of the last weeks, as shares of these means;
            1 where that is not known.
    """

    hours: tuple[float, ...]
    low: float = 1.0
    high: float = 1.0

    def at(self, moment: datetime) -> float:
        """Give the usual intensity at a moment."""
        return self.hours[moment.astimezone(UTC).hour]

    def slot(
        self, start: datetime, end: datetime, g_per_kwh: float, unknown: float
    ) -> IntensitySlot:
        """Make a slot with the share `unknown`, 0 to 1, of this band."""
        return IntensitySlot(
            start=start,
            end=end,
            g_per_kwh=g_per_kwh,
            low_g_per_kwh=g_per_kwh * (1.0 - unknown * (1.0 - self.low)),
            high_g_per_kwh=g_per_kwh * (1.0 + unknown * (self.high - 1.0)),
        )

    def share(self, slot: IntensitySlot) -> float:
        """Give the share of this band that a slot has, 0 to 1; 0 where it has none."""
        above = (slot.high_g_per_kwh or slot.g_per_kwh) - slot.g_per_kwh
        widest = slot.g_per_kwh * (self.high - 1.0)
        return min(1.0, max(0.0, above / widest)) if widest > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonView:
    """The decision signal as it stands.

    Attributes:
        slots: the current slot first, then the forecast, without gaps, as far as it reaches.
        age_s: seconds since the newest successful fetch; None when there never was one.
        trouble: why no carbon-motivated act is allowed; "" when the signal is usable.
        rung: what the slots after the current one are made of. `source`: who made them.
        forecast: id of the issue they are of; None without one. `issued_at`: when that was.
        note: why the rung is not the best one, as a clause; "" when it is.
        since_change_s: since the rung changed; None when it never did.
        interval_s: length of one interval of the signal.
        climatology: for what lies beyond the forecast (`policies/forecast/climatology.py`); None
            when it is not known.
    """

    signal: str
    slots: tuple[IntensitySlot, ...]
    age_s: float | None
    trouble: str = ""
    rung: Rung = Rung.ISSUED
    source: str = ""
    forecast: int | None = None
    issued_at: datetime | None = None
    note: str = ""
    since_change_s: float | None = None
    interval_s: float = 0.0
    climatology: Climatology | None = None

    @property
    def now_g_per_kwh(self) -> float | None:
        """Intensity of the current slot; None when unknown."""
        return self.slots[0].g_per_kwh if self.slots else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchView:
    """The switch a run is in, if any. `target`: point id. `age_s`: since it was ordered."""

    target: str
    state: str
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """Where the plan wants a run during [start, end). `point`: its id; "" for suspended."""

    start: datetime
    end: datetime
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """The newest plan of one run, whoever made it.

    Attributes:
        made_at: time of the observation it was made from. `digest`: of what it was asked.
        origin: point id the run was at then; "" when it was suspended.
        steps: without gaps, from `made_at` to the end of the work.
        price_mu: what a token may cost, grams. `grams`: what the plan comes to.
        bound_g: no plan comes to less, under the forecast used. `gap`: most it could be bettered
            by, as a share of the bound.
        level, budget: what is wrong with the service level and the budget, each as a clause; ""
            when it is kept, or when there is none.
        slots, options: how many slots, and what to be at in each, the plan was chosen from.
        sharing: how many runs share a power cap by the joint plan that it keeps to; 0: it was made
            in what the cap leaves the run with all others where they are, or under no cap.
    """

    made_at: datetime
    digest: str
    origin: str
    steps: tuple[PlanStep, ...]
    price_mu: float
    grams: float
    bound_g: float
    gap: float
    level: str = ""
    budget: str = ""
    slots: int = 0
    options: int = 0
    sharing: int = 0

    @property
    def finish_at(self) -> datetime:
        """When the work ends."""
        return self.steps[-1].end if self.steps else self.made_at

    def at(self, now: datetime) -> PlanStep | None:
        """Give the step that holds `now`; None when the plan says nothing about it."""
        return next((step for step in self.steps if step.start <= now < step.end), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLeft:
    """The budget that is a run's own, as its running period stands.

    Attributes:
        left_g: what may still be emitted where power is measured, in the decision signal; below 0
            once it is overspent. `unpriced_j`: joules that are not counted in it yet.
        until: end of the period.
    """

    left_g: float
    unpriced_j: float
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CapAhead:
    """What an operator's announced power cap will leave one run.

    Attributes:
        start, until: when it holds. `cap_w`: what it leaves all GPUs together.
        room_w: watts that it leaves the run with all others held, as things are now.
        point: id of the point that the run is held at then, from where it is now; "" when limits
            alone hold it, at a speed that nobody knows.
        runs_w: what it leaves all runs together; None: not known.
    """

    start: datetime
    until: datetime
    cap_w: float
    room_w: float
    point: str = ""
    runs_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomStep:
    """What a joint plan leaves one run of a power cap during [start, until)."""

    start: datetime
    until: datetime
    room_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run as the journal and its own reports show it.

    Attributes:
        current: the catalogue point it reports itself to be at; None when it is at none.
        tokens_per_s: measured over its last steps; None until there were two.
        speeds: what was measured of points by this launch's machines.
        last_seen_s: since its newest sign of life. `live`: heard lately, whatever its steps take,
            and not finished. `step`, `tokens`: what it reported last, however long ago.
        since_switch_s: since its last layout change; None when it never switched.
        switches: its newest switches as they were measured, newest first.
        switch_energy_j: measured joules of its own switches (p95); None until measured.
        failed_switches: in a row, since the last confirmed one or thaw.
        switches_today: layout switches begun in the last 24 h.
        gpus_held: devices this run keeps whether it uses them or not.
        clock_trouble: why no clock of its GPUs can be set now, as a clause; "" when all can.
        since_clock_s: since its GPUs' clock was last changed; None when it never was.
        ordered_point: what an operator asked for and nobody has carried out yet.
        trouble: why no checkpoint of it can be made now, as it says; "" when one can.
        suspended_s: since it was suspended to save carbon; None while it trains. `layout` and
            `current` then say where it was. `wakes_at`: when its launcher starts it again at the
            latest, whoever lives then.
        refused_s: since its launcher refused to hold its next launch, where it did so the last time
            that it was asked; `refused`: why, as a clause.
        queued_s: since it left for another size; None: it did not. Until its next launch begins it
            does not train. `held_as`: what holds that launch, as people find it; `wakes_at`: from
            when on one of the old size may begin as well.
        plan: the newest one; None when there is none.
        outage_share: share of its time that it stood, in [0, 1): in outages nobody ordered, and in
            pauses between two steps, which `tokens_per_s` leaves out.
        room_w: watts that a power cap leaves it; None: no cap is in force.
        capped: what the cap does to it, as a clause; "" when nothing.
        caps_ahead: what caps that are announced will leave it, the next first.
        shared_room: what the joint plan of all runs leaves it, which its own plan keeps to; empty:
            there is none, and its room is as if all others stayed where they are.
        trained: (seconds ago, tokens by then), oldest first, over the window of the service level;
            empty: there is none, or it is not known.
        budget: its own; None: it has none, or one in grams of another signal than the decisions'.
        coverage: (GPUs it uses whose power was read lately, GPUs it uses); the site's when it named
            none, (0, 0) when not known.
        unreadable: why nothing can be decided about it, as a clause; "" when something can.
        stale: why the proof of a point of its catalogue no longer holds, as a clause, by id.
    """

    run: str
    name: str
    attempt: int
    live: bool
    last_seen_s: float
    step: int
    tokens: int
    tokens_total: int
    layout: Layout
    world_size: int
    gpus_held: int
    boundary_every: int
    started_at: datetime
    catalogue: Catalogue | None = None
    current: OperatingPoint | None = None
    deadline: datetime | None = None
    tokens_per_s: float | None = None
    frozen: str = ""
    open_switch: SwitchView | None = None
    ordered_point: str = ""
    failed_switches: int = 0
    switches_today: int = 0
    clock_trouble: str = "no agent reports an actuator for its GPUs"
    since_clock_s: float | None = None
    since_switch_s: float | None = None
    switches: tuple[SwitchRecord, ...] = ()
    speeds: tuple[MeasuredSpeed, ...] = ()
    switch_energy_j: float | None = None
    capabilities: tuple[str, ...] = ()
    trouble: str = ""
    suspended_s: float | None = None
    wakes_at: datetime | None = None
    refused_s: float | None = None
    refused: str = ""
    queued_s: float | None = None
    held_as: str = ""
    plan: PlanView | None = None
    outage_share: float = 0.0
    room_w: float | None = None
    capped: str = ""
    caps_ahead: tuple[CapAhead, ...] = ()
    shared_room: tuple[RoomStep, ...] = ()
    trained: tuple[tuple[float, int], ...] = ()
    budget: BudgetLeft | None = None
    coverage: tuple[int, int] = (0, 0)
    unreadable: str = ""
    stale: Mapping[str, str] = field(default_factory=dict)

    @property
    def resizes(self) -> bool:
        """Whether it goes to points of other sizes as other launches, and gives its GPUs back."""
        gives_back = self.catalogue is not None and self.catalogue.release is Release.RELEASED
        return gives_back and RESIZES in self.capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class CapView:
    """A power cap that is in force; `runs_w`: of it for all runs; None: not known."""

    cap_w: float
    until: datetime
    runs_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The operator's limits on automatic switching.

    Attributes:
        dwell_s: least time between two layout changes. `clock_dwell_s`: between two clock changes.
        gain_factor: a switch must save at least this many times what it costs.
        guard_margin: share of speed kept in reserve by the deadline guard, in [0, 1).
        reserve: kept beside it of speeds that were not measured by the launch's own machines.
        failed_switch_s: longest time until a run trains again after a switch that failed, rollback
            and restart included; 0: twice the seconds of a switch.
        equivalence: classes the operator allows.
        proof_days: for how long the proof of a point holds; 0: forever.
        sleep: where runs may be put to sleep. `longest_sleep_s`: for how long one order lets them.
        sla_throughput_share: of the fastest point's speed, which plans keep on average over every
            `sla_window_s`; 0: none.
    """

    dwell_s: float = 4 * 3600.0
    clock_dwell_s: float = 900.0
    gain_factor: float = 2.0
    guard_margin: float = 0.02
    reserve: SpeedReserve = field(default_factory=SpeedReserve)
    max_switches_per_day: int = 6
    failed_limit: int = 2
    failed_switch_s: float = 0.0
    equivalence: tuple[Equivalence, ...] = (Equivalence.EXACT, Equivalence.NUMERICAL)
    sla_throughput_share: float = 0.0
    sla_window_s: float = 86_400.0
    proof_days: float = 90.0
    sleep: Sleep = Sleep.ASSUMED
    longest_sleep_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything one cycle saw.

    Attributes:
        cycle_s: longest time until the next cycle looks; the deadline guard counts on it.
        clock_lag_s: longest time from the wish for a higher clock, or for none, to the boards
            running at it, whoever dies meanwhile; the guard counts on it too.
        cap: the power cap in force, if any.
    """

    now: datetime
    mode: Mode
    runs: tuple[RunView, ...]
    carbon: CarbonView
    frozen: str = ""
    policy: PolicySettings = field(default_factory=PolicySettings)
    cycle_s: float = 0.0
    clock_lag_s: float = 0.0
    cap: CapView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What should be done with one run, and why, in one sentence a person understands.

    Attributes:
        kind: stable short key of the reason ("dwell", "stale_signal", "gain_too_small", ...);
            consecutive holds of one kind and target are one row in the journal.
        target: point id the run should be at (its own when holding); "" when unknown.
        reason: the sentence.
        predicted_g: grams expected to be saved by acting now, against staying, until the plan
            changes again. `switch_cost_g`: what the switch itself costs.
        price_mu: grams per token: the one carbon price of the plan.
        plan_bound_g: lower bound on the grams still to come, under the forecast used.
        slack_s: what the deadline guard has to spare; None without a deadline.
        wakes_at: when a run that is put to sleep trains again if nobody says otherwise.
    """

    run: str
    action: Action
    kind: str
    reason: str
    current: str = ""
    target: str = ""
    predicted_g: float | None = None
    switch_cost_g: float | None = None
    price_mu: float | None = None
    plan_bound_g: float | None = None
    slack_s: float | None = None
    wakes_at: datetime | None = None
