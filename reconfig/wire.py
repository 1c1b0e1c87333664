"""What a training run and the daemon say to each other, protocol 2 (JSON over HTTP).

Both ends use these types; they hold only the standard library, so the hook stays light.
Reading is strict about what is needed and silent about what is new: a field that this side does
not know is ignored, a field that it needs and misses is an `InputInvalid` that names it. A hook
that does not understand an answer trains on.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

from wattmesh.errors import InputInvalid
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.switch import SwitchState

PROTOCOL = 2
"""The daemon serves this version and the one before, which had no `Heartbeat`."""

HEARTBEAT_S = 5.0
"""Between two heartbeats, where the daemon does not say."""


class SwitchMode(StrEnum):
    """How a switch is carried out."""

    IN_PLACE = "in_place"
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A wire type: flat JSON object in, frozen dataclass out."""

    def to_json(self) -> dict[str, Any]:
        """Give the JSON object (enums as their values, layouts as objects)."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read one message.

        Raises:
            InputInvalid: not an object, a needed field missing, or a field of the wrong type.
        """
        if not isinstance(data, Mapping):
            raise InputInvalid(f"{cls.__name__}: expected a JSON object, got {type(data).__name__}")
        hints = get_type_hints(cls)
        values: dict[str, Any] = {}
        for each in fields(cls):
            if each.name in data:
                where = f"{cls.__name__}.{each.name}"
                values[each.name] = _read(hints[each.name], data[each.name], where)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise InputInvalid(f"{cls.__name__}: the field {each.name!r} is missing")
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Register(Message):
    """A run introduces one incarnation of itself (rank 0, once per launch).

    Attributes:
        run: UUID kept beside the checkpoints; survives requeues.
        name: what people call the run; chooses its section in the settings.
        incarnation: UUID of this launch. `supersedes`: the one before, known to be dead because
            this one holds its lock; None when there was none.
        attempt: rising launch number claimed in the checkpoint folder (the fence).
        layout, ranks: what trains now. `world_size`: every rank that was launched.
        gpus: device UUID per global rank ("" where the device has none).
        step, tokens: where training stands; `tokens_total`: the target, 0 when not known.
        capabilities: what this run can do, e.g. "in_place", "restart", "parking",
            "fixed_data_parallel".
    """

    run: str
    name: str
    incarnation: str
    attempt: int
    layout: Layout
    ranks: tuple[int, ...]
    world_size: int
    gpus: tuple[str, ...] = ()
    supersedes: str | None = None
    scheduler_key: str = ""
    step: int = 0
    tokens: int = 0
    tokens_total: int = 0
    boundary_every: int = 0
    checkpoint_digest: str = ""
    capabilities: tuple[str, ...] = ()
    pid: int = 0
    host: str = ""
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(Message):
    """The daemon's answer: known by this owner. `epoch` is the leader's at this moment.

    Attributes:
        heartbeat_s: how often the daemon wants to hear that the launch lives.
    """

    run: str
    incarnation: str
    attempt: int
    epoch: int
    mode: str = "observe"
    protocol: int = PROTOCOL
    heartbeat_s: float = HEARTBEAT_S


class RunPhase(StrEnum):
    """What a launch is doing, as its heartbeat says."""

    STARTING = "starting"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    SWITCHING = "switching"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """A launch lives, whatever its training does; said by a thread of the hook's own.

    Attributes:
        phase: a `RunPhase`, or a word of a newer hook: lower case letters, at most 32.
    """

    run: str
    incarnation: str
    attempt: int
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beaten(Message):
    """The daemon's answer to a heartbeat. `heartbeat_s`: how often it wants one from now on."""

    heartbeat_s: float = HEARTBEAT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(Message):
    """What a run reports while it trains.

    Attributes:
        seq: rises by one per report of an incarnation.
        tokens_per_s: while it trains; long pauses between two steps are left out.
        pause_share: of the launch's time so far, what such pauses are to be counted with.
        trouble: why the newest save step left no checkpoint, or none can be made, as a sentence of
            at most 500 characters; "" when all is well.
    """

    run: str
    incarnation: str
    attempt: int
    seq: int
    step: int
    samples: int
    tokens: int
    tokens_per_s: float
    loss: float | None
    layout: Layout
    ranks: tuple[int, ...]
    boundary_every: int = 0
    checkpoint_step: int = 0
    checkpoint_digest: str = ""
    phase: str = RunPhase.TRAINING.value
    pause_share: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Message):
    """What the daemon asks of a run. Void outside [not_before_step, valid_until_step]."""

    plan: str
    epoch: int
    run: str
    attempt: int
    point: str
    layout: Layout
    ranks: tuple[int, ...]
    not_before_step: int
    valid_until_step: int
    mode: SwitchMode = SwitchMode.IN_PLACE
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders(Message):
    """Answer to the order call: the newest order, or None. `mode`: the daemon's; "" unknown."""

    order: Order | None = None
    epoch: int = 0
    frozen: bool = False
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition(Message):
    """One step of a switch, as the run lived it. (`plan`, `state`) is unique; repeats are free.

    Attributes:
        step: the boundary's training step. `elapsed_s`: monotonic since the switch began.
        evidence: numbers and digests: probe_before, probe_after, probe_allowed (relative; and where
            it was measured probe_noise, probe_orders, computed_in), digest_before, digest_after,
            seconds per phase (`save_s`, `teardown_s`, `build_s`, `load_s`, `verify_s`, `total_s`).
            The last state may be repeated with `at_pace_s`, when the first step at normal pace had
            ended, since the switch began.
    """

    run: str
    incarnation: str
    attempt: int
    plan: str
    epoch: int
    state: SwitchState
    step: int
    elapsed_s: float
    layout: Layout | None = None
    ranks: tuple[int, ...] = ()
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Message):
    """A run (or one incarnation of it) has ended. `reason`: "done", "restart", "failed: ..."."""

    run: str
    incarnation: str
    attempt: int
    step: int
    tokens: int
    reason: str
    loss: float | None = None


def _read(kind: Any, value: object, where: str) -> Any:
    """Turn one JSON value into the annotated type, or say what was expected."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        arm = next(each for each in get_args(kind) if each is not type(None))
        return None if value is None else _read(arm, value, where)
    if origin is tuple:
        items = _expect(value, list | tuple, "a list", where)
        return tuple(_read(get_args(kind)[0], item, where) for item in items)
    if origin is dict:
        return dict(_expect(value, Mapping, "an object", where))
    if kind is Layout:
        return Layout.from_dict(_expect(value, Mapping, "a layout object", where))
    if issubclass(kind, Message):
        return kind.from_json(value)
    return _enum(kind, value, where) if issubclass(kind, StrEnum) else _scalar(kind, value, where)


def _expect(value: Any, kind: Any, words: str, where: str) -> Any:
    """Give `value` back if it is of `kind`."""
    if not isinstance(value, kind):
        raise InputInvalid(f"{where}: expected {words}, got {value!r}")
    return value


def _enum(kind: type[StrEnum], value: object, where: str) -> StrEnum:
    """Read a member of a closed set by its value."""
    if not isinstance(value, str) or value not in tuple(kind):
        raise InputInvalid(f"{where}: {value!r} is not one of {', '.join(kind)}")
    return kind(value)


def _scalar(kind: type, value: object, where: str) -> Any:
    """Check a str, int, bool or float; a whole number is a legal float, a bool is no number."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputInvalid(f"{where}: expected {kind.__name__}, got {value!r}")
    return value
