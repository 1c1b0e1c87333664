"""Where a search begins: by load alone, each where its partners already are, or by chance.

Shape suffixes: S slots of a layer (experts first, then empty ones without load), G GPUs.
"""

import numpy as np

from wattmesh.policies.experts.placement.exchange import LayerProblem
from wattmesh.policies.experts.placement.problem import Array, Gpus


def by_load(loads_S: Array, speeds_G: Array, slots: tuple[int, ...]) -> Gpus:
    """Deal units, the heaviest first, each to the GPU with room that would end first (LPT)."""
    at_S = np.zeros(len(loads_S), dtype=np.int64)
    room_G, seconds_G = np.array(slots), np.zeros(len(slots))
    for unit in np.argsort(-loads_S, kind="stable"):
        ends_G = np.where(room_G > 0, seconds_G + loads_S[unit] / speeds_G, np.inf)
        at = int(ends_G.argmin())
        at_S[unit] = at
        room_G[at] -= 1
        seconds_G[at] = ends_G[at]
    return at_S


def by_affinity(layer: LayerProblem, slots: tuple[int, ...]) -> Gpus | None:
    """Deal units, the heaviest first, each to where it is cheapest given those dealt before.

    Returns:
        None where a unit fitted nowhere in time.
    """
    at_S = np.full(len(layer.loads_S), -1, dtype=np.int64)
    room_G, seconds_G = np.array(slots), np.zeros(len(slots))
    price_SG = layer.price_SG.copy()
    for unit in np.argsort(-layer.loads_S, kind="stable"):
        ends_G = seconds_G + layer.loads_S[unit] / layer.speeds_G
        may_G = (room_G > 0) & (ends_G <= layer.limit_s)
        if not may_G.any():
            return None
        at = int(np.where(may_G, price_SG[unit], np.inf).argmin())
        at_S[unit] = at
        room_G[at] -= 1
        seconds_G[at] = ends_G[at]
        price_SG += layer.together_SS[:, [unit]] * layer.distance_GG[at][None, :]
    return at_S


def wandered(layer: LayerProblem, at_S: Gpus, seed: tuple[int, ...]) -> Gpus:
    """Exchange units at random as long as nobody becomes late."""
    draw = np.random.default_rng(seed)
    at_S, seconds_G = at_S.copy(), layer.seconds_G(at_S)
    for first, second in draw.integers(0, len(at_S), (4 * len(at_S), 2)):
        a, b = at_S[first], at_S[second]
        more = layer.loads_S[second] - layer.loads_S[first]
        ends = seconds_G[a] + more / layer.speeds_G[a], seconds_G[b] - more / layer.speeds_G[b]
        if a != b and max(ends) <= layer.limit_s:
            seconds_G[a], seconds_G[b] = ends
            at_S[first], at_S[second] = b, a
    return at_S
