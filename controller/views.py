"""What the daemon tells a person: the answers of the HTTP API as documented dataclasses.

`as_json` turns any of them into the JSON object that the API serves and the screens render: keys
are the field names, times are ISO 8601 in UTC with a `Z`, enums are their values, an unknown value
is null; `flags` says what the joules, watts and grams beside it are: estimated, provisional,
simulated, any of them together (wattmesh.controller.marks). Invariant: keys are only ever added,
never renamed or removed, within one API version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from types import NoneType
from typing import Any

from wattmesh.controller.carbon_views import CarbonLine
from wattmesh.reconfig.ranges import clean
from wattmesh.reconfig.wire.messages import json_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleLine:
    """The newest turn of the control cycle.

    Attributes:
        age_s: seconds since it ended; None before the first one. A large age means the cycle hangs.
        sentence: what it decided, in the same sentence as in the log.
        overruns: turns that took longer than `every_s`. `errors`: turns that ended in a bug.
    """

    age_s: float | None
    duration_ms: float | None
    every_s: float
    sentence: str
    overruns: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLine:
    """The power of all GPUs together.

    Attributes:
        total_w: sum of the newest readings of all GPUs; None when none was read.
        gpus: devices read in the newest sample. `expected`: devices known from before.
        age_s: seconds since the newest sample.
        unobserved_share: share of device-seconds since the daemon started that nobody measured.
        source: name of the power source; "" when power is not read.
        hosts_w: power of processors and memory, where they are read; `total_w` does not include it.
        covered: GPUs whose power was read lately. `to_cover`: GPUs that nodes, or the daemon's own
            sampler, ever read; 0 while that is not known.
        clocks_as_ordered: GPUs whose clock lock is as ordered. `clocks`: GPUs whose actuator
            reports; 0 when there is none.
    """

    source: str
    total_w: float | None
    gpus: int
    expected: int
    age_s: float | None
    unobserved_share: float | None
    simulated: bool
    trouble: str = ""
    hosts_w: float | None = None
    covered: int = 0
    to_cover: int = 0
    clocks_as_ordered: int = 0
    clocks: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapTrigger:
    """Why demand response set a power cap, as it was known when the cap was announced.

    Attributes:
        unit: of `value` (mean of the signal over the cap) and `threshold` (from which on hours
            count).
        issued_at: when what lay ahead was issued; null: not known.
    """

    signal: str
    unit: str
    value: float
    threshold: float
    issued_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLine:
    """The power cap in force.

    Attributes:
        origin: who set it: operator, or demand response by carbon or price. `trigger`: why, where
            it was demand response.
        by: who ordered it. `sentence`: how it is kept, or why it is not.
        meets: whether it is known to be kept. `lowest_w`: the lowest cap that could be.
        bound_w: the most that all GPUs can draw under it; None, as `lowest_w`: no GPU's limit is
            known.
        gpus: boards that are held lower for it. `deaf`: boards that obey no actuator; they count in
            full.
        slowed: the point that each run gave up for the cap, by the run's name.
        late: runs that will miss their deadline at the speed that the cap leaves them.
        flags: of `bound_w` and `lowest_w`; `cap_w` is what was ordered.
    """

    cap_w: float
    start: datetime
    until: datetime
    by: str
    reason: str
    meets: bool
    bound_w: float | None
    lowest_w: float | None
    sentence: str
    gpus: int = 0
    deaf: tuple[str, ...] = ()
    slowed: Mapping[str, str] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    origin: str = "operator"
    trigger: CapTrigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCap:
    """A power cap that is announced, or that holds beside a lower one. `by`: who announced it.

    Attributes:
        origin: who set it: operator, or demand response by carbon or price. `trigger`: why, where
            it was demand response.
    """

    cap_w: float
    start: datetime
    until: datetime
    by: str
    reason: str
    sentence: str
    origin: str = "operator"
    trigger: CapTrigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandLine:
    """What demand response makes of one signal.

    Attributes:
        origin: carbon or price. `sentence`: what it follows and caps, or why not.
        held: nothing is triggered, for a reason that a person may want to look at.
    """

    origin: str
    sentence: str
    held: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """`GET /v1/powercap`: the cap in force, and how it is kept.

    Attributes:
        cap: None while no cap is in force. `announced`: those to come, the next first. `beside`:
            others that hold and are no lower than `cap`.
        demand_response: what it makes of each signal that it follows.
        trouble: actuators that obey another journal or epoch: a sentence each, with what to run
            there.
    """

    at: datetime
    cap: CapLine | None
    announced: tuple[AnnouncedCap, ...] = ()
    beside: tuple[AnnouncedCap, ...] = ()
    demand_response: tuple[DemandLine, ...] = ()
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLine:
    """A switch in progress.

    Attributes:
        position: (n, of): `loaded` is state 5 of 7.
    """

    switch_id: str
    from_point: str
    to_point: str
    state: str
    position: tuple[int, int]
    age_s: float
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PointLine:
    """What was measured of one point of a run, beside what its catalogue says.

    Averages of the last week's steady time: without switches, outages, stalls and power caps.

    Attributes:
        tokens_per_s: the moving average. `catalogue_tokens_per_s`: what the catalogue says.
        power_w: of all the run's devices; None: not, or not wholly, measured.
            `catalogue_power_w`: what the catalogue says of them, idle GPUs that the run holds
            included; None: its watts and the meters' do not contain the same.
        speed_ratio, power_ratio: measured over the catalogue's; `power_ratio` None: not known.
        speed_alarm, power_alarm: whether the ratio is off by more than `policy.catalogue_alarm`.
        measured_s: seconds that the averages are over. `until`: where they end.
        flags: of the watts.
    """

    point: str
    tokens_per_s: float
    catalogue_tokens_per_s: float
    speed_ratio: float
    power_w: float | None
    catalogue_power_w: float | None
    power_ratio: float | None
    speed_alarm: bool
    power_alarm: bool
    measured_s: float
    until: datetime
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run.

    Attributes:
        state: live (heard lately, however long its steps take), asleep (to save carbon; nobody is
            to be heard), queued (it left for another size, and waits for nodes), lost (not heard
            lately, or not up long after its alarm or its wait), finished.
        activity: the STATE column: holding, switching, frozen, asleep, queued, lost, finished,
            observed, stopped (its newest launch was asked to stop, and left), failed (that left
            with an error), retired, expired (not heard for too long, or its process has ended). A
            new launch may continue a stopped or failed run.
        ended: how it ended, in the words of the run or of who ended it; "" while nobody said so.
        layout: short name, e.g. `dp2 tp2`; "" when it is not known, as of a run that is only
            observed: `ranks` then counts its GPUs. `point`: id in its catalogue; "" when it is at
            no point.
        j_per_token: of its point, as the catalogue says; None when it is at no point.
        slack_s: seconds that the deadline guard had to spare at the newest decision.
        sentence: the reason of the newest decision.
        trouble: why its newest save step left no checkpoint, or why none can be made, as the run
            says; "" when all is well.
        ordered_point: point that an operator ordered and that the run is not at yet.
        last_seen_s: seconds since its newest sign of life. `phase`: what it did then (starting,
            training, checkpointing, switching, parked). `last_step_s`: seconds since its newest
            launch last reported a step; None before its first.
        waits_for: what a live run waits for when a step takes longer than usual; "" otherwise.
        simulated: the values of this line that are simulated (`power_w`, ...).
        flags: of `j_per_token`, as the catalogue says, and of the grams in `sentence`.
        measured: what was measured of its points lately, as its daemon last looked.
        asleep_at: since when it sleeps; None: it does not. `wakes_at`: when its launcher starts it
            again at the latest, or from when on a queued run may begin in its old size; `held_as`:
            what holds that launch.
    """

    name: str
    run: str
    state: str
    activity: str
    owner_uid: int
    attempt: int
    step: int
    tokens: int
    tokens_total: int
    loss: float | None
    layout: str
    ranks: int
    world_size: int
    point: str
    clock_mhz: int | None
    tokens_per_s: float | None
    j_per_token: float | None
    deadline: datetime | None
    slack_s: float | None
    switch: SwitchLine | None
    frozen: str
    ordered_point: str
    last_seen_s: float
    sentence: str
    simulated: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    phase: str = ""
    last_step_s: float | None = None
    waits_for: str = ""
    trouble: str = ""
    ended: str = ""
    measured: tuple[PointLine, ...] = ()
    asleep_at: datetime | None = None
    wakes_at: datetime | None = None
    held_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """The database.

    Attributes:
        state: ok | slow | unavailable. `trouble`: one sentence; "" when the state is ok.
        identity: UUID by which actuators know this journal; "" before this daemon has led it.
    """

    state: str
    database: str
    trouble: str = ""
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """`GET /v1/status`: the whole daemon on one screen.

    Attributes:
        at: when this was true. `stale_s`: age of the runs in seconds when the journal does not
            answer and they are the last known ones; 0 when it answers. `never_read`: the journal
            has not answered since the daemon started, so nothing is known of runs and signals.
        mode: observe | advise | act.
        leading: whether this daemon decides. `leader`: the daemon that does, when this one stands
            by.
        epoch: number under which it acts, and which fences older leaders; None on standby. With an
            epoch and not leading, its term ran out before the journal answered.
        frozen: why wattmesh acts on no run at all; "" when nothing is frozen.
        trouble: sentences that need a human, most urgent first; each ends with what to do next.
        simulated: the values in this answer that are simulated.
        cap: the power cap in force; None while none is. `announced_caps`: those to come, the next
            first. `demand_response`: what it makes of each signal that it follows.
        lost_more: by uid, number of lost runs beyond the newest few of a user, which are in `runs`.
    """

    at: datetime
    version: str
    host: str
    pid: int
    up_s: float
    mode: str
    leading: bool
    leader: str
    epoch: int | None
    frozen: str
    cycle: CycleLine
    carbon: CarbonLine | None
    accounting: CarbonLine | None
    power: PowerLine
    runs: tuple[RunLine, ...]
    journal: JournalLine
    trouble: tuple[str, ...]
    stale_s: float = 0.0
    simulated: tuple[str, ...] = ()
    settings: str = ""
    cap: CapLine | None = None
    announced_caps: tuple[AnnouncedCap, ...] = ()
    demand_response: tuple[DemandLine, ...] = ()
    lost_more: Mapping[str, int] = field(default_factory=dict)
    never_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopening:
    """A month that was closed, and that a person opened again.

    Attributes:
        by: who did it. `reason`: why.
        carbon_ug: micrograms of CO2 that it had been closed with, by signal. `flags`: of these.
    """

    month: str
    closed_at: datetime
    reopened_at: datetime
    by: str
    reason: str
    carbon_ug: Mapping[str, int]
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Every answer that is not a success.

    Attributes:
        error: what happened, and what to do next.
        kind: refused (403) | fenced (409) | invalid (400, 413, 422) | not_found (404) | unavailable
            (503) | bug (500).
    """

    error: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Answer to an operator's request. `done`: what was done, in one sentence."""

    done: str
    changed: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedExperts:
    """Where a run's experts lie.

    Attributes:
        placement: by layer of experts, the expert in each row of its stacks; (): by number, or not
            known.
        known: whether the journal says so. `why` it does not; "" where it does.
    """

    placement: tuple[tuple[int, ...], ...]
    known: bool
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMade:
    """A new token of a node's agent.

    Attributes:
        token: the secret; it is shown only in this answer. `done`: what to do with it.
    """

    node: str
    token: str
    done: str


DEEPEST = 32
"""Objects and lists in each other; no view of ours has ten. What was stored deeper before it was
refused at the door is shown as unknown."""


def as_json(value: object, depth: int = 0) -> Any:
    """Turn a view, a journal row or a fact into plain JSON values; `depth`: it lies so deep."""
    if depth > DEEPEST:
        return None
    kind = type(value)
    if kind in _SCALARS:
        return _scalar(value)
    if is_dataclass(kind):
        return {key: as_json(getattr(value, name), depth + 1) for key, name in json_fields(kind)}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {str(key): as_json(item, depth + 1) for key, item in value.items()}
    return _scalar(value)


_SCALARS = frozenset({float, str, bool, int, datetime, NoneType})
"""Most values of an answer; that they are no objects or lists need not be asked of each."""


def _scalar(value: object) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        # JSON has no other numbers; what was stored before they were refused is not known.
        return value if isfinite(value) else None
    if isinstance(value, datetime):
        at = value if value.tzinfo is UTC else value.astimezone(UTC)
        return at.isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return value if isinstance(value, int) else clean(str(value))
