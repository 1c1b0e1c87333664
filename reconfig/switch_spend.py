"""Reads what a switch in place spent from the evidence that the run reported of it. Pure.

Invariant: what is missing, out of range or contradicts itself makes no spend; nothing unknown
becomes a zero.
"""

import math
from collections.abc import Mapping
from typing import Any

from wattmesh.reconfig.catalogue import SwitchSpend
from wattmesh.reconfig.switch import AT_PACE

STATE_BYTES = "state_bytes"
"""Key in the evidence of a switch: bytes of the logical state that was loaded."""

SETTLE = "settle_s"
"""Key of the seconds, within `save_s`, until the checkpoint of the switch before was durable. They
are no switch's own: the next one meets them only if it follows at once."""

LEAVE, GROUPS = "leave_s", "groups_s"
"""Keys of the seconds that ending the old process groups and beginning the new one took."""

_MOST_BYTES = 1 << 50
_MOST_S = 1e6
_ROUNDING_S = 0.01
"""Every part is rounded, so that together they may exceed the whole by as much."""


def spend_of(
    evidence: Mapping[str, Any],
    origin: str,
    target: str,
    *,
    first_s: float | None = None,
    cold: bool = False,
) -> SwitchSpend | None:
    """Return what a switch spent; None where its evidence does not say it.

    Args:
        evidence: of its last state.
        origin: id of the point before.
        target: id of the point after.
        first_s: see `SwitchSpend`; None: as the evidence says, if it does.
        cold: see `SwitchSpend`.
    """
    size = evidence.get(STATE_BYTES)
    names = ("save_s", "teardown_s", LEAVE, GROUPS, "build_s", "load_s", "verify_s", "total_s")
    known = [seconds_in(evidence, name) for name in names]
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= _MOST_BYTES:
        return None
    if any(each is None for each in known):
        return None
    save_s, teardown_s, leave_s, groups_s, build_s, load_s, verify_s, total_s = (
        each or 0.0 for each in known
    )
    # The evidence counts the making of the groups as a part of `build_s`.
    agree_s = total_s - (save_s + teardown_s + leave_s + build_s + load_s + verify_s)
    settle_s = seconds_in(evidence, SETTLE) if SETTLE in evidence else 0.0
    if settle_s is None or settle_s > save_s + _ROUNDING_S:
        return None
    if agree_s < -_ROUNDING_S or groups_s > build_s + _ROUNDING_S:
        return None
    at_pace_s = seconds_in(evidence, AT_PACE)
    if first_s is None and at_pace_s is not None and at_pace_s >= total_s:
        first_s = at_pace_s - total_s
    return SwitchSpend(
        origin=origin,
        target=target,
        state_bytes=size,
        save_s=round(max(0.0, save_s - settle_s), 4),
        teardown_s=teardown_s,
        groups_s=round(leave_s + groups_s, 4),
        build_s=round(max(0.0, build_s - groups_s), 4),
        load_s=load_s,
        verify_s=verify_s,
        agree_s=round(max(0.0, agree_s), 4),
        first_s=None if first_s is None else round(first_s, 4),
        cold=cold,
    )


def seconds_in(evidence: Mapping[str, Any], name: str) -> float | None:
    """Return finite seconds in [0, 1e6]; None for anything else."""
    value = evidence.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0.0 <= value <= _MOST_S else None
