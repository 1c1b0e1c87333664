"""Where a search begins: experts dealt by load alone, or each to where its partners already are.

Shape suffixes: S slots of a layer (experts first, then empty ones without load), G GPUs.
"""

import numpy as np

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


def by_affinity(
    loads_S: Array,
    price_SG: Array,
    together_SS: Array,
    distance_GG: Array,
    limits: tuple[Array, float, tuple[int, ...]],
) -> Gpus | None:
    """Deal units, the heaviest first, each to where it is cheapest given those dealt before.

    Args:
        loads_S: rows of each unit.
        price_SG: joules of a unit on a GPU, without its pairs.
        together_SS: tokens of each pair.
        distance_GG: joules of a token of a pair.
        limits: speeds of the GPUs, seconds that each may take, their slots.

    Returns:
        None where a unit fitted nowhere.
    """
    speeds_G, limit_s, slots = limits
    at_S = np.full(len(loads_S), -1, dtype=np.int64)
    room_G, seconds_G = np.array(slots), np.zeros(len(slots))
    pairs_SG = np.zeros_like(price_SG)
    for unit in np.argsort(-loads_S, kind="stable"):
        ends_G = seconds_G + loads_S[unit] / speeds_G
        may_G = (room_G > 0) & (ends_G <= limit_s)
        if not may_G.any():
            return None
        at = int(np.where(may_G, price_SG[unit] + pairs_SG[unit], np.inf).argmin())
        at_S[unit] = at
        room_G[at] -= 1
        seconds_G[at] = ends_G[at]
        pairs_SG += together_SS[:, [unit]] * distance_GG[at][None, :]
    return at_S
