"""The search for a placement: several starts, layers in turn, exchanges in each; the best of all.

Invariant: no GPU takes longer than `limits` allow, unless experts lie by number: what is found
never costs more joules than that, waiting included. The same problem gives the same placement.

Shape suffixes: L layers, S slots of a layer, X experts, G GPUs.
"""

from dataclasses import replace

import numpy as np

from wattmesh.policies.experts.placement.exchange import LayerProblem, exchanged
from wattmesh.policies.experts.placement.objective import cost, loads_on_gpus
from wattmesh.policies.experts.placement.problem import (
    Array,
    Gpus,
    PlacementProblem,
    contiguous,
)
from wattmesh.policies.experts.placement.starts import by_affinity, by_load, wandered

SWEEPS = 4
"""Times that each layer is searched with its neighbours where they are."""

ROUNDING = 1e-9
"""Of the allowed seconds: sums in another order must not make a placement late."""

WORK = 1200
"""Random starts times slots: a small problem is tried often, a large one a few times."""

MOST_STARTS = 64

TRIES = 20
"""Whole shuffles of a layer that are tried for one in time."""


def limits(problem: PlacementProblem) -> Array:
    """Seconds that a GPU may take in each layer.

    `tolerance` above the balanced time; or, where experts are too coarse or slots too few for that,
    what dealing by load alone reaches.
    """
    fair_L = problem.fair_seconds_L() * (1 + problem.tolerance)
    dealt = np.stack([_by_load(problem, layer) for layer in range(problem.layers)])
    reached_L = (loads_on_gpus(problem, _experts(problem, dealt)) / problem.speeds_G()).max(axis=1)
    found_L: Array = np.maximum(fair_L, reached_L) * (1 + ROUNDING)
    return found_L


def place(problem: PlacementProblem, *, seed: int = 0) -> Gpus:
    """Place all experts, (L, X): by number where nothing in time costs less.

    `seed`: of the random starts.
    """
    limit_L = limits(problem)
    starts = _starts(problem, limit_L, seed)
    # Where nobody waits there are fewer valleys; from some of the starts that is a better way down.
    starts[::2] = [_improved(problem, each, limit_L, waiting=False) for each in starts[::2]]
    found = [_improved(problem, each, limit_L) for each in starts]
    placements = [contiguous(problem), *(_experts(problem, each) for each in found)]
    return min(placements, key=lambda each: cost(problem, each).objective_j)


def _starts(problem: PlacementProblem, limit_L: Array, seed: int) -> list[Gpus]:
    dealt = np.stack([_by_load(problem, layer) for layer in range(problem.layers)])
    starts = [dealt]
    first = _with_slots(problem, contiguous(problem))
    seconds_LG = loads_on_gpus(problem, contiguous(problem)) / problem.speeds_G()
    if (seconds_LG.max(axis=1) <= limit_L).all():
        starts.append(first)
    greedy = _greedy(problem, limit_L)
    if greedy is not None:
        starts.append(greedy)
    for number in range(min(MOST_STARTS, WORK // dealt.shape[1])):
        starts.append(_shuffled(problem, dealt, limit_L, (seed, number)))
    return starts


def _greedy(problem: PlacementProblem, limit_L: Array) -> Gpus | None:
    """Deal layer after layer by affinity; None where a unit fits nowhere."""
    slots = sum(problem.slots)
    at_LS = np.zeros((problem.layers, slots), dtype=np.int64)
    for number in range(problem.layers):
        layer = _layer(problem, at_LS, number, float(limit_L[number]), before_only=True)
        found = by_affinity(layer, problem.slots)
        if found is None:
            return None
        at_LS[number] = found
    return at_LS


def _shuffled(
    problem: PlacementProblem, dealt: Gpus, limit_L: Array, seed: tuple[int, int]
) -> Gpus:
    """Shuffle each layer: whole where somebody is then in time, else as far as nobody is late.

    Exchanges in time do not lead from every placement in time to every other one.
    """
    at_LS, draw = dealt.copy(), np.random.default_rng(seed)
    for number in range(problem.layers):
        layer = _layer(problem, at_LS, number, float(limit_L[number]))
        whole = (draw.permutation(dealt[number]) for _ in range(TRIES))
        in_time = (each for each in whole if layer.seconds_G(each).max() <= layer.limit_s)
        found = next(in_time, None)
        at_LS[number] = wandered(layer, dealt[number], (*seed, number)) if found is None else found
    return at_LS


def _improved(
    problem: PlacementProblem, start: Gpus, limit_L: Array, *, waiting: bool = True
) -> Gpus:
    """Search each layer with its neighbours where they are, until none changes.

    `waiting`: whether idle power counts.
    """
    at_LS = start.copy()
    for _ in range(SWEEPS):
        before = at_LS.copy()
        for number in range(problem.layers):
            layer = _layer(problem, at_LS, number, float(limit_L[number]))
            layer = layer if waiting else replace(layer, idle_w=0.0)
            at_LS[number] = exchanged(layer, at_LS[number])
        if np.array_equal(before, at_LS) or not problem.counts.onward_LXX.any():
            break
    return at_LS


def _layer(
    problem: PlacementProblem,
    at_LS: Gpus,
    number: int,
    limit_s: float,
    *,
    before_only: bool = False,
) -> LayerProblem:
    """Give one layer's own problem, with its neighbours where they are."""
    counts, experts, distance_GG = problem.counts, problem.experts, problem.distance_GG()
    loads_S = _padded(problem, counts.loads_LX[number])
    slots = len(loads_S)
    price_SG = loads_S[:, None] * problem.joules_G()[None, :]
    if number > 0:
        towards = distance_GG[at_LS[number - 1, :experts]]
        price_SG[:experts] += counts.onward_LXX[number - 1].T @ towards
    if number + 1 < problem.layers and not before_only:
        towards = distance_GG[at_LS[number + 1, :experts]]
        price_SG[:experts] += counts.onward_LXX[number] @ towards
    together_SS = np.zeros((slots, slots))
    together_SS[:experts, :experts] = counts.together_LXX[number]
    return LayerProblem(
        loads_S=loads_S,
        price_SG=price_SG,
        together_SS=together_SS,
        distance_GG=distance_GG,
        speeds_G=problem.speeds_G(),
        limit_s=limit_s,
        idle_w=problem.idle_w,
    )


def _by_load(problem: PlacementProblem, layer: int) -> Gpus:
    loads_S = _padded(problem, problem.counts.loads_LX[layer])
    return by_load(loads_S, problem.speeds_G(), problem.slots)


def _padded(problem: PlacementProblem, loads_X: Array) -> Array:
    return np.pad(loads_X, (0, sum(problem.slots) - len(loads_X)))


def _experts(problem: PlacementProblem, at_LS: Gpus) -> Gpus:
    return at_LS[:, : problem.experts].copy()


def _with_slots(problem: PlacementProblem, gpu_LX: Gpus) -> Gpus:
    rows = []
    for row in gpu_LX:
        held = np.bincount(row, minlength=len(problem.gpus))
        empty = np.repeat(np.arange(len(problem.gpus)), np.array(problem.slots) - held)
        rows.append(np.concatenate([row, empty]))
    return np.stack(rows)
