"""What a placement costs: joules of crossings and of the layers, and the seconds of each layer.

Shape suffixes: L layers, X experts, G GPUs.
"""

import math
from dataclasses import dataclass

import numpy as np

from wattmesh.policies.experts.layer_energy import layer_energy
from wattmesh.policies.experts.placement.problem import Array, Gpus, PlacementProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementCost:
    """What a placement comes to, over all layers and counted tokens.

    Attributes:
        crossings: pairs of a token's experts that lie on different nodes.
        near_crossings: the same, on different GPUs of one node.
        objective_j: what the search makes small: joules of crossings, and `layer_energy_j`.
        layer_energy_j: modelled energy of the experts, idle power of who waits included.
        layer_s: seconds of all layers. `worst_load`: the slowest GPU's time over a balanced one's.
    """

    crossings: float
    near_crossings: float
    objective_j: float
    layer_energy_j: float
    layer_s: float
    worst_load: float


def loads_on_gpus(problem: PlacementProblem, gpu_LX: Gpus) -> Array:
    """Rows of each GPU, (L, G)."""
    loads_LX, gpus = problem.counts.loads_LX, len(problem.gpus)
    return np.stack(
        [
            np.bincount(at_X, weights=loads_X, minlength=gpus)
            for at_X, loads_X in zip(gpu_LX, loads_LX, strict=True)
        ]
    )


def cost(problem: PlacementProblem, gpu_LX: Gpus) -> PlacementCost:
    """Add up what a placement costs."""
    counts, distance_GG = problem.counts, problem.distance_GG()
    nodes = np.unique([gpu.node for gpu in problem.gpus], return_inverse=True)[1]
    crossings = near = 0.0
    joules = []
    pairs = [(layer, layer, each / 2) for layer, each in enumerate(counts.together_LXX)]
    pairs += [(layer, layer + 1, each) for layer, each in enumerate(counts.onward_LXX)]
    for first, second, tokens_XX in pairs:
        a_X, b_X = gpu_LX[first][:, None], gpu_LX[second][None, :]
        far = nodes[a_X] != nodes[b_X]
        crossings += float(tokens_XX[far].sum())
        near += float(tokens_XX[~far & (a_X != b_X)].sum())
        joules.append(float((tokens_XX * distance_GG[a_X, b_X]).sum()))
    loads_LG = loads_on_gpus(problem, gpu_LX)
    layers = [layer_energy(problem.gpus, list(map(float, each))) for each in loads_LG]
    energy_j = math.fsum(each.energy_j for each in layers)
    return PlacementCost(
        crossings=crossings,
        near_crossings=near,
        objective_j=math.fsum(joules) + energy_j,
        layer_energy_j=energy_j,
        layer_s=math.fsum(each.layer_s for each in layers),
        worst_load=max(each.load_share_max for each in layers),
    )
