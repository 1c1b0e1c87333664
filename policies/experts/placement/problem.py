"""What a placement is made from: GPUs, counts of routing, what a crossing costs, who may be late.

Shape suffixes: L layers, X experts of a layer, S slots of a layer (all GPUs' together), G GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.layer_energy import ExpertGpu

Array: TypeAlias = NDArray[np.float64]
Gpus: TypeAlias = NDArray[np.int64]

TOLERANCE = 0.10
"""A GPU may take so much longer than it would with time in perfect balance."""


MOST_COUNT = 1e15
"""Sums of counts stay exact."""

MOST_CROSSING_J = 1e6

ROUNDED = 1e-9
"""Counts may have been scaled."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counts:
    """What tokens chose, layer by layer, as counts.

    Attributes:
        loads_LX: rows of each expert.
        together_LXX: tokens that used both experts of a layer; symmetric, 0 on the diagonal.
        onward_LXX: (L - 1, X, X): tokens that used the first in a layer and the second in the next.
            Moves something only where a token stays at its expert's GPU until the next layer
            (ExFlow); give zeros where every token returns to its own GPU first.
    """

    loads_LX: Array
    together_LXX: Array
    onward_LXX: Array

    def __post_init__(self) -> None:
        """Refuse counts that do not fit together.

        Raises:
            InputInvalid: a shape, a sign or a number is wrong.
        """
        layers, experts = _shape(self.loads_LX)
        for name, value, shape in (
            ("loads", self.loads_LX, (layers, experts)),
            ("together", self.together_LXX, (layers, experts, experts)),
            ("onward", self.onward_LXX, (max(0, layers - 1), experts, experts)),
        ):
            if value.shape != shape:
                raise InputInvalid(f"{name} has the shape {value.shape}, not {shape}")
            if not ((value >= 0) & (value <= MOST_COUNT)).all():
                raise InputInvalid(
                    f"{name} has a count that is negative, not finite or above {MOST_COUNT:g}"
                )
        if not np.array_equal(self.together_LXX, self.together_LXX.transpose(0, 2, 1)):
            raise InputInvalid("together is not symmetric: a pair has two different counts")
        first, second = self.loads_LX[:, :, None], self.loads_LX[:, None, :]
        _refuse_more("together", self.together_LXX, np.minimum(first, second))
        second = self.loads_LX[1:, None, :]
        _refuse_more("onward", self.onward_LXX, np.minimum(first[:-1], second))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementProblem:
    """Which experts are to be placed where.

    Attributes:
        slots: experts of one layer that each GPU holds at most.
        crossing_j: joules that a token costs for each pair of its experts on different nodes: what
            the network draws for its row, and what the group idles meanwhile.
        near_crossing_j: the same between two GPUs of one node.
        tolerance: see `TOLERANCE`.
    """

    counts: Counts
    gpus: tuple[ExpertGpu, ...]
    slots: tuple[int, ...]
    crossing_j: float
    near_crossing_j: float = 0.0
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        """Refuse what cannot be placed.

        Raises:
            InputInvalid: the experts do not fit, or a number is out of its range.
        """
        experts = self.counts.loads_LX.shape[1]
        if len(self.slots) != len(self.gpus) or not self.gpus:
            raise InputInvalid(
                f"{len(self.slots)} slot counts were given for {len(self.gpus)} GPUs"
            )
        if any(each < 0 for each in self.slots) or sum(self.slots) < experts:
            raise InputInvalid(
                f"{experts} experts of a layer do not fit into {sum(self.slots)} slots on "
                f"{len(self.gpus)} GPUs"
            )
        if not 0 <= self.near_crossing_j <= self.crossing_j <= MOST_CROSSING_J:
            raise InputInvalid(
                f"a crossing costs {self.crossing_j} J and one within a node "
                f"{self.near_crossing_j} J; both must be from 0 to {MOST_CROSSING_J:g}, the second "
                "the smaller"
            )
        if not 0 <= self.tolerance <= 10:
            raise InputInvalid(f"the tolerance is {self.tolerance}, not between 0 and 10")

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.counts.loads_LX)

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return len(self.counts.loads_LX[0])

    def distance_GG(self) -> Array:
        """Joules of a token whose pair of experts lies on two GPUs."""
        nodes = np.array([gpu.node for gpu in self.gpus])
        far_GG = np.where(nodes[:, None] == nodes[None, :], self.near_crossing_j, self.crossing_j)
        return far_GG * (1.0 - np.eye(len(self.gpus)))

    def joules_G(self) -> Array:
        """Joules of a row above idle, by GPU."""
        return np.array([gpu.joules_per_token for gpu in self.gpus])

    def speeds_G(self) -> Array:
        """Rows per second, by GPU."""
        return np.array([gpu.tokens_per_s for gpu in self.gpus])

    @property
    def idle_w(self) -> float:
        """Watts of all GPUs together while they wait for the slowest."""
        return math.fsum(gpu.idle_w for gpu in self.gpus)

    def fair_seconds_L(self) -> Array:
        """Seconds of each layer with time in perfect balance."""
        seconds_L: Array = self.counts.loads_LX.sum(axis=1) / self.speeds_G().sum()
        return seconds_L


def contiguous(problem: PlacementProblem) -> Gpus:
    """Place experts by number, (L, X): the first GPU has the first ones, and so on.

    As a launcher does it: shares as equal as slots allow, whatever the GPUs are.
    """
    left, count = problem.experts, len(problem.gpus)
    shares = [0] * count
    while left:
        for at in range(count):
            if left and shares[at] < problem.slots[at]:
                shares[at] += 1
                left -= 1
    return np.tile(np.repeat(np.arange(count), shares), (problem.layers, 1))


def checked(problem: PlacementProblem, gpu_LX: NDArray[Any] | Sequence[Sequence[int]]) -> Gpus:
    """Give a placement as an array, if it is one of this problem.

    Raises:
        InputInvalid: a GPU is none of these, or holds more than fits.
    """
    found = np.asarray(gpu_LX)
    if found.shape != (problem.layers, problem.experts) or found.dtype.kind not in "iu":
        raise InputInvalid(
            f"a placement has the shape {found.shape} of {found.dtype}, not whole numbers "
            f"{(problem.layers, problem.experts)}"
        )
    if found.min() < 0 or found.max() >= len(problem.gpus):
        raise InputInvalid(f"a placement names a GPU that is none of the {len(problem.gpus)}")
    for layer, row in enumerate(found):
        held = np.bincount(row, minlength=len(problem.gpus))
        over = np.flatnonzero(held > np.array(problem.slots))
        if over.size:
            at = int(over[0])
            raise InputInvalid(
                f"layer {layer}: GPU {problem.gpus[at].name!r:.80} would hold {held[at]} experts, "
                f"{problem.slots[at]} fit"
            )
    return found.astype(np.int64)


def _refuse_more(name: str, tokens_LXX: Array, most_LXX: Array) -> None:
    """Refuse pairs with more tokens than one of both experts had."""
    over = np.argwhere(tokens_LXX > most_LXX * (1 + ROUNDED))
    if len(over):
        layer, a, b = (int(each) for each in over[0])
        raise InputInvalid(
            f"{name} has {tokens_LXX[layer, a, b]:g} tokens of the experts {a} and {b} in layer "
            f"{layer}, and one of both has only {most_LXX[layer, a, b]:g} rows"
        )


def _shape(loads_LX: Array) -> tuple[int, int]:
    if loads_LX.ndim != 2 or not loads_LX.size:
        raise InputInvalid(f"loads has the shape {loads_LX.shape}, not (layers, experts)")
    layers, experts = loads_LX.shape
    return layers, experts
