"""A path as prefix sums: the grams of a change are estimated for all borders at once.

Invariant: an estimate counts as the recursion does; only `wattmesh.policies.planner.evaluate` tells
whether a path is legal and what it really emits.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.policies.planner.arrays import Arrays, Bools, Floats, Ints

Path = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """From one option to another at a slot, many at once, (N,).

    Attributes:
        extra_g, lost: grams more and tokens less than at the target; 0 where nothing changes.
        binds: border from which the next transition may begin; the slot where nothing changes.
        moved: whether something changes. `possible`: whether there is a way.
    """

    extra_g: Floats
    lost: Floats
    binds: Ints
    moved: Bools
    possible: Bools


def steps(arrays: Arrays, slot: Ints, origin: Ints, target: Ints) -> Steps:
    """Look transitions up."""
    moved = np.asarray(origin != target)
    extra_g, lost = np.zeros(len(slot)), np.zeros(len(slot))
    binds, possible = slot.copy(), ~moved
    for ways in arrays.ways:
        there = ways.extra_g[slot, origin, target]
        known = np.isfinite(there)
        extra_g = np.where(known, there, extra_g)
        lost = np.where(known, ways.lost[origin, target], lost)
        binds = np.where(known, ways.binds[slot], binds)
        possible = possible | known
    return Steps(extra_g=extra_g, lost=lost, binds=binds, moved=moved, possible=possible)


class Route:
    """A path and its sums.

    Attributes:
        path: (n,). `grams`, `tokens`: (n + 1,) up to each border.
        bound: (n + 1,) border before which no transition may begin, by those before each slot.
        next_change: (n,) first slot after each that begins with a transition; beyond all: none.
    """

    def __init__(self, arrays: Arrays, path: Path) -> None:
        """Add up."""
        self.listed = path
        self.path = np.array(path, dtype=np.int64)
        count, at = len(path), np.arange(len(path))
        before = np.concatenate([[arrays.start], self.path[:-1]])
        step = steps(arrays, at, before, self.path)
        grams = (arrays.grams[1:] - arrays.grams[:-1])[at, self.path] + step.extra_g
        tokens = (arrays.tokens[1:] - arrays.tokens[:-1])[at, self.path] - step.lost
        self.grams = np.concatenate([[0.0], np.cumsum(grams)])
        self.tokens = np.concatenate([[0.0], np.cumsum(tokens)])
        self._rising = np.maximum.accumulate(self.tokens)
        self.bound = np.zeros(count + 1, dtype=np.int64)
        self.bound[1:] = np.maximum.accumulate(np.where(step.moved, step.binds, 0))
        changes = np.where(step.moved, at, arrays.slots + 1)
        first = np.minimum.accumulate(changes[::-1])[::-1]
        self.next_change = np.concatenate([first[1:], [arrays.slots + 1]])

    def cut_g(self, excess: Floats) -> Floats:
        """Give the grams of the last tokens of the path."""
        left = np.interp(self.tokens[-1] - excess, self._rising, self.grams)
        return np.asarray(self.grams[-1] - left)


def stretched(path: Path, count: int) -> Path:
    """Stay at the last option until `count` slots are full."""
    return path + (path[-1],) * (count - len(path))
