"""What an agent reports to the controller: increments of ledger rows, and its node's state. Pure.

Rows of an `EnergyBatch` are increments on what was delivered before: `energy_mj` None adds no
joules (unknown stays unknown); times and upper bounds may be negative, which takes them back.

Invariant: a batch is identified by (node, boot_id, seq) and never changes; the receiver remembers
the highest seq of each (node, boot_id) and ignores a batch that is not higher.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from wattmesh.errors import InputInvalid
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.readings import PowerReading

MOST_ROWS = 1_500
"""Rows of one batch: well below the API's limit of 1 MiB."""

MOST_DEVICES = 1_024
LONGEST_TEXT = 200
LARGEST = 1 << 62
"""Larger than any energy; the sum of two still fits in 64 bits."""

LINES = ("run", "idle", "unattributed", "idle_after_release", "profiling")

_LIVE = (
    "power_w",
    "clock_mhz",
    "power_limit_w",
    "highest_limit_w",
    "source",
    "quality",
    "component",
    "temperature_c",
    "utilization",
    "shared",
)
"""Fields of a reading that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyBatch:
    """Increments of rows since the batch before.

    Attributes:
        at: when it was closed; all of its energy was drawn before.
        baselines: counters up to which everything is booked, for devices whose rows are all
            delivered with this batch; an agent that lost its file resumes from them.
    """

    node: str
    boot_id: str
    seq: int
    at: datetime
    rows: tuple[EnergyRow, ...]
    baselines: tuple[CounterBaseline, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "node": self.node,
            "boot_id": self.boot_id,
            "seq": self.seq,
            "at": self.at.isoformat(),
            "rows": [_plain(row) for row in self.rows],
            "baselines": [_plain(each) for each in self.baselines],
        }

    @classmethod
    def from_json(cls, data: object) -> "EnergyBatch":
        """Decode a JSON object.

        Raises:
            InputInvalid: some part is missing, unknown or malformed.
        """
        values = _object(data, "batch")
        return cls(
            node=_text(values, "node", empty=False),
            boot_id=_text(values, "boot_id"),
            seq=_whole(values, "seq", lowest=0),
            at=_moment(values, "at"),
            rows=tuple(map(_row, _list(values, "rows", MOST_ROWS))),
            baselines=tuple(map(baseline, _list(values, "baselines", MOST_DEVICES))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One report of an agent.

    Attributes:
        batch: None when nothing has changed.
        fresh: the agent has lost its file and asks for its baselines.
        devices: by name, the newest reading of every device that answered lately; each has `at`.
        missing: known devices that do not answer.
        facts: the rest: version, the actuator's answer, troubles.
    """

    batch: EnergyBatch | None = None
    fresh: bool = False
    devices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Encode as a JSON object."""
        return {
            "batch": self.batch.to_json() if self.batch else None,
            "fresh": self.fresh,
            "devices": self.devices,
            "missing": list(self.missing),
            "facts": self.facts,
        }

    @classmethod
    def from_json(cls, data: object) -> "Report":
        """Decode a JSON object.

        Raises:
            InputInvalid: some part is missing, unknown or malformed.
        """
        values = _object(data, "delivery")
        devices = _object(values.get("devices", {}), "devices")
        if len(devices) > MOST_DEVICES:
            raise InputInvalid(f"devices: {len(devices)} are more than {MOST_DEVICES}")
        for name, facts in devices.items():
            _moment(_object(facts, f"devices.{name}"), "at")
        missing = _list(values, "missing", MOST_DEVICES)
        if not all(isinstance(each, str) for each in missing):
            raise InputInvalid("missing is not a list of names")
        batch = values.get("batch")
        return cls(
            batch=None if batch is None else EnergyBatch.from_json(batch),
            fresh=values.get("fresh") is True,
            devices=devices,
            missing=tuple(missing),
            facts=_object(values.get("facts", {}), "facts"),
        )


def live(reading: PowerReading) -> dict[str, Any]:
    """Return the fields of a reading that are reported; unknown ones are left out."""
    told = {name: getattr(reading, name) for name in _LIVE}
    known = {name: value for name, value in told.items() if value is not None and value != ""}
    return {"at": reading.at.isoformat()} | known


def baseline(data: object) -> CounterBaseline:
    """Decode a counter's baseline.

    Raises:
        InputInvalid: it is malformed.
    """
    values = _object(data, "baseline")
    seconds = values.get("monotonic_s")
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise InputInvalid(f"monotonic_s must be a number, got {seconds!r}"[:300])
    return CounterBaseline(
        gpu_uuid=_text(values, "gpu_uuid", empty=False),
        energy_mj=_whole(values, "energy_mj", lowest=-1),
        at=_moment(values, "at"),
        monotonic_s=float(seconds),
        boot_id=_text(values, "boot_id"),
        source=_text(values, "source"),
        booked_mj=_whole(values, "booked_mj", lowest=0),
        unobserved_ms=_whole(values, "unobserved_ms", lowest=0),
        recovered_ms=_whole(values, "recovered_ms", lowest=0),
        since_us=_whole(values, "since_us", lowest=0) if "since_us" in values else 0,
    )


_ROW = frozenset(each.name for each in fields(EnergyRow))


def _row(data: object) -> EnergyRow:
    values = _object(data, "row")
    if set(values) != _ROW:
        wrong = sorted(_ROW.symmetric_difference(values))
        raise InputInvalid(f"row: {', '.join(wrong)} missing or not known"[:300])
    start, end = _moment(values, "slot_start"), _moment(values, "slot_end")
    if start >= end:
        raise InputInvalid(f"row: slot_start {start} is not before slot_end {end}")
    line, run = _text(values, "line"), _text(values, "run")
    if line not in LINES or (line == "run" and not run):
        raise InputInvalid(f"row: line {line!r} of run {run!r} does not exist")
    energy = values["energy_mj"]
    return EnergyRow(
        gpu_uuid=_text(values, "gpu_uuid", empty=False),
        run=run,
        incarnation=_text(values, "incarnation"),
        slot_start=start,
        slot_end=end,
        energy_mj=None if energy is None else _whole(values, "energy_mj", lowest=0),
        unobserved_ms=_whole(values, "unobserved_ms"),
        upper_mj=_whole(values, "upper_mj"),
        source=_text(values, "source"),
        quality=_text(values, "quality"),
        line=line,
    )


def _plain(row: EnergyRow | CounterBaseline) -> dict[str, Any]:
    values = {each.name: getattr(row, each.name) for each in fields(row)}
    return {
        key: value.isoformat() if isinstance(value, datetime) else value
        for key, value in values.items()
    }


def _object(data: object, what: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InputInvalid(f"{what}: expected a JSON object, got {type(data).__name__}")
    return data


def _list(values: Mapping[str, Any], key: str, most: int) -> list[Any]:
    value = values.get(key, [])
    if not isinstance(value, list) or len(value) > most:
        raise InputInvalid(f"{key} is not a list of at most {most}")
    return value


def _text(values: Mapping[str, Any], key: str, *, empty: bool = True) -> str:
    value = values.get(key)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not (value or empty):
        raise InputInvalid(
            f"{key} must be text of at most {LONGEST_TEXT} letters, got {value!r}"[:300]
        )
    return value


def _whole(values: Mapping[str, Any], key: str, lowest: int = -LARGEST) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= LARGEST:
        raise InputInvalid(f"{key} must be a whole number from {lowest}, got {value!r}"[:300])
    return value


def _moment(values: Mapping[str, Any], key: str) -> datetime:
    try:
        moment = datetime.fromisoformat(values[key])
        # At the ends of the calendar the conversion to UTC overflows.
        utc = moment.astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputInvalid(f"{key} must be a time, got {values.get(key)!r}"[:300]) from None
    if moment.tzinfo is None:
        raise InputInvalid(f"{key} must be a time with its zone, got {values[key]!r}"[:300])
    return utc
