"""What a policy is asked: a run between two points, its grid and its settings."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.builders import carbon
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import (
    CarbonView,
    IntensitySlot,
    Mode,
    Observation,
    PolicySettings,
    RunView,
)
from wattmesh.policies.speed import MeasuredSpeed
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint
from wattmesh.reconfig.layout import Layout

NOW = datetime(2026, 11, 20, 14, tzinfo=UTC)
HOUR = 3600.0


# Four GPUs, or two with the other two parked: 800 + 2 x 70 W for 0.6 of the speed.
A = point("A", 4, 1000.0, 1600.0)
B = point("B", 2, 600.0, 800.0)
PAIR = catalogue(A, B)


def measured(at: OperatingPoint, share: float = 1.0, steps: int = 10_000) -> MeasuredSpeed:
    """So many steps at a point, at a share of its catalogue speed."""
    return MeasuredSpeed(point=at.id, tokens_per_s=share * at.tokens_per_s, steps=steps)


def slots(
    values: Sequence[float], *, seconds: float = HOUR, start: datetime = NOW
) -> tuple[IntensitySlot, ...]:
    """Slots from NOW on, an hour each."""
    return carbon.slots(values, start, timedelta(seconds=seconds))


def run(**changes: Any) -> RunView:
    """A run at A, at step 1000, with 10 h of work at A left and 14 h until its deadline.

    Its speed there was measured to be the catalogue's.
    """
    known: Catalogue | None = changes.get("catalogue", PAIR)
    at: OperatingPoint | None = changes.get("current", known.points[0] if known else None)
    facts: dict[str, Any] = {
        "run": "r-1",
        "name": "llama",
        "attempt": 1,
        "live": True,
        "last_seen_s": 1.0,
        "step": 1000,
        "tokens": 1_000_000,
        "tokens_total": 37_000_000,
        "layout": at.layout if at else Layout(dp_shard=3),
        "world_size": 4,
        "gpus_held": 4,
        "boundary_every": 100,
        "started_at": NOW - timedelta(hours=1),
        "catalogue": known,
        "current": at,
        "deadline": NOW + timedelta(hours=14),
        "capabilities": ("in_place", "parking"),
        "speeds": (measured(at),) if at else (),
    }
    facts.update(changes)
    return RunView(**facts)


def observation(*runs: RunView, **changes: Any) -> Observation:
    """A cycle at NOW on a grid that is dirty for 7 h and clean for 7 h after."""
    view: Sequence[IntensitySlot] = changes.pop("grid", slots([300.0] * 7 + [100.0] * 7))
    facts: dict[str, Any] = {
        "now": NOW,
        "mode": Mode.ACT,
        "runs": runs or (run(),),
        "carbon": CarbonView(signal="neso:GB:average:direct:CO2", slots=tuple(view), age_s=60.0),
        "policy": PolicySettings(dwell_s=1800.0),
        "cycle_s": 5.0,
    }
    facts.update(changes)
    return Observation(**facts)
