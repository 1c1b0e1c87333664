"""Which intensities are believed, whoever provides them.

Providers publish false zeros, empty values and jumps (five false half hours in the first half of
2023 in the NESO series alone).

Pure. Invariant: a value that is refused never becomes a point, and each refusal is one sentence
with the moment and the number.
"""

import math
from collections import deque
from datetime import UTC, datetime, timedelta

HIGHEST_G_PER_KWH = 2000.0
"""No grid reaches it: lignite alone emits about 1100."""

PROFILE = timedelta(days=7)
"""The lowest accepted value of so long a time is the profile's minimum."""

JUMP_SHARE = 0.25
"""A fall below this share of the profile's minimum is not believed at first sight."""

BELIEVED_AFTER = 3
"""So many intervals in a row at the new level are believed: then the grid did change."""

PROFILE_VALUES = 4
"""Fewer values make no profile."""


def fault(value: float | None, *, kind: str = "average") -> str:
    """Say why a single value cannot be an intensity in g/kWh; "" when it can.

    A marginal rate may be 0: while wind or sun are curtailed, one more kWh emits nothing.
    """
    if value is None:
        return "is missing at the source"
    if not math.isfinite(value):
        return f"is {value}, not a number"
    if value < 0:
        return f"is {value:g} g/kWh, less than nothing"
    if value == 0 and kind == "average":
        return "is 0 g/kWh, which no grid reaches (an outage at the source looks like this)"
    if value > HIGHEST_G_PER_KWH:
        return f"is {value:g} g/kWh, above {HIGHEST_G_PER_KWH:g}: check the unit at the source"
    return ""


class Judge:
    """Judges the measured values of one series, oldest first.

    An average falls slowly, so a deep fall of one interval is not believed. A marginal rate is
    that of the one plant that would deliver more, and falls from gas to nothing within minutes
    (35 g/kWh was seen between values of 430): there only single values are judged.
    """

    def __init__(self, kind: str = "average") -> None:
        """Begin without a profile: the first values are judged one by one.

        Args:
            kind: `Signal.kind`: average or marginal.
        """
        self._kind = kind
        self._starts: deque[datetime] = deque()
        # Only values that no later one undercuts: the first is the lowest of the profile.
        self._lowest: deque[tuple[datetime, float]] = deque()
        self._falls = 0

    def fault(self, start: datetime, value: float | None) -> str:
        """Say why the value of the interval that begins at `start` is refused; "" when believed."""
        why = fault(value, kind=self._kind)
        if why or value is None or self._kind != "average":
            return why
        self._forget(start - PROFILE)
        lowest = self._lowest[0][1] if self._lowest else 0.0
        fell = len(self._starts) >= PROFILE_VALUES and value < JUMP_SHARE * lowest
        self._falls = self._falls + 1 if fell else 0
        if fell and self._falls < BELIEVED_AFTER:
            return (
                f"is {value:g} g/kWh, under {JUMP_SHARE:.0%} of {lowest:g}, the lowest of the days "
                f"before (believed when {BELIEVED_AFTER} intervals in a row say so)"
            )
        if fell:
            self._starts.clear()
            self._lowest.clear()
        while self._lowest and self._lowest[-1][1] >= value:
            self._lowest.pop()
        self._lowest.append((start, value))
        self._starts.append(start)
        return ""

    def _forget(self, before: datetime) -> None:
        """Drop what is older than the profile."""
        while self._starts and self._starts[0] < before:
            self._starts.popleft()
        while self._lowest and self._lowest[0][0] < before:
            self._lowest.popleft()


def refusal(start: datetime, why: str) -> str:
    """Write the sentence for one refused value."""
    return f"The value of {start.astimezone(UTC):%Y-%m-%d %H:%M} UTC {why}."
