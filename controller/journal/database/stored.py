"""Rows that an older version stored, made fit to be read. Pure.

The door refuses such values today (`wattmesh.reconfig.ranges`); what is in a journal already must
break neither the cycle nor a screen. Invariant: what is no number is not known (None), a number out
of range is the nearest one within, and a text has no character that a terminal obeys.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from wattmesh.reconfig.ranges import INT4, MOST_RANKS, MOST_STEPS, MOST_TOKENS, NEVER, clean

_MOST = {
    "step": MOST_STEPS,
    "checkpoint_step": MOST_STEPS,
    "samples": MOST_TOKENS,
    "tokens": MOST_TOKENS,
    "tokens_total": MOST_TOKENS,
    "boundary_every": NEVER,
    "world_size": MOST_RANKS,
    "attempt": INT4,
    "pid": INT4,
}


def sound(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give the columns of a run as they may be reckoned with and shown."""
    read = {name: _sound(value) for name, value in values.items()}
    for name, most in _MOST.items():
        read[name] = min(max(read[name], 0), most)
    read["pause_share"] = min(max(read["pause_share"] or 0.0, 0.0), 1.0)
    return read


def _sound(value: Any) -> Any:
    """Give one value."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    return clean(value) if isinstance(value, str) else value
