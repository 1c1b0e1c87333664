"""Slow ways to the same answers as the policies' fast ones, built without their code."""

from collections.abc import Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]

from wattmesh.policies.decision import IntensitySlot

Point = tuple[float, float]
"""(tokens per second, watts)."""


def _seconds(slot: IntensitySlot) -> float:
    return (slot.end - slot.start).total_seconds()


def least_grams(
    points: Sequence[Point], slots: Sequence[IntensitySlot], tokens: float
) -> float | None:
    """Solve one linear program per slot of completion and take the least; None: impossible."""
    found = [_ending_in(points, slots[: last + 1], tokens) for last in range(len(slots))]
    possible = [each for each in found if each is not None]
    return min(possible) if possible else None


def _ending_in(
    points: Sequence[Point], slots: Sequence[IntensitySlot], tokens: float
) -> float | None:
    """Least grams when every slot but the last is trained through, and the last at most."""
    count, kinds = len(slots), len(points)
    cost = [s.g_per_kwh / 3.6e6 * watts * _seconds(s) for s in slots for _, watts in points]
    work = [speed * _seconds(s) for s in slots for speed, _ in points]
    full = np.zeros((count - 1, count * kinds))
    for row in range(count - 1):
        full[row, row * kinds : (row + 1) * kinds] = 1.0
    last = np.zeros((1, count * kinds))
    last[0, (count - 1) * kinds :] = 1.0
    solved = linprog(
        cost,
        A_ub=last,
        b_ub=[1.0],
        A_eq=np.vstack([full, [work]]),
        b_eq=[*[1.0] * (count - 1), tokens],
        bounds=(0, None),
    )
    return float(solved.fun) if solved.status == 0 else None


def least_grams_whole(
    points: Sequence[Point], slots: Sequence[IntensitySlot], tokens: float
) -> float | None:
    """Try every assignment of one point per slot; it stops once the work is done."""
    best: float | None = None
    for choice in product(points, repeat=len(slots)):
        left, grams = tokens, 0.0
        for slot, (speed, watts) in zip(slots, choice, strict=True):
            seconds = min(_seconds(slot), left / speed)
            grams += slot.g_per_kwh / 3.6e6 * watts * seconds
            left -= speed * seconds
            if left <= 1e-9 * tokens:
                best = grams if best is None else min(best, grams)
                break
    return best
