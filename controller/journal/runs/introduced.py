"""What a run's introduction puts into the tables: columns of its rows. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from wattmesh.controller.journal.database.values import to_text, to_us
from wattmesh.reconfig.wire.messages import Register


def first_mark(message: Register, now: datetime) -> dict[str, Any]:
    """Give the mark of what a run had trained before its first slot, where its baseline begins."""
    return {
        "run": message.run,
        "slot_start": 0,
        "slot_end": to_us(now),
        "tokens": message.tokens,
        "at": to_us(now),
    }


def registered_gpus(message: Register) -> dict[str, Any]:
    """Give the columns that say which GPUs a launch has; it may name them later than it begins."""
    return {
        "layout": to_text(message.layout.to_dict()),
        "ranks": to_text(message.ranks),
        "world_size": message.world_size,
        "gpus": to_text(message.gpus),
        "allocated": to_text(message.allocated),
        "capabilities": to_text(message.capabilities),
    }


def registered(message: Register, now: datetime) -> dict[str, Any]:
    """Give the columns that every register sets."""
    return {
        "name": message.name,
        "incarnation": message.incarnation,
        "attempt": message.attempt,
        "seq": 0,
        **registered_gpus(message),
        "step": message.step,
        "tokens": message.tokens,
        "tokens_total": message.tokens_total,
        "tokens_per_s": None,
        "boundary_every": message.boundary_every,
        "checkpoint_digest": message.checkpoint_digest,
        "phase": "registered",
        "trouble": "",
        "last_seen_at": to_us(now),
        "incarnation_at": to_us(now),
        "finished_at": None,
        "finish_reason": "",
        "host": message.host,
        "pid": message.pid,
        "scheduler_key": message.scheduler_key,
        "protocol": message.protocol,
        "progress_at": None,
        "pause_share": 0.0,
    }


def incarnation_row(
    message: Register, now: datetime, released: Sequence[str] = ()
) -> dict[str, Any]:
    """Give the row of an incarnation; `released`: GPUs that the run has given back by then."""
    return {
        "incarnation": message.incarnation,
        "run": message.run,
        "attempt": message.attempt,
        "started_at": to_us(now),
        "last_seen_at": to_us(now),
        "end_reason": "",
        "gpus": to_text(message.gpus),
        "allocated": to_text(message.allocated),
        "released": to_text(released),
    }
