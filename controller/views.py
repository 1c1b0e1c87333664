"""What the daemon tells a person: the answers of the HTTP API as documented dataclasses.

`as_json` turns any of them into the JSON object that the API serves and the screens render: keys
are the field names, times are ISO 8601 in UTC with a `Z`, enums are their values, an unknown value
is null; `flags` says what the joules, watts and grams beside it are: estimated, provisional,
simulated, any of them together (wattmesh.controller.marks). Invariant: keys are only ever added,
never renamed or removed, within one API version.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import Any

from wattmesh.reconfig.ranges import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleLine:
    """The control cycle's newest turn.

    Attributes:
        age_s: since it ended; None before the first one. A large age means the cycle hangs.
        sentence: what it decided, in one sentence; the same as in the log.
        overruns: turns that took longer than `every_s`. `errors`: turns that ended in a bug.
    """

    age_s: float | None
    duration_ms: float | None
    every_s: float
    sentence: str
    overruns: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSlot:
    """Intensity of [start, end) as forecast now."""

    start: datetime
    end: datetime
    g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonLine:
    """One grid signal as it stands.

    Attributes:
        signal: full identity, `provider:zone:kind:factor:gas`.
        g_per_kwh: of the interval that holds now; None when unknown.
        quality: of that value: measured, provisional, forecast, static; "" when unknown.
        age_s: since the provider last answered; None when it never did.
        trouble: why no carbon-motivated act is allowed; "" when the signal is usable.
        forecast: the slots to come, current one first. `low`: the lowest of them.
        simulated: the signal is a replayed recording, not the grid of today.
        flags: of `g_per_kwh`. What is forecast is an estimate, and simulated where that is.
        rung: what decisions rest on: issued, profile, static, none. `source`: who made the slots to
            come. `issued_at`: when; of a profile the end of the history it is made of.
        note: why it is not the best rung; "" when it is.
        state: how the newest poll ended: ok, failed, refused (a person must mend it); "" before the
            first. `detail`: what the provider said.
    """

    signal: str
    provider: str
    zone: str
    kind: str
    factor: str
    g_per_kwh: float | None
    quality: str
    age_s: float | None
    trouble: str
    forecast: tuple[ForecastSlot, ...] = ()
    low: ForecastSlot | None = None
    simulated: bool = False
    rung: str = ""
    source: str = ""
    issued_at: datetime | None = None
    note: str = ""
    state: str = ""
    detail: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BandSlot:
    """Intensity of [start, end) with its 10 % and 90 % quantiles; None where nobody told them.

    Attributes:
        quality: forecast, or that of what was observed of the running interval.
    """

    start: datetime
    end: datetime
    g_per_kwh: float
    low_g_per_kwh: float | None
    high_g_per_kwh: float | None
    quality: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillLine:
    """How far off a source was lately, up to `lead_h` ahead.

    Attributes:
        source: issued (the provider), own, profile, day (24 h persistence), last.
        mae_g_per_kwh: mean absolute error; `persistence_mae_g_per_kwh`: of 24 h persistence on the
            same hours; `last_mae_g_per_kwh`: of the last value known, on the same hours.
        count: how many recent outcomes they stand for.
    """

    source: str
    lead_h: float
    mae_g_per_kwh: float
    persistence_mae_g_per_kwh: float
    last_mae_g_per_kwh: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastView:
    """`GET /v1/carbon/forecast`: what decisions rest on, and how far it can be trusted.

    Attributes:
        rung: issued | profile | static | none. `source`: who made the slots.
        sentence: what that means for decisions.
        issued_at: when it was issued; of a profile the end of the history it is made of.
        model: what went into it. `slots`: the running one first, without gaps.
        flags: of what is expected; the running slot says its own quality.
    """

    at: datetime
    signal: str
    rung: str
    source: str
    sentence: str
    issued_at: datetime | None
    interval_s: float
    model: str = ""
    slots: tuple[BandSlot, ...] = ()
    skill: tuple[SkillLine, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLine:
    """All GPUs together.

    Attributes:
        total_w: newest readings added up; None when nothing was read.
        gpus: devices read at the newest sample. `expected`: devices known from before.
        age_s: since the newest sample.
        unobserved_share: of device-seconds since the daemon started that nobody measured, 0..1.
        source: name of the power source; "" when power is not read at all.
        hosts_w: processors and memory, where they are read; `total_w` is the GPUs alone.
        covered: GPUs whose power was read lately. `to_cover`: those that nodes, or the
            daemon's own sampler, ever read; 0 while not known.
        clocks_as_ordered: GPUs whose lock is what is wished. `clocks`: GPUs whose actuator is
            heard; 0 where there is none.
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
class CapLine:
    """The operator's power cap in force.

    Attributes:
        by: who ordered it. `sentence`: how it is kept, or why it is not.
        bound_w: the most that all GPUs can draw under it. `lowest_w`: the lowest there is.
        gpus: boards that are held lower for it. `deaf`: boards that obey nobody, counted in full.
        slowed: by the name of a run, the point it gave up for the cap.
        late: runs that will miss their deadline at the speed the cap leaves them.
        flags: of `bound_w` and `lowest_w`; `cap_w` is what was ordered.
    """

    cap_w: float
    start: datetime
    until: datetime
    by: str
    reason: str
    meets: bool
    bound_w: float
    lowest_w: float
    sentence: str
    gpus: int = 0
    deaf: tuple[str, ...] = ()
    slowed: Mapping[str, str] = field(default_factory=dict)
    late: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCap:
    """`GET /v1/powercap`: the cap in force and how it is kept; null while none is.

    Attributes:
        trouble: which actuators obey another journal or epoch, and what to run there; a sentence
            each.
    """

    at: datetime
    cap: CapLine | None
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLine:
    """A switch in progress. `position` = (n, of): `loaded 5 of 7`."""

    plan: str
    from_point: str
    to_point: str
    state: str
    position: tuple[int, int]
    age_s: float
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run.

    Attributes:
        state: live (heard lately, whatever its steps take), lost (not heard for a while), finished.
        activity: the STATE column: holding, switching, frozen, lost, finished, observed, stopped
            (its newest launch was asked to stop and left), failed (it left with an error; after
            both another may go on from there), retired, expired (not heard for too long).
        ended: how it ended, as it or whoever ended it said; "" while nobody said that it did.
        layout: short name, e.g. `dp2 tp2`; "" of a run that is only observed, for it is not known,
            and `ranks` are then its GPUs. `point`: catalogue id; "" when at none of them.
        j_per_token: of the point it is at, as the catalogue says; None when at no point.
        slack_s: what the deadline guard had to spare at the newest decision.
        sentence: the newest decision's reason.
        trouble: why its newest save step left no checkpoint, or none can be made, as the run says;
            "" when all is well.
        ordered_point: what an operator asked for and nobody has carried out yet.
        last_seen_s: since its newest sign of life, `phase`: what it was doing then (starting,
            training, checkpointing, switching, parked). `last_step_s`: since its newest launch last
            reported a step; None before its first.
        waits_for: what a live run waits for that has taken no step for longer than usual; else "".
        simulated: what of this line is simulated (`power_w`, ...); empty when nothing is.
        flags: of `j_per_token`, as the catalogue says, and of the grams in `sentence`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """The database.

    Attributes:
        state: ok | slow | unavailable. `trouble`: one sentence, "" when ok.
        identity: what actuators know this journal by, a UUID; "" before this daemon led it.
    """

    state: str
    database: str
    trouble: str = ""
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusView:
    """`GET /v1/status`: the whole daemon on one screen.

    Attributes:
        at: when this was true. While the journal does not answer, the runs are the last known
            ones and `stale_s` says how old they are; else it is 0. `never_read`: it has not
            answered since the daemon started, so that nothing is known of runs and signals.
        mode: observe | advise | act.
        leading: this daemon decides; else it stands by and `leader` names who does.
        epoch: the fence under which it acts; None on standby.
        frozen: why nothing at all is acted upon; "" when not frozen.
        trouble: sentences that need a human, most urgent first, each ending in what to do next.
        simulated: what in this answer is simulated; empty when nothing is.
        cap: the operator's power cap in force; null while none is.
        lost_more: by uid, lost runs that are not among `runs`: of each user only the newest few.
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
    lost_more: Mapping[str, int] = field(default_factory=dict)
    never_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopening:
    """A month that was closed and opened again by a person.

    Attributes:
        by, reason: who did it, and why.
        carbon_ug: micrograms that it had been closed with, by signal. `flags`: of these.
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
        kind: refused (403) | fenced (409) | invalid (400, 413, 422) | not_found (404) |
            unavailable (503) | bug (500).
    """

    error: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Answer to an operator's act: what was done, in one sentence."""

    done: str
    changed: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMade:
    """A new token of a node's agent: the secret, told this once. `done`: what to do with it."""

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
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name), depth + 1) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item, depth + 1) for item in value]
    return _scalar(value)


def _scalar(value: object) -> Any:
    """Turn one value that holds no others into JSON."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        # JSON has no other numbers; what was stored before they were refused is not known.
        return value if isfinite(value) else None
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    return value if value is None or isinstance(value, int) else clean(str(value))
