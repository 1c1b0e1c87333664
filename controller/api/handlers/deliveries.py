"""Check what a node's agent delivers: types, ranges, and amounts that a meter can have read. Pure.

Invariant: amounts that pass are physically possible for devices of one node, in power and in time;
so sums over them fit into 64 bits, and splitting them over our slots takes a bounded time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any

from wattmesh.controller.journal.nodes.node_facts import (
    STRANGE,
    Delivered,
    sound_applied,
    stated_fields,
)
from wattmesh.errors import InputInvalid
from wattmesh.reconfig import ranges
from wattmesh.telemetry.energy.delivery import EnergyBatch, Report
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow, SlotGrid

AHEAD = timedelta(days=1)
"""A node's clock may be at most this far ahead of ours."""

LONGEST_ROW = timedelta(days=400)
SHORTEST_MS = 1000

SLACK_MS = 60_000
"""A correction of unobserved time may exceed twice the slot's length by at most this."""

MOST_PARTS = 50_000
"""Most slots of ours that the rows of one delivery may cover, in total."""

_TEXTS = {"gpu_uuid": ranges.METER, "incarnation": ranges.TOKEN, "quality": ranges.QUALITY}
_COUNTS = tuple(each.name for each in fields(CounterBaseline) if each.type in ("int", int))


def read_delivery(body: Mapping[str, Any], now: datetime, grid: SlotGrid) -> Report:
    """Read a delivery.

    Args:
        body: what was sent.
        now: our wall clock.
        grid: our slots.

    Raises:
        InputInvalid: a part of it is impossible or malformed; the sentence names it.
    """
    delivered = Delivered.from_json(body)
    for name, device in delivered.devices.items():
        _not_ahead(datetime.fromisoformat(device.at), now, f"devices.{name}.at")
    if len(set(delivered.missing)) < len(delivered.missing):
        raise InputInvalid("missing names a device twice; send each once")
    batch = None if delivered.batch is None else EnergyBatch.from_json(delivered.batch)
    if batch is not None:
        _check_batch(batch, now, grid)
    return Report(
        batch=batch,
        fresh=delivered.fresh,
        devices={name: stated_fields(device) for name, device in delivered.devices.items()},
        missing=delivered.missing,
        facts=_facts(delivered),
    )


def _facts(delivered: Delivered) -> dict[str, Any]:
    """Give a node's other facts; an actuator whose report is not understood counts as none."""
    facts = stated_fields(delivered.facts)
    try:
        facts["applied"] = sound_applied(delivered.facts.applied)
    except InputInvalid as error:
        facts["applied"] = None
        facts[STRANGE] = f"its actuator's answer cannot be read ({error})"
    return facts


def _check_batch(batch: EnergyBatch, now: datetime, grid: SlotGrid) -> None:
    """Check everything in a batch that its types do not."""
    ranges.NODE.read(batch.node, "batch.node")
    ranges.TOKEN.read(batch.boot_id, "batch.boot_id")
    _not_ahead(batch.at, now, "batch.at")
    parts = 0.0
    for row in batch.rows:
        _check_row(row, now)
        parts += 1 + (row.slot_end - row.slot_start).total_seconds() / grid.interval_s
    if parts > MOST_PARTS:
        raise InputInvalid(
            f"the rows of the batch lie over some {parts:.0f} slots; send at most {MOST_PARTS} "
            "slots at once"
        )
    _check_baselines(batch.baselines, now)


def _check_row(row: EnergyRow, now: datetime) -> None:
    """Check that a meter can have read this row."""
    where = f"row of {ranges.shown(row.gpu_uuid)} at {row.slot_start}"
    for name, word in _TEXTS.items():
        word.read(getattr(row, name), f"{where}, {name}")
    for name in ("run", "source"):
        ranges.PRINTABLE.read(getattr(row, name), f"{where}, {name}")
    _not_ahead(row.slot_start, now, where)
    length = row.slot_end - row.slot_start
    if length > LONGEST_ROW or row.slot_start.year < ranges.FIRST_YEAR:
        raise InputInvalid(
            f"{where}: it is of {ranges.FIRST_YEAR} or before, or over 400 days long"
        )
    length_ms = max(SHORTEST_MS, length // timedelta(milliseconds=1))
    dark_ms = 2 * length_ms + SLACK_MS
    for name, most in (
        ("energy_mj", ranges.HIGHEST_W * length_ms),
        ("unobserved_ms", dark_ms),
        ("upper_mj", ranges.HIGHEST_W * dark_ms),
    ):
        value = getattr(row, name)
        if value is not None and abs(value) > most:
            raise InputInvalid(
                f"{where}: {name} {ranges.shown(value)} is more than {ranges.HIGHEST_W} W, or more "
                f"time, than its {length_ms / 1000:.0f} s can have ({most})"
            )


def _check_baselines(baselines: Iterable[CounterBaseline], now: datetime) -> None:
    """Check the counters that a batch ends with: one for each device."""
    seen: set[str] = set()
    for each in baselines:
        where = f"baseline of {ranges.shown(each.gpu_uuid)}"
        ranges.METER.read(each.gpu_uuid, where)
        ranges.TOKEN.read(each.boot_id, f"{where}, boot_id")
        ranges.PRINTABLE.read(each.source, f"{where}, source")
        _not_ahead(each.at, now, where)
        if each.at.year < ranges.FIRST_YEAR or abs(each.monotonic_s) > 1e10:
            raise InputInvalid(f"{where}: its time cannot be right")
        if any(getattr(each, name) > ranges.MOST_COUNTED for name in _COUNTS):
            raise InputInvalid(f"{where}: a counter is higher than any counter gets")
        if each.gpu_uuid in seen:
            raise InputInvalid(f"{where}: it is named twice; send each device once")
        seen.add(each.gpu_uuid)


def _not_ahead(at: datetime, now: datetime, where: str) -> None:
    """Refuse a time more than `AHEAD` in the future."""
    if at > now + AHEAD:
        raise InputInvalid(
            f"{where}: {at.isoformat()} is more than a day ahead of {now.isoformat()}, the "
            "daemon's time; see that the clocks of both machines are right"
        )
