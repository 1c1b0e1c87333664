"""Operating points and catalogues; every number is made up."""

from typing import Any

from wattmesh.reconfig.catalogue import (
    Catalogue,
    Equivalence,
    Evidence,
    OperatingPoint,
    Release,
    SwitchCost,
)
from wattmesh.reconfig.layout import Layout


def point(
    name: str, shape: int | Layout, tokens_per_s: float, power_w: float, **changes: Any
) -> OperatingPoint:
    """A validated point on a layout, or on so many data-parallel ranks."""
    layout = shape if isinstance(shape, Layout) else Layout(dp_shard=shape)
    facts: dict[str, Any] = {
        "layout": layout,
        "equivalence": Equivalence.NUMERICAL,
        "evidence": Evidence.VALIDATED,
    }
    facts.update(changes)
    return OperatingPoint(
        id=name, gpus=layout.world_size, tokens_per_s=tokens_per_s, power_w=power_w, **facts
    )


def catalogue(*points: OperatingPoint, **changes: Any) -> Catalogue:
    """A catalogue of parked GPUs at 70 W whose switches take 60 s; the first is the reference."""
    facts: dict[str, Any] = {
        "job": "job",
        "tokens_total": 1,
        "reference": points[0].id,
        "release": Release.PARKED,
        "idle_power_w_per_gpu": 70.0,
        "switch": SwitchCost(layout_s=60.0, layout_energy_j=20_000.0, source="measured"),
        "global_batch": 8,
        "seq_len": 125,
    }
    facts.update(changes)
    return Catalogue(points=points, **facts)
