"""Makes the placement of one layer better by exchanging two units at a time (Kernighan-Lin).

A pass exchanges the best pair, locks both, and goes on, even uphill; then it keeps the best of all
prefixes. So it leaves valleys that an exchange alone cannot. Empty slots are units without load:
a move to free room is an exchange with one. Where no pass gains, two GPUs exchange all they hold.

Invariant: nobody takes longer than the limit in any prefix, if nobody does at the beginning.

Shape suffixes: S slots of a layer, G GPUs.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.policies.experts.placement.problem import Array, Gpus

DEPTH = 24
"""Exchanges of one pass. Kernighan and Lin go on until all are locked; gains come early."""

LEAST_GAIN = 1e-12
"""Of the layer's cost: what is smaller is rounding, and would let a search go round in circles."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerProblem:
    """One layer, with the others where they are.

    Attributes:
        loads_S: rows of each unit. `price_SG`: joules of a unit on a GPU, without its pairs.
        together_SS: tokens of each pair. `distance_GG`: joules of a token of a pair.
        speeds_G: rows per second. `limit_s`: what each GPU may take.
    """

    loads_S: Array
    price_SG: Array
    together_SS: Array
    distance_GG: Array
    speeds_G: Array
    limit_s: float
    idle_w: float

    def cost(self, at_S: Gpus) -> float:
        """Joules of a placement of this layer."""
        pairs = self.together_SS * self.distance_GG[at_S[:, None], at_S[None, :]]
        rows_j = float(self.price_SG[np.arange(len(at_S)), at_S].sum())
        return float(pairs.sum()) / 2 + rows_j + self.idle_w * float(self.seconds_G(at_S).max())

    def seconds_G(self, at_S: Gpus) -> Array:
        """Seconds of each GPU."""
        loads_G = np.bincount(at_S, weights=self.loads_S, minlength=len(self.speeds_G))
        seconds_G: Array = loads_G / self.speeds_G
        return seconds_G


def exchanged(layer: LayerProblem, at_S: Gpus) -> Gpus:
    """Exchange units, and all units of two GPUs, until a whole pass gains nothing."""
    at_S = at_S.copy()
    least = LEAST_GAIN * max(abs(layer.cost(at_S)), 1e-300)
    while True:
        while (better := _pass(layer, at_S, least)) is not None:
            at_S = better
        better = _with_gpus_exchanged(layer, at_S, least)
        if better is None:
            return at_S
        at_S = better


def _with_gpus_exchanged(layer: LayerProblem, at_S: Gpus, least: float) -> Gpus | None:
    """Exchange all units of two GPUs for each other, the best pair; None where none gains.

    Exchanges one by one would make one of both late on the way. Only GPUs with as many slots.
    """
    gpus = len(layer.speeds_G)
    held_GS = (at_S[None, :] == np.arange(gpus)[:, None]).astype(float)
    slots_G = held_GS.sum(axis=1)
    together_GG = held_GS @ layer.together_SS @ held_GS.T
    price_GG = held_GS @ layer.price_SG
    loads_G = held_GS @ layer.loads_S
    seconds_G, least_change = loads_G / layer.speeds_G, -least
    found: tuple[int, int] | None = None
    now_s = float(seconds_G.max())
    for a in range(gpus):
        for b in (a + 1 + int(each) for each in np.flatnonzero(slots_G[a + 1 :] == slots_G[a])):
            ends_s = loads_G[b] / layer.speeds_G[a], loads_G[a] / layer.speeds_G[b]
            if max(ends_s) > layer.limit_s:
                continue
            rest_G = np.ones(gpus, dtype=bool)
            rest_G[[a, b]] = False
            nearer_G = layer.distance_GG[b, rest_G] - layer.distance_GG[a, rest_G]
            moved = float(((together_GG[a] - together_GG[b])[rest_G] * nearer_G).sum())
            moved += price_GG[a, b] + price_GG[b, a] - price_GG[a, a] - price_GG[b, b]
            longest_s = max(*ends_s, float(seconds_G[rest_G].max(initial=0.0)))
            change = moved + layer.idle_w * (longest_s - now_s)
            if change < least_change:
                least_change, found = change, (a, b)
    if found is None:
        return None
    a, b = found
    return np.where(at_S == a, b, np.where(at_S == b, a, at_S))


def _pass(layer: LayerProblem, start_S: Gpus, least: float) -> Gpus | None:
    """Give the best prefix of one pass; None where none gains more than `least`."""
    at_S = start_S.copy()
    unit_S = np.arange(len(at_S))
    total_SG = layer.together_SS @ layer.distance_GG[at_S] + layer.price_SG
    seconds_G = layer.seconds_G(at_S)
    locked = np.zeros(len(at_S), dtype=bool)
    gained = best = 0.0
    found: Gpus | None = None
    for _ in range(min(DEPTH, len(at_S) // 2)):
        there_SS = total_SG[:, at_S]
        here_S = total_SG[unit_S, at_S]
        change_SS = there_SS + there_SS.T - here_S[:, None] - here_S[None, :]
        change_SS += 2 * layer.together_SS * layer.distance_GG[at_S[:, None], at_S[None, :]]
        ends_SS = _ends(layer, at_S, seconds_G)
        # Who ends no later than before is never the reason to refuse.
        late_SS = (ends_SS > layer.limit_s) & (ends_SS > seconds_G[at_S][:, None])
        forbidden = late_SS | late_SS.T | locked[:, None] | locked[None, :]
        longest_SS = np.maximum(np.maximum(ends_SS, ends_SS.T), _others(seconds_G, at_S))
        change_SS += layer.idle_w * (longest_SS - seconds_G.max())
        forbidden |= at_S[:, None] == at_S[None, :]
        change_SS[forbidden] = np.inf
        first, second = divmod(int(change_SS.argmin()), len(at_S))
        if not np.isfinite(change_SS[first, second]):
            break
        gained -= float(change_SS[first, second])
        a, b = int(at_S[first]), int(at_S[second])
        at_S[first], at_S[second] = b, a
        moved_G = layer.distance_GG[b] - layer.distance_GG[a]
        total_SG += (layer.together_SS[:, [first]] - layer.together_SS[:, [second]]) * moved_G
        seconds_G = layer.seconds_G(at_S)
        locked[[first, second]] = True
        if gained > best + least:
            best, found = gained, at_S.copy()
    return found


def _ends(layer: LayerProblem, at_S: Gpus, seconds_G: Array) -> Array:
    """Seconds of the first unit's GPU after it was exchanged for the second, (S, S)."""
    loads_S = layer.loads_S
    more_SS = (loads_S[None, :] - loads_S[:, None]) / layer.speeds_G[at_S][:, None]
    ends_SS: Array = seconds_G[at_S][:, None] + more_SS
    return ends_SS


def _others(seconds_G: Array, at_S: Gpus) -> Array:
    """Seconds of the slowest GPU that has neither of two units, (S, S); 0 where there is none."""
    slowest = np.argsort(-seconds_G, kind="stable")[:3]
    others_GG = np.zeros((len(seconds_G), len(seconds_G)))
    for gpu in slowest[::-1]:
        # The slowest one is written last, except where it is one of the two.
        without = np.arange(len(seconds_G)) != gpu
        others_GG[np.ix_(without, without)] = seconds_G[gpu]
    return np.asarray(others_GG[at_S[:, None], at_S[None, :]])
