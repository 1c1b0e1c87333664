"""What a node's agent may report besides ledger rows: each fact with its type and its range.

The API parses it strictly (`Delivered`) and refuses what does not fit. The agent itself, and
readers of what an older version stored, keep what fits (`fitting_fields`); the rest is unknown.
Invariant: a fact that passed here has the type and the range that all later code relies on.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.reconfig.wire.messages import Message, field_types, read_value
from wattmesh.telemetry.desired import HIGHEST_CLOCK_MHZ, Applied

CHECKED = "checked"
"""Key that we add to facts that were checked by today's rules."""

STRANGE = "strange"
"""Key that we add: what was left out of a delivery, and why, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts(Message):
    """The newest reading of one device.

    Attributes:
        at: when it was read, by the node's clock.
        power_limit_w: limit in force. `highest_limit_w`: highest limit that the board accepts.
        utilization: share of time at work. `shared`: why it cannot belong to one run alone.
        silent: it did not answer; the daemon sets this for a device that an agent calls missing.
    """

    at: ranges.At
    power_w: ranges.Watts | None = None
    power_limit_w: ranges.Watts | None = None
    highest_limit_w: ranges.Watts | None = None
    clock_mhz: ranges.Megahertz | None = None
    temperature_c: ranges.Celsius | None = None
    utilization: ranges.Portion | None = None
    source: ranges.Label = ""
    quality: ranges.Quality = ""
    component: ranges.Phase = ""
    shared: ranges.Label = ""
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBackFacts(Message):
    """Ledger rows that an agent keeps back because the daemon refused them.

    Attributes:
        why: the reason, in the daemon's words.
    """

    rows: ranges.Rows = 0
    energy_j: ranges.Joules = 0.0
    why: ranges.Trouble = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts(Message):
    """What else an agent reports of its node.

    Attributes:
        deliver_s: seconds between two deliveries.
        applied: the actuator's answer (`wattmesh.telemetry.desired.Applied`).
        troubles: what the agent cannot read, as sentences.
    """

    version: ranges.Label = ""
    boot_id: ranges.Token = ""
    deliver_s: ranges.DeliverEvery = 0.0
    applied: dict[str, Any] | None = None
    refused: KeptBackFacts | None = None
    troubles: Annotated[tuple[ranges.Trouble, ...], ranges.Many(64)] = ()


Devices = Annotated[dict[ranges.Meter, DeviceFacts], ranges.Many(ranges.MOST_METERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(Message):
    """One delivery of a node's agent.

    Attributes:
        batch: changes of ledger rows (`wattmesh.telemetry.energy.delivery.EnergyBatch`); None when
            there are none.
        fresh: the agent has no outbox yet, and asks for the counters that its energy is booked up
            to.
        devices: those that answered lately. `missing`: known devices that do not answer.
    """

    batch: dict[str, Any] | None = None
    fresh: bool = False
    devices: Devices = field(default_factory=dict)
    missing: Annotated[tuple[ranges.Meter, ...], ranges.Many(ranges.MOST_METERS)] = ()
    facts: NodeFacts = field(default_factory=NodeFacts)


def stated_fields(message: Message) -> dict[str, Any]:
    """Give the fields of a message that say something; None, "" and False are left out."""
    return {
        name: value
        for name, value in message.to_json().items()
        if value is not None and value != "" and value is not False
    }


def fitting_fields(kind: Any, data: object) -> dict[str, Any]:
    """Keep the fields of a JSON object that fit a message; the rest is unknown."""
    values = data if isinstance(data, Mapping) else {}
    kinds = field_types(kind)
    found: dict[str, Any] = {}
    for each in fields(kind):
        try:
            found[each.name] = read_value(kinds[each.name], values[each.name], each.name)
        except (KeyError, InputInvalid):
            continue
    return found


def sound_applied(data: object) -> dict[str, Any] | None:
    """Check an actuator's answer, so that its values can be relied on.

    Raises:
        InputInvalid: it is not understood, or a clock, a watt or an epoch is out of range.
    """
    if data is None:
        return None
    applied = Applied.from_json(data)
    seen: set[str] = set()
    if len(applied.gpus) > ranges.MOST_METERS:
        raise InputInvalid(f"the actuator's answer names {len(applied.gpus)} GPUs")
    for gpu in applied.gpus:
        where = f"the actuator's answer, {ranges.shown(gpu.gpu_uuid)}"
        ranges.METER.read(gpu.gpu_uuid, where)
        for watts in (gpu.cap_w, gpu.limit_w, gpu.floor_w):
            if watts is not None and not 0 <= watts <= ranges.HIGHEST_W:
                raise InputInvalid(f"{where}: {ranges.shown(watts)} W is out of range")
        if gpu.clock_mhz is not None and not 0 <= gpu.clock_mhz <= HIGHEST_CLOCK_MHZ:
            raise InputInvalid(f"{where}: {ranges.shown(gpu.clock_mhz)} MHz is out of range")
        if gpu.gpu_uuid in seen:
            raise InputInvalid(f"{where} is named twice")
        seen.add(gpu.gpu_uuid)
    if not 0 <= applied.epoch < 2**63:
        raise InputInvalid("the actuator's answer: its epoch is out of range")
    return applied.to_json()


def stored(devices: str, facts: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Read what the journal holds of a node; what an older version stored unchecked is checked."""
    told_of, said = json.loads(devices), json.loads(facts)
    if isinstance(said, dict) and said.get(CHECKED):
        return told_of, said
    sound: dict[str, Any] = fitting_fields(NodeFacts, said)
    try:
        sound["applied"] = sound_applied(sound.get("applied"))
    except InputInvalid:
        sound["applied"] = None
    if isinstance(sound.get("refused"), Message):
        sound["refused"] = sound["refused"].to_json()
    found = {
        name: fitting_fields(DeviceFacts, each)
        for name, each in (told_of.items() if isinstance(told_of, dict) else ())
        if ranges.METER.fits(name)
    }
    return {name: each for name, each in found.items() if "at" in each}, sound
