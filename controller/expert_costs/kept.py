"""What is kept of a run's learning over a restart of the daemon, as one text. Pure.

Invariant: what is read is what was written, every float to its last bit, or nothing: a text that is
damaged, or of another version's form, is refused with a sentence, and the daemon learns anew.
"""

import hashlib
import json
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from wattmesh.controller.expert_costs.strength import JudgedPairs
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.costs import OfflineSweep
from wattmesh.policies.experts.live_spans import RunCosts, RunCount
from wattmesh.policies.experts.published import Telling
from wattmesh.policies.experts.quality import PairedEvidence
from wattmesh.policies.experts.strength import StrengthStep

FORM = 1
"""Of the text. Another one is not read: what fields meant then, nobody checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLearning:
    """What a daemon held of one run.

    Attributes:
        costs, telling: what it had learned and told.
        quality, before, step: of the run's strength: what its pairs said, the count before, and
            what was decided last.
        launch, seq: of the newest count that is in it.
        held_at_s: wall time at which it last knew that its costs hold.
        sweeps: by GPU, those of the settings then.
        judged: the pairs that `quality` has. `dropped`: those of the launch that were dropped.
        stays: why experts that lie elsewhere keep the lean that they had, as was said last.
    """

    costs: RunCosts
    telling: Telling
    quality: PairedEvidence
    before: RunCount | None = None
    step: StrengthStep | None = None
    launch: str = ""
    seq: int = 0
    held_at_s: float = 0.0
    sweeps: Mapping[str, OfflineSweep] = field(default_factory=dict)
    judged: JudgedPairs = field(default_factory=JudgedPairs)
    dropped: int = 0
    stays: str = ""


def kept_text(kept: KeptLearning) -> str:
    """Write it, with a checksum.

    Raises:
        InputInvalid: a number in it is none; such learning is not kept.
    """
    try:
        state = _canonical(asdict(kept))
    except ValueError as error:
        raise InputInvalid(f"what was learned is not kept: {error}") from error
    return _canonical({"form": FORM, "sha256": _digest(state), "state": json.loads(state)})


def read_kept(text: str) -> KeptLearning:
    """Read it again.

    Raises:
        InputInvalid: it is damaged, or of another form; the sentence says which.
    """
    try:
        told = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise InputInvalid("what was kept of it is damaged: it is no JSON") from None
    if not isinstance(told, dict) or "form" not in told:
        raise InputInvalid("what was kept of it is damaged: it does not say its form")
    if told["form"] != FORM:
        raise InputInvalid(
            f"what was kept of it is of form {str(told['form'])[:40]}, and this wattmesh reads "
            f"form {FORM}"
        )
    state = told.get("state")
    if told.get("sha256") != _digest(_canonical(state)):
        raise InputInvalid("what was kept of it is damaged: its content is not that of its sum")
    try:
        found: KeptLearning = _read(KeptLearning, state)
    except (TypeError, KeyError, ValueError) as error:
        raise InputInvalid(f"what was kept of it is malformed: {error}") from None
    return found


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _no_number(word: str) -> float:
    raise ValueError(word)


@cache
def _types(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass with their types."""
    hints, own = get_type_hints(kind), cast(Any, kind)
    return {each.name: hints[each.name] for each in fields(own)}


def _read_fields(kind: Any, value: Any) -> Any:
    # What an older wattmesh did not keep yet is what a fresh one begins with.
    kept = {name: _read(each, value[name]) for name, each in _types(kind).items() if name in value}
    return kind(**kept)


def _read(kind: Any, value: Any) -> Any:
    """Read a value of a type: a dataclass, a tuple, a mapping, one of several, or a plain one.

    Raises:
        TypeError, KeyError: it is of another type, or a field is missing.
    """
    if is_dataclass(kind):
        return _read_fields(kind, value)
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _read(parts[0], value)
    if origin is tuple:
        return _read_tuple(parts, value)
    if origin is Mapping or origin is dict or kind is Mapping:
        return {_read(parts[0], key): _read(parts[1], each) for key, each in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value


def _read_tuple(parts: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no list")
    if parts[-1] is Ellipsis:
        return tuple(_read(parts[0], each) for each in value)
    return tuple(_read(part, each) for part, each in zip(parts, value, strict=True))
