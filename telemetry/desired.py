"""Wished clocks and caps of one node's GPUs, with leases, and what is in force. Pure.

The controller publishes `Desired`, the agent forwards it, the actuator applies it and answers with
`Applied`; all three decode with `from_json`, which checks every field. Level-triggered: a `Desired`
is complete for its node, and a GPU that it does not name goes to its baseline.

Invariant: a message with any malformed part is refused whole (`InputInvalid`), never half applied.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from wattmesh.errors import InputInvalid

MOST_WISHES = 1024
HIGHEST_EPOCH = 2**31 - 1
"""The journal keeps epochs in four bytes."""

LONGEST_LEASE_S = 24 * 3600.0
HIGHEST_CLOCK_MHZ = 100_000
HIGHEST_CAP_W = 100_000.0


class LeaseKind(StrEnum):
    """How long a wish lasts when nobody renews it.

    ECONOMY, to save carbon: it ends `lease_s` after it was last received, and the GPU returns to
    its baseline in steps. OBLIGATION, an operator's cap: it lasts until its own end, whoever dies.
    """

    ECONOMY = "economy"
    OBLIGATION = "obligation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One lease on one GPU. A GPU may have one of each kind; the lower clock and cap count.

    Attributes:
        clock_mhz: highest SM clock, in [1, 100000]; None: the clock is left alone.
        cap_w: board power limit in watts, in (0, 100000]; None: the limit is left alone.
        holder: the run's UUID, or the name of an operator's cap; the GPUs of one holder move
            together or not at all.
        lease_s: economy only: seconds from when the actuator receives it, in (0, 86400].
        until: obligation only: its end, aware UTC.
    """

    gpu_uuid: str
    kind: LeaseKind
    holder: str
    clock_mhz: int | None = None
    cap_w: float | None = None
    lease_s: float | None = None
    until: datetime | None = None

    def __post_init__(self) -> None:
        where = f"wish for {self.gpu_uuid!r}"
        if not self.gpu_uuid or not self.holder:
            raise InputInvalid(f"{where} by {self.holder!r}: both names must be given")
        if self.clock_mhz is None and self.cap_w is None:
            raise InputInvalid(f"{where} names neither a clock nor a cap")
        if self.clock_mhz is not None and not 0 < self.clock_mhz <= HIGHEST_CLOCK_MHZ:
            raise InputInvalid(f"{where}: clock_mhz {self.clock_mhz} is not in 1..100000")
        if self.cap_w is not None and not 0 < self.cap_w <= HIGHEST_CAP_W:
            raise InputInvalid(f"{where}: cap_w {self.cap_w} is not in (0, 100000]")
        self._check_end(where)

    def _check_end(self, where: str) -> None:
        """Check that the lease has exactly the end of its kind, in range."""
        if self.kind is LeaseKind.ECONOMY:
            if self.until is not None or self.lease_s is None:
                raise InputInvalid(f"{where}: an economy lease has lease_s, and no until")
            if not 0 < self.lease_s <= LONGEST_LEASE_S:
                raise InputInvalid(f"{where}: lease_s {self.lease_s} is not in (0, 86400]")
        elif self.lease_s is not None or self.until is None or self.until.tzinfo is None:
            raise InputInvalid(f"{where}: an obligation has until with its zone, and no lease_s")

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object; fields that are None are left out."""
        values: dict[str, Any] = {
            "gpu_uuid": self.gpu_uuid,
            "kind": self.kind.value,
            "holder": self.holder,
            "clock_mhz": self.clock_mhz,
            "cap_w": self.cap_w,
            "lease_s": self.lease_s,
            "until": self.until.astimezone(UTC).isoformat() if self.until else None,
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_json(cls, data: object) -> "Wish":
        """Decode a JSON object.

        Raises:
            InputInvalid: it is malformed.
        """
        fields = _object(data, "wish")
        kind = _text(fields, "kind")
        if kind not in set(LeaseKind):
            raise InputInvalid(f"wish: kind {kind!r} is neither economy nor obligation")
        return cls(
            gpu_uuid=_text(fields, "gpu_uuid"),
            kind=LeaseKind(kind),
            holder=_text(fields, "holder"),
            clock_mhz=_whole(fields, "clock_mhz"),
            cap_w=_number(fields, "cap_w"),
            lease_s=_number(fields, "lease_s"),
            until=_moment(fields, "until"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Everything that is wished for one node.

    Attributes:
        epoch: of the controller that sends it, in [0, 2^31 - 1]; the actuator stores the highest
            one of its journal and refuses lower ones.
        serial: changes whenever the wishes do; a reader waits for a new one.
        journal: identity (a UUID) of the journal that `epoch` belongs to; an actuator obeys one
            journal. "": the controller is too old to send it.
    """

    node: str
    epoch: int
    serial: str
    wishes: tuple[Wish, ...] = ()
    journal: str = ""

    def __post_init__(self) -> None:
        seen: set[tuple[str, LeaseKind]] = set()
        for wish in self.wishes:
            key = (wish.gpu_uuid, wish.kind)
            if key in seen:
                raise InputInvalid(f"two {wish.kind} wishes for {wish.gpu_uuid}; send one")
            seen.add(key)

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "node": self.node,
            "journal": self.journal,
            "epoch": self.epoch,
            "serial": self.serial,
            "wishes": [wish.to_json() for wish in self.wishes],
        }

    @classmethod
    def from_json(cls, data: object) -> "Desired":
        """Decode a JSON object.

        Raises:
            InputInvalid: some part is malformed.
        """
        fields = _object(data, "desired state")
        wishes = fields.get("wishes", [])
        if not isinstance(wishes, list) or len(wishes) > MOST_WISHES:
            raise InputInvalid(f"desired state: wishes is not a list of at most {MOST_WISHES}")
        return cls(
            node=_text(fields, "node"),
            epoch=read_epoch(fields.get("epoch")),
            serial=_text(fields, "serial"),
            wishes=tuple(Wish.from_json(each) for each in wishes),
            journal=read_identity(fields.get("journal", "")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuControl:
    """What is in force on one GPU, as the actuator reports.

    Attributes:
        clock_mhz, cap_w: our clock lock and power cap; None: none of ours.
        trouble: why a wish for it is not, or not wholly, in force, as a sentence with the next
            step; "" when everything is as wished.
        settable: whether an economy wish for it would be obeyed now.
        limit_w: its power limit without our cap; None: not known.
        floor_w: the lowest cap that may be set on it; None: not known.
        fault: what a person must look at, one of `FAULTS`; "" for nothing.
    """

    gpu_uuid: str
    clock_mhz: int | None = None
    cap_w: float | None = None
    trouble: str = ""
    settable: bool = False
    limit_w: float | None = None
    floor_w: float | None = None
    fault: str = ""

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: object) -> "GpuControl":
        """Decode a JSON object.

        Raises:
            InputInvalid: it is malformed.
        """
        fields = _object(data, "GPU control")
        trouble, settable = fields.get("trouble", ""), fields.get("settable", False)
        fault = fields.get("fault", "")
        if not isinstance(trouble, str) or not isinstance(settable, bool):
            raise InputInvalid("GPU control: trouble must be text and settable true or false")
        return cls(
            gpu_uuid=_text(fields, "gpu_uuid"),
            clock_mhz=_whole(fields, "clock_mhz"),
            cap_w=_number(fields, "cap_w"),
            trouble=trouble[:500],
            settable=settable,
            limit_w=_number(fields, "limit_w"),
            floor_w=_number(fields, "floor_w"),
            # A fault that only a newer actuator knows still has its sentence in `trouble`.
            fault=fault if fault in FAULTS else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The actuator's answer: what is in force on the whole node.

    Attributes:
        mode: observe | dry-run | enforce; "none" where no actuator answers.
        epoch: the highest one that it has received from that journal.
        trouble: why it obeys no controller, as a sentence; "" when it does.
        journal: identity of the one journal that it obeys; "": none yet.
        fenced: why it refused the last wishes: "journal" (another one) or "epoch"; "" when it did
            not.
    """

    mode: str
    epoch: int
    gpus: tuple[GpuControl, ...] = ()
    trouble: str = ""
    journal: str = ""
    fenced: str = ""

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "mode": self.mode,
            "journal": self.journal,
            "epoch": self.epoch,
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "trouble": self.trouble,
            "fenced": self.fenced,
        }

    @classmethod
    def from_json(cls, data: object) -> "Applied":
        """Decode a JSON object.

        Raises:
            InputInvalid: some part is malformed.
        """
        fields = _object(data, "actuator's answer")
        gpus, trouble = fields.get("gpus", []), fields.get("trouble", "")
        if not isinstance(gpus, list) or not isinstance(trouble, str):
            raise InputInvalid("actuator's answer: gpus must be a list and trouble text")
        fenced = fields.get("fenced", "")
        if fenced not in ("", *FENCES):
            raise InputInvalid(f"actuator's answer: fenced must be one of {', '.join(FENCES)}")
        return cls(
            mode=_text(fields, "mode"),
            # An old actuator may hold a number from before epochs had a range.
            epoch=min(max(0, _whole(fields, "epoch") or 0), HIGHEST_EPOCH),
            gpus=tuple(GpuControl.from_json(each) for each in gpus),
            trouble=trouble[:500],
            journal=read_identity(fields.get("journal", "")),
            fenced=fenced,
        )


FAULTS = ("foreign", "restore")
"""Values of `GpuControl.fault`: someone else sets the GPU's clock or limit; what is ours could not
be taken back."""

FENCES = ("journal", "epoch")
"""Values of `Applied.fenced`: the wishes came from another journal, or with an epoch out of
range."""

_IDENTITY = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def read_identity(value: object) -> str:
    """Check a journal's identity; "" is none.

    Raises:
        InputInvalid: it is not a UUID in lower case.
    """
    if not isinstance(value, str) or (value and not _IDENTITY.fullmatch(value)):
        raise InputInvalid(f"journal must be a UUID in lower case, got {value!r}"[:300])
    return value


def read_epoch(value: object) -> int:
    """Check an epoch.

    Raises:
        InputInvalid: it is not an integer in [0, 2^31 - 1].
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= HIGHEST_EPOCH:
        raise InputInvalid(
            f"epoch must be a whole number from 0 to {HIGHEST_EPOCH}, got {value!r}"[:300]
        )
    return value


def _object(data: object, what: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InputInvalid(f"{what}: expected a JSON object, got {type(data).__name__}")
    return data


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InputInvalid(
            f"{key} must be 1 to 200 letters, digits, or any of _ . : / @ + -, got {value!r}"[:300]
        )
    return value


_NAME = re.compile("[A-Za-z0-9_.:/@+-]{1,200}")
"""Names of GPUs, holders and nodes: safe to log, and short enough for 1,024 wishes in one
record."""


def _whole(fields: Mapping[str, Any], key: str) -> int | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputInvalid(f"{key} must be a whole number, got {value!r}"[:300])
    return value


def _number(fields: Mapping[str, Any], key: str) -> float | None:
    value = fields.get(key)
    if value is None:
        return None
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputInvalid(f"{key} must be a number, got {value!r}"[:300])
    return number


def _moment(fields: Mapping[str, Any], key: str) -> datetime | None:
    value = fields.get(key)
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        # A time without an equivalent in UTC (the last hours of year 9999, west of it) is refused.
        return moment.astimezone(UTC) if moment.tzinfo else moment
    except (TypeError, ValueError, OverflowError):
        raise InputInvalid(f"{key} must be a time, got {value!r}"[:300]) from None
