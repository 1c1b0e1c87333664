"""The requests on the actuator's socket: one JSON object per line, each way. Pure.

Invariant: a request with any unknown or malformed part, even an unknown key, is refused whole.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.desired import MOST_WISHES, Desired, Wish, read_epoch, read_identity

VERSION = 1
LONGEST_LINE = 1 << 20
"""Bytes; 1,024 wishes take about a quarter of it."""

MOST_CLAIMED = 4096


class Op(StrEnum):
    """What can be asked of the actuator.

    APPLY: replace every wish for this node, and say which processes belong to each holder.
    STATE: report what is in force. RESTORE: restore every GPU, except under obligations unless
    `obligations` is true, and then ignore wishes until RESUME or the next start. RESUME: obey
    again, and forget that foreign writers were found. OBEY: from now on obey only `journal`, from
    `epoch` on. LOCK: replace the clock locks of the user who asks, on GPUs that compute for that
    user alone; no wishes give them back. LOOK: read the GPUs now, not at the next heartbeat, and
    give back what a job has left that has just ended; then report as STATE does.
    """

    APPLY = "apply"
    STATE = "state"
    RESTORE = "restore"
    RESUME = "resume"
    OBEY = "obey"
    LOCK = "lock"
    LOOK = "look"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessClaim:
    """Which compute processes belong to a holder.

    Attributes:
        uids: their users.
        pids: only these processes of these users; empty: all of them.
    """

    uids: frozenset[int] = frozenset()
    pids: frozenset[int] = frozenset()

    def owns(self, pid: int, uid: int | None) -> bool:
        """Tell whether a process is the holder's; one of an unknown user is not."""
        return uid in self.uids and (not self.pids or pid in self.pids)

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {"uids": sorted(self.uids), "pids": sorted(self.pids)}

    @classmethod
    def from_json(cls, data: object) -> "ProcessClaim":
        """Decode a JSON object.

        Raises:
            InputInvalid: it is malformed.
        """
        fields = _object(data, "claim", {"uids", "pids"})
        return cls(uids=_numbers(fields, "uids"), pids=_numbers(fields, "pids"))


_KEYS: Mapping[Op, set[str]] = {
    Op.APPLY: {"desired", "claims"},
    Op.RESTORE: {"obligations"},
    Op.OBEY: {"journal", "epoch"},
    Op.LOCK: {"wishes"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActuatorRequest:
    """One request."""

    op: Op
    desired: Desired | None = None
    claims: Mapping[str, ProcessClaim] | None = None
    obligations: bool = False
    journal: str = ""
    epoch: int = 0
    wishes: tuple[Wish, ...] = ()


def write_request(request: ActuatorRequest) -> bytes:
    """Encode a request as one line."""
    body: dict[str, Any] = {"v": VERSION, "op": request.op.value}
    if request.desired is not None:
        body["desired"] = request.desired.to_json()
        body["claims"] = {name: each.to_json() for name, each in (request.claims or {}).items()}
    if request.obligations:
        body["obligations"] = True
    if request.op is Op.OBEY:
        body |= {"journal": request.journal, "epoch": request.epoch}
    if request.op is Op.LOCK:
        body["wishes"] = [each.to_json() for each in request.wishes]
    return line(body)


def read_request(data: bytes) -> ActuatorRequest:
    """Decode one line.

    Raises:
        InputInvalid: some part of it is unknown or malformed; none of it may be obeyed.
    """
    fields = _object(parse(data), "request", {"v", "op"}.union(*_KEYS.values()))
    if fields.get("v") != VERSION:
        raise InputInvalid(f"request: version {fields.get('v')!r} is not {VERSION}"[:200])
    op = fields.get("op")
    if not isinstance(op, str) or op not in set(Op):
        raise InputInvalid(f"request: op {op!r} is not one of {', '.join(Op)}"[:200])
    if extra := set(fields) - {"v", "op"} - _KEYS.get(Op(op), set()):
        raise InputInvalid(f"request: {op} has no {', '.join(sorted(extra))}")
    if op == Op.OBEY:
        journal, epoch = read_identity(fields.get("journal")), read_epoch(fields.get("epoch"))
        return ActuatorRequest(op=Op.OBEY, journal=journal, epoch=epoch)
    if op == Op.LOCK:
        return ActuatorRequest(op=Op.LOCK, wishes=_wishes(fields.get("wishes")))
    if op != Op.APPLY:
        obligations = fields.get("obligations", False)
        if not isinstance(obligations, bool):
            raise InputInvalid("request: obligations must be true or false")
        return ActuatorRequest(op=Op(op), obligations=obligations)
    claims = fields.get("claims")
    if not isinstance(claims, dict):
        raise InputInvalid("request: claims must be an object from holder to claim")
    return ActuatorRequest(
        op=Op.APPLY,
        desired=Desired.from_json(fields.get("desired")),
        claims={name: ProcessClaim.from_json(each) for name, each in claims.items()},
    )


def _wishes(data: object) -> tuple[Wish, ...]:
    if not isinstance(data, list) or len(data) > MOST_WISHES:
        raise InputInvalid(f"request: wishes must be a list of at most {MOST_WISHES}")
    found = tuple(Wish.from_json(each) for each in data)
    if len({each.gpu_uuid for each in found}) < len(found):
        raise InputInvalid("request: two wishes for one GPU; send one")
    return found


def line(body: Mapping[str, Any]) -> bytes:
    """Encode one JSON object as one line."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def parse(data: bytes) -> Any:
    """Decode the JSON of one line.

    Raises:
        InputInvalid: it is not JSON, nests too deep, or repeats a key.
    """
    try:
        return json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"not one line of JSON: {error}"[:200]) from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; two values for one key could let two readers obey different ones."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key!r} stands twice")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _object(data: object, what: str, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise InputInvalid(f"{what}: expected a JSON object, got {type(data).__name__}")
    if extra := set(data) - keys:
        raise InputInvalid(f"{what}: unknown keys {', '.join(sorted(extra))}"[:200])
    return data


def _numbers(fields: Mapping[str, Any], key: str) -> frozenset[int]:
    values = fields.get(key, [])
    whole = isinstance(values, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in values
    )
    if not whole or len(values) > MOST_CLAIMED:
        raise InputInvalid(f"claim: {key} must be at most {MOST_CLAIMED} whole numbers, 0 or more")
    return frozenset(values)
