"""Chooses windows of whole hours for caps: none too long, none too close to the next. Pure.

Invariant: the windows that are given are worth as much as any that keep to the limits; of equals
the fewest, and of those the earliest.
"""

from bisect import bisect_left
from collections.abc import Mapping
from datetime import datetime, timedelta

HOUR = timedelta(hours=1)

Window = tuple[datetime, datetime]
"""Start and end, half-open."""

_Best = tuple[int, int, tuple[Window, ...]]
"""What windows are worth together, how many they are (negative), and the windows."""


def choose_windows(
    worth: Mapping[datetime, int], *, longest_hours: int, pause_hours: int, most: int
) -> tuple[Window, ...]:
    """Choose windows that cover only hours of `worth`, and cover what is worth most.

    A recursion from the last hour to the first: from each hour on, with so many windows left.

    Args:
        worth: by the start of an hour, what it is worth to cap it; above 0.
        longest_hours: most hours of one window, at least 1.
        pause_hours: least hours from the end of a window to the start of the next.
        most: most windows.
    """
    starts = sorted(worth)
    best: list[list[_Best]] = [[(0, 0, ())] * (most + 1) for _ in range(len(starts) + 1)]
    for place in reversed(range(len(starts))):
        for left in range(1, most + 1):
            found = best[place + 1][left]
            for length, total in enumerate(_totals(worth, starts[place], longest_hours), start=1):
                until = starts[place] + length * HOUR
                rest = best[bisect_left(starts, until + pause_hours * HOUR)][left - 1]
                offer = (total + rest[0], rest[1] - 1)
                if offer >= found[:2]:
                    found = (*offer, ((starts[place], until), *rest[2]))
            best[place][left] = found
    return best[0][most][2]


def _totals(worth: Mapping[datetime, int], start: datetime, longest_hours: int) -> list[int]:
    """Sum the hours that follow each other from `start` on: of one, of two, and so on."""
    found: list[int] = []
    for each in (start + number * HOUR for number in range(longest_hours)):
        if each not in worth:
            break
        found.append(worth[each] + (found[-1] if found else 0))
    return found
