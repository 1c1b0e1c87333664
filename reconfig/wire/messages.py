"""The messages between a training run and the daemon, protocol 2 (JSON over HTTP).

Both ends use these types, which need only the standard library. Decoding ignores unknown fields and
refuses a missing required one with an `InputInvalid` that names it. A hook that does not understand
an answer continues training. Decoding also checks the ranges in `wattmesh.reconfig.ranges`.
"""

import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache, partial
from types import NoneType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.placement import Placement
from wattmesh.reconfig.switch import SwitchState

PROTOCOL = 2
"""The daemon also serves the previous version, which had no `Heartbeat`."""

RankList = Annotated[tuple[ranges.Rank, ...], ranges.Many(ranges.MOST_RANKS)]
Devices = Annotated[tuple[ranges.Device, ...], ranges.Many(ranges.MOST_RANKS)]
Capabilities = Annotated[tuple[ranges.Label, ...], ranges.Many(64)]
Evidence = Annotated[dict[str, Any], ranges.Open(names=64, values=256, deepest=4, longest=1000)]

OBSERVED = "observed"
"""Capability of a run that is only measured and accounted: its layout is not known, so `layout` and
`ranks` only give its number of GPUs, or of processes."""

GPUS_UNKNOWN = "gpus unknown: "
"""Prefix of the capability that says in a sentence why a run did not name a GPU."""

HEARTBEAT_S = 5.0
"""Default interval of heartbeats."""

SWITCH_ID_KEY = "plan"
"""The key of a switch's id in JSON: messages, run folders and the API's answers keep the name that
protocol 2 began with. Python and the journal say `switch_id`."""

JSON_NAMES = {"switch_id": SWITCH_ID_KEY}
"""Fields whose JSON key is not their name."""


SUSPENDS = "suspend"
"""Capability of a run that can sleep to save carbon: its launcher holds its next launch."""


RESIZES = "resize"
"""Capability of a run whose launcher holds a next launch of another number of ranks."""


class SwitchMode(StrEnum):
    """How a switch is carried out.

    SUSPEND stops the run at its checkpoint, and its launcher starts it again later; RESUME asks the
    launcher to do so now. RESIZE is a restart as a launch of exactly the ordered ranks.
    """

    IN_PLACE = "in_place"
    RESTART = "restart"
    SUSPEND = "suspend"
    RESUME = "resume"
    RESIZE = "resize"


def json_name(field_name: str) -> str:
    """Return the JSON key of a dataclass's field."""
    return JSON_NAMES.get(field_name, field_name)


@cache
def json_fields(kind: Any) -> tuple[tuple[str, str], ...]:
    """Give JSON key and name of each field of a dataclass."""
    return tuple((json_name(each.name), each.name) for each in fields(kind))


def _encoded(value: Any) -> Any:
    """Encode a field's value."""
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Layout):
        return value.to_dict()
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: _encoded(each) for name, each in value.items()}
    items = (_encoded(each) for each in value)
    return tuple(items) if isinstance(value, tuple) else list(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The base of all messages: a flat JSON object as a frozen dataclass."""

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object (enums by value, layouts as objects)."""
        own: Any = type(self)
        return {key: _encoded(getattr(self, name)) for key, name in json_fields(own)}

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Decode one message.

        Raises:
            InputInvalid: it is no object, or a field is missing or malformed.
        """
        if not isinstance(data, Mapping):
            raise InputInvalid(f"{cls.__name__}: expected a JSON object, got {type(data).__name__}")
        own: Any = cls
        values: dict[str, Any] = {}
        for name, key, where, read, required in _field_readers(own):
            if key in data:
                values[name] = read(data[key], where)
            elif required:
                raise InputInvalid(f"{cls.__name__}: the field {key!r} is missing")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Message):
    """A run registers one launch (rank 0, once per launch).

    Attributes:
        run: UUID kept beside the checkpoints; it survives requeues.
        name: the run's name, which selects its section in the settings.
        incarnation: UUID of this launch.
        supersedes: the previous launch, certainly dead because this one holds its lock; None when
            there was none.
        attempt: rising launch number, claimed in the checkpoint folder (the fence).
        layout, ranks: the present layout and its ranks.
        world_size: number of launched ranks.
        gpus: device UUID per global rank ("" where the device has none).
        allocated: UUIDs of all GPUs that the scheduler gave the job, as far as its ranks' nodes say
            so without doubt, used or not; (): not known, or a hook that does not say.
        step, tokens: the training position.
        tokens_total: the target; 0 when not known.
        capabilities: abilities of the run, e.g. "in_place", "restart", "parking",
            "fixed_data_parallel", `OBSERVED`, `GPUS_UNKNOWN`, those of
            `Fingerprint.to_capabilities`.
        asked_s: seconds since this launch first asked to be let in, as no daemon may have answered;
            None: a launch of before, which does not say.
    """

    run: ranges.RunId
    name: ranges.Name
    incarnation: ranges.Token
    attempt: ranges.Attempt
    layout: Layout
    ranks: RankList
    world_size: ranges.WorldSize
    gpus: Devices = ()
    allocated: Devices = ()
    supersedes: ranges.Token | None = None
    scheduler_key: ranges.Label = ""
    step: ranges.Steps = 0
    tokens: ranges.Tokens = 0
    tokens_total: ranges.Tokens = 0
    boundary_every: ranges.Every = 0
    checkpoint_digest: ranges.Digest = ""
    capabilities: Capabilities = ()
    pid: ranges.Pid = 0
    host: ranges.Label = ""
    protocol: ranges.Serial = PROTOCOL
    asked_s: ranges.Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Message):
    """The daemon's answer to `Register`. `epoch`: the leader's at this time.

    Attributes:
        heartbeat_s: interval of heartbeats that the daemon asks for.
    """

    run: ranges.Token
    incarnation: ranges.Token
    attempt: ranges.Attempt
    epoch: ranges.Epoch
    mode: str = "observe"
    protocol: ranges.Serial = PROTOCOL
    heartbeat_s: float = HEARTBEAT_S


class RunPhase(StrEnum):
    """The phase of a launch in its heartbeat."""

    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    SWITCHING = "switching"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """A launch is alive, whatever its training does; a thread of the hook sends it.

    Attributes:
        phase: a `RunPhase`, or a newer hook's word of at most 32 lower-case letters.
    """

    run: ranges.RunId
    incarnation: ranges.Token
    attempt: ranges.Attempt
    phase: ranges.Phase = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer(Message):
    """The daemon's answer to a heartbeat. `heartbeat_s`: the interval from now on."""

    heartbeat_s: float = HEARTBEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """A run's report while it trains.

    Attributes:
        seq: rises by one per report of a launch.
        tokens_per_s: speed without long pauses between steps.
        pause_share: share of the launch's time so far that such pauses took.
        trouble: why the newest save step left no checkpoint, or none can be made, as a sentence of
            at most 500 characters; "" when all is well.
    """

    run: ranges.RunId
    incarnation: ranges.Token
    attempt: ranges.Attempt
    seq: ranges.Serial
    step: ranges.Steps
    samples: ranges.Samples
    tokens: ranges.Tokens
    tokens_per_s: ranges.Rate
    loss: ranges.Loss | None
    layout: Layout
    ranks: RankList
    boundary_every: ranges.Every = 0
    checkpoint_step: ranges.Steps = 0
    checkpoint_digest: ranges.Digest = ""
    phase: ranges.Phase = RunPhase.TRAINING.value
    pause_share: ranges.Share = 0.0
    trouble: ranges.Trouble = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Message):
    """An order of the daemon to a run. Void outside [not_before_step, valid_until_step].

    Attributes:
        journal: identity of the journal that `epoch` belongs to; "": from an older daemon.
        wakes_at: of a suspension: when the run trains again if nobody says otherwise; None else.
            `layout` and `ranks` are those that it has. `sleeps_s`: how far ahead that was when it
            was ordered, so that a daemon's wrong clock makes nobody sleep longer; 0: not told.
        waits_s: of a resize: for how long the launch of the new size may wait for nodes before one
            of the old size may begin in its place; 0: not told.
        placement: of experts, for a job that lets them be placed anew; () leaves them where they
            are. With it, `layout` and `ranks` may be those that the run has.
    """

    switch_id: ranges.Token
    epoch: ranges.Epoch
    run: ranges.Token
    attempt: ranges.Attempt
    point: ranges.Label
    layout: Layout
    ranks: RankList
    not_before_step: ranges.LaterStep
    valid_until_step: ranges.LaterStep
    mode: SwitchMode = SwitchMode.IN_PLACE
    reason: str = ""
    journal: ranges.Token = ""
    wakes_at: ranges.At | None = None
    sleeps_s: ranges.Seconds = 0.0
    waits_s: ranges.Seconds = 0.0
    placement: Placement = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders(Message):
    """Answer to the order call: the newest order, or None. `mode`: the daemon's; "": unknown."""

    order: Order | None = None
    epoch: ranges.Epoch = 0
    frozen: bool = False
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Message):
    """One state of a switch, reported by the run.

    A switch has each state once; repeats are harmless.

    Attributes:
        step: the boundary's training step.
        elapsed_s: monotonic time since the switch began.
        evidence: numbers and digests: probe_before, probe_after, probe_allowed (relative; and where
            it was measured probe_noise, probe_orders, computed_in), digest_before, digest_after,
            seconds per phase (`save_s`, `teardown_s`, `leave_s`: ending the process groups,
            `build_s`, `load_s`, `verify_s`, `total_s`), of parts of saving and verifying
            (`settle_s`: until the checkpoint of the switch before was durable, `digest_before_s`,
            `stage_s`, `probe_before_s`, `digest_after_s`, `probe_after_s`) and of building
            (`groups_s`), state_bytes (of the data that was loaded), kept (what stayed
            for the new layout),
            held_share (of the old layout's bytes, still in memory after its teardown).
            The last state may be repeated with `at_pace_s`, the time from the start of the switch
            to the end of the first step at normal pace.
    """

    run: ranges.RunId
    incarnation: ranges.Token
    attempt: ranges.Attempt
    switch_id: ranges.Token
    epoch: ranges.Epoch
    state: SwitchState
    step: ranges.Steps
    elapsed_s: ranges.Seconds
    layout: Layout | None = None
    ranks: RankList = ()
    detail: ranges.Said = ""
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Message):
    """A run, or one launch of it, has ended.

    Attributes:
        reason: "done", "restart", "suspended", "stopped: ...", "failed: ...".
        wakes_at: of a suspended run: when its next launch begins at the latest; of one that left
            for another size ("restart"): from when on one of the old size may begin in its place.
            `held_as`: what holds that launch, as people find it. `left_at`: when it left, by its
            own clock; the daemon may hear of it much later.
    """

    run: ranges.RunId
    incarnation: ranges.Token
    attempt: ranges.Attempt
    step: ranges.Steps
    tokens: ranges.Tokens
    reason: ranges.Said
    loss: ranges.Loss | None = None
    wakes_at: ranges.At | None = None
    held_as: ranges.Label = ""
    left_at: ranges.At | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent(Message):
    """A run's energy and emissions so far, by the daemon's accounting.

    Attributes:
        energy_j: None while nothing of it was measured.
        carbon_g: None while not known, or in several signals, which are never added.
        signal: the signal of `carbon_g`.
        unpriced_j: the part of `energy_j` without grams (yet).
        unobserved_s, upper_j: time without measurement, and an upper bound of its energy.
        flags: those of estimated, provisional and simulated that apply.
        why_unknown: why a figure is None, as a sentence; "" when both are known.
    """

    energy_j: float | None = None
    carbon_g: float | None = None
    signal: str = ""
    unpriced_j: float = 0.0
    unobserved_s: float = 0.0
    upper_j: float = 0.0
    flags: tuple[str, ...] = ()
    why_unknown: str = ""


def read_placement(value: object) -> tuple[tuple[int, ...], ...]:
    """Decode a placement of experts.

    Raises:
        InputInvalid: it is no list of lists of experts.
    """
    found: tuple[tuple[int, ...], ...] = read_value(Placement, value, "placement")
    return found


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Return the type of every field, with its range.

    It is cached, because it is slower than decoding.
    """
    return get_type_hints(kind, include_extras=True)


def read_value(kind: Any, value: object, where: str) -> Any:
    """Decode one JSON value to an annotated type, and check its range.

    Raises:
        InputInvalid: it has another type, or is out of range; the message begins with `where`.
    """
    return _reader(kind)(value, where)


Read = Callable[[Any, str], Any]
"""Decodes and checks a value; the second argument begins the message of a refusal."""


@cache
def _field_readers(kind: Any) -> tuple[tuple[str, str, str, Read, bool], ...]:
    """Give name, key, place in messages and reader of each field, and whether it is required."""
    hints, found = field_types(kind), []
    for each in fields(kind):
        key = json_name(each.name)
        required = each.default is MISSING and each.default_factory is MISSING
        where = f"{kind.__name__}.{key}"
        found.append((each.name, key, where, _reader(hints[each.name]), required))
    return tuple(found)


@cache
def _reader(kind: Any) -> Read:
    """Make the reader of an annotated type: looking a type over takes longer than reading."""
    if get_origin(kind) is not Annotated:
        return _plain_reader(kind)
    plain, limit = get_args(kind)
    read: Read = _plain_reader(plain)
    return lambda value, where: limit.read(read(value, where), where)


def _plain_reader(kind: Any) -> Read:
    """Make the reader of a type without a range."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _either(get_args(kind))
    if origin is tuple:
        return _list(_reader(get_args(kind)[0]))
    if origin is dict:
        return _table(*get_args(kind))
    if kind is Layout:
        return lambda value, where: Layout.from_dict(
            _expect(value, Mapping, "a layout object", where)
        )
    if issubclass(kind, Message):
        return lambda value, where: kind.from_json(value)
    return partial(_enum if issubclass(kind, StrEnum) else _scalar, kind)


def _either(kinds: tuple[Any, ...]) -> Read:
    """Make a reader to the first of several types that accepts a value."""
    *others, last = (_reader(each) for each in kinds if each is not NoneType)

    def read(value: Any, where: str) -> Any:
        if value is None and NoneType in kinds:
            return None
        for each in others:
            with suppress(InputInvalid):
                return each(value, where)
        return last(value, where)

    return read


def _list(item: Read) -> Read:
    def read(value: Any, where: str) -> Any:
        return tuple(item(each, where) for each in _expect(value, list | tuple, "a list", where))

    return read


def _table(name_kind: Any, kind: Any) -> Read:
    """Make a reader of objects whose keys are names; their range checks values of type Any."""
    name_of, item = _reader(name_kind), None if kind is Any else _reader(kind)

    def read(value: Any, where: str) -> Any:
        table = _expect(value, Mapping, "an object", where)
        if item is None:
            return dict(table)
        names = {name_of(name, f"{where}, a name"): each for name, each in table.items()}
        return {name: item(each, f"{where}.{name}") for name, each in names.items()}

    return read


def _expect(value: Any, kind: Any, words: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise InputInvalid(f"{where}: expected {words}, got {ranges.shown(value)}")
    return value


def _enum(kind: type[StrEnum], value: object, where: str) -> StrEnum:
    if not isinstance(value, str) or value not in tuple(kind):
        raise InputInvalid(f"{where}: {ranges.shown(value)} is not one of {', '.join(kind)}")
    return kind(value)


def _scalar(kind: type, value: object, where: str) -> Any:
    """Check a str, int, bool or float; an int is a legal float, a bool is not a number."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise InputInvalid(f"{where}: {ranges.shown(value)} is out of range") from None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputInvalid(f"{where}: expected {kind.__name__}, got {ranges.shown(value)}")
    return value
