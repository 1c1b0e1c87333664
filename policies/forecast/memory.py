"""How far back a grid is worth remembering: learned from what it did. Pure, plain Python.

A grid whose level drifts with the season is best expected where it was last week; one that goes up
and down with the wind, where it was on average over months. Which of the two a series is shows in
its own past: for every day of it, each memory tells the mean of the coming fortnight, and those
that were nearer count more.

Invariant: scaling the series changes no weight; with little past the middle memory counts alone.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

MEMORIES_DAYS = (5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
"""A day counts e^-1 of the newest when it is so much older."""

MIDDLE = MEMORIES_DAYS.index(30.0)

FORTNIGHT = (2, 14)
"""Days ahead over which a memory is judged: where no forecast knows the weather."""

LEAST_DAYS, DOUBT_DAYS = 20, 15
"""Days before the first judgement; judgements that count as one memory being like another."""

SHARPNESS = 20.0
"""A memory with a tenth more squared error has 1.1^-20 of the weight: about a seventh."""


def weights_by_age(days: Sequence[float]) -> tuple[float, ...]:
    """Give how much a day counts, by its age in days from the newest (0).

    Args:
        days: mean intensity of each day, the newest last; each finite and at least 0.
    """
    memories = _trust(days)
    fades = [[math.exp(-age / tau) for age in range(len(days))] for tau in MEMORIES_DAYS]
    totals = [math.fsum(fade) for fade in fades]
    return tuple(
        math.fsum(
            trust * fade[age] / total
            for trust, fade, total in zip(memories, fades, totals, strict=True)
        )
        for age in range(len(days))
    )


def _trust(days: Sequence[float]) -> tuple[float, ...]:
    """Give the weight of each memory; they add up to one."""
    first, last = FORTNIGHT
    judged = range(LEAST_DAYS, len(days) - last)
    middle_alone = tuple(float(each == MIDDLE) for each in range(len(MEMORIES_DAYS)))
    if not judged:
        return middle_alone
    sums = tuple(accumulate(days, initial=0.0))
    came = [(sums[day + last] - sums[day + first]) / (last - first) for day in judged]
    errors = [_error(_levels(days, tau), came) for tau in MEMORIES_DAYS]
    if not errors[MIDDLE] > 0.0:
        return middle_alone
    known = len(judged) / (len(judged) + DOUBT_DAYS)
    ratios = [known * each / errors[MIDDLE] + 1.0 - known for each in errors]
    powers = [max(each, 1e-3) ** -SHARPNESS for each in ratios]
    total = math.fsum(powers)
    return tuple(each / total for each in powers)


def _levels(days: Sequence[float], tau: float) -> list[float]:
    """Give what a memory of `tau` days expects on each day, from the days before it."""
    fade, total, weight = math.exp(-1.0 / tau), 0.0, 0.0
    found: list[float] = []
    for each in days:
        found.append(total / weight if weight else each)
        total, weight = total * fade + each, weight * fade + 1.0
    return found


def _error(levels: Sequence[float], came: Sequence[float]) -> float:
    """Give the mean squared error, each as a share of what came."""
    shares = (
        (levels[LEAST_DAYS + n] - mean) / mean if mean > 0.0 else 0.0 for n, mean in enumerate(came)
    )
    return math.fsum(each * each for each in shares) / len(came)
