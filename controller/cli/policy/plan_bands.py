"""Which intensities each point of a plan is for: from one mu to the next higher. Pure.

Invariant: bands come from the plan's own price; a point that no mu names has no band.
"""

from collections.abc import Mapping
from typing import Any

from wattmesh.controller.cli import formats


def band(plan: Mapping[str, Any], point: str) -> tuple[float | None, float | None]:
    """Give the intensities, low and high, that a point is for; None: no limit, or not known.

    Args:
        plan: of `GET /v1/runs/{run}/plan`.
        point: an id, or "" for asleep.
    """
    low = next((each["g_per_kwh"] for each in plan["mu"] if each["slower"] == point), None)
    high = next((each["g_per_kwh"] for each in plan["mu"] if each["faster"] == point), None)
    return low, high


def band_words(plan: Mapping[str, Any], point: str) -> str:
    """Say which intensities a point is for; "" where the plan's price does not tell."""
    low, high = band(plan, point)
    if low is not None and high is not None:
        return f"{formats.intensity(low)} to {formats.intensity(high)} g/kWh"
    if low is not None:
        return f"above {formats.intensity(low)} g/kWh"
    return "" if high is None else f"below {formats.intensity(high)} g/kWh"


def layout_words(step: Mapping[str, Any]) -> str:
    """Say what a step runs at: its layout and clock, or that it sleeps."""
    if not step["point"]:
        return "asleep"
    clock = f" @{step['clock_mhz']} MHz" if step["clock_mhz"] is not None else ""
    return f"{step['layout']}{clock}"
