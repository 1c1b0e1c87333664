"""Rows that an older version stored, made fit to be read. Pure.

The API refuses such values today (`wattmesh.reconfig.ranges`), but those already in a journal must
break neither the cycle nor a screen. Invariant: a value that is no finite number becomes None, a
number out of range becomes the nearest one within, and text has no terminal control characters.
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
    """Return a run's columns as values that can be computed with and shown."""
    read = {name: _sound(value) for name, value in values.items()}
    for name, most in _MOST.items():
        read[name] = min(max(read[name], 0), most)
    read["pause_share"] = min(max(read["pause_share"] or 0.0, 0.0), 1.0)
    return read


def _sound(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    return clean(value) if isinstance(value, str) else value
