"""Settings of a cycle for tests."""

from typing import Any

from wattmesh.controller.cycle.cycle import CycleSettings
from wattmesh.policies.decision import Mode, PolicySettings


def acting(**changes: Any) -> CycleSettings:
    """Mode act, without a grid signal."""
    facts: dict[str, Any] = {
        "mode": Mode.ACT,
        "policy": PolicySettings(),
        "facts": None,
        "switch_timeout_s": 600.0,
        "cycle_s": 5.0,
    }
    return CycleSettings(**facts | changes)
