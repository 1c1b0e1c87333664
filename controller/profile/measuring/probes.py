"""What the probe's loss did at a switch, from what the job reported. Pure."""

import math
from collections.abc import Mapping
from sys import float_info
from typing import Any

from wattmesh.reconfig.catalogue import ProbeEvidence


def probe_evidence(told: Mapping[str, Any]) -> ProbeEvidence | None:
    """Give how the probe moved at a switch; None where the job reported none, or no numbers."""
    names = ("probe_before", "probe_after", "probe_allowed")
    if not all(_is_finite(told.get(name)) for name in names):
        return None
    before, after, allowed = (float(told[name]) for name in names)
    measured = _is_finite(told.get("probe_noise"))
    return ProbeEvidence(
        moved=abs(after - before) / max(abs(before), float_info.min),
        allowed=allowed,
        noise=float(told["probe_noise"]) if measured else None,
        orders=int(told.get("probe_orders", 0)) if measured else 0,
        computed_in=str(told.get("computed_in", "")) if measured else "",
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
