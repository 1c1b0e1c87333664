"""Modelled energy of one expert layer of a synchronous group of GPUs.

All GPUs wait for the slowest, so a layer costs what its tokens cost above idle, and the idle power
of the whole group for as long as the slowest takes (docs/experts.md). `sum(e_g load_g)` alone is
no energy of anything and is never given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wattmesh.errors import InputInvalid

RANGES = {"busy_w": (1.0, 1e6), "tokens_per_s": (1e-3, 1e15)}
"""What a GPU can be, with room on both sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGpu:
    """One GPU of an expert-parallel group.

    Attributes:
        node: GPUs of one node exchange rows over its own links.
        busy_w, idle_w: drawn while it computes experts, and while it waits.
        tokens_per_s: rows through one of its experts.
    """

    name: str
    node: str
    busy_w: float
    idle_w: float
    tokens_per_s: float

    def __post_init__(self) -> None:
        """Refuse what no GPU can be.

        Raises:
            InputInvalid: a number is out of its range, or idle power exceeds busy power.
        """
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputInvalid(
                    f"GPU {self.name!r:.80}: {name} is {value:g}, not from {low:g} to {high:g}"
                )
        if not 0 <= self.idle_w <= self.busy_w:
            raise InputInvalid(
                f"GPU {self.name!r:.80}: idle_w is {self.idle_w}, not between 0 and busy_w = "
                f"{self.busy_w}"
            )

    @property
    def joules_per_token(self) -> float:
        """Joules of one row above idle."""
        return (self.busy_w - self.idle_w) / self.tokens_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEnergy:
    """What one layer takes.

    Attributes:
        energy_j: of its rows, and `idle_w` of all GPUs for `layer_s`.
        load_share_max: of the slowest GPU, over what all take when time is balanced; 1 is best.
    """

    layer_s: float
    energy_j: float
    load_share_max: float


def layer_energy(gpus: Sequence[ExpertGpu], loads: Sequence[float]) -> LayerEnergy:
    """Model one layer. `loads`: rows that each GPU's experts get."""
    seconds = [load / gpu.tokens_per_s for gpu, load in zip(gpus, loads, strict=True)]
    layer_s = max(seconds, default=0.0)
    dynamic_j = math.fsum(
        load * gpu.joules_per_token for gpu, load in zip(gpus, loads, strict=True)
    )
    balanced_s = balanced_seconds(gpus, math.fsum(loads))
    return LayerEnergy(
        layer_s=layer_s,
        energy_j=dynamic_j + layer_s * math.fsum(gpu.idle_w for gpu in gpus),
        load_share_max=layer_s / balanced_s if balanced_s > 0 else 1.0,
    )


def balanced_seconds(gpus: Sequence[ExpertGpu], rows: float) -> float:
    """Give the seconds of a layer in which all GPUs end together."""
    speed = math.fsum(gpu.tokens_per_s for gpu in gpus)
    return rows / speed if speed > 0 else 0.0
