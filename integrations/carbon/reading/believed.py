"""Refuses implausible intensities of any provider. Pure.

Providers publish false zeros, empty values and jumps (five false half hours in the first half of
2023 in the NESO series alone).

Invariant: a refused value never becomes a point, and each refusal is one sentence with the time and
the number.
"""

import math
from collections import deque
from datetime import UTC, datetime, timedelta

HIGHEST_G_PER_KWH = 2000.0
"""No grid reaches it: lignite alone emits about 1100."""

PROFILE = timedelta(days=7)
"""The profile's minimum is the lowest accepted value of this time."""

JUMP_SHARE = 0.25
"""A fall below this share of the profile's minimum is refused at first."""

BELIEVED_AFTER = 3
"""After so many intervals in a row at the new level it is accepted, because the grid did change."""

PROFILE_VALUES = 4
"""Fewest values of a profile."""


def fault(value: float | None, *, kind: str = "average") -> str:
    """Say why a single value cannot be an intensity in g/kWh; "" when it can.

    A marginal rate may be 0: while wind or solar power is curtailed, one more kWh emits nothing.
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


class PlausibilityFilter:
    """Checks the measured values of one series, oldest first.

    An average falls slowly, so a deep fall within one interval is implausible. A marginal rate is
    that of the one plant that would deliver more, and can fall from gas to zero within minutes
    (35 g/kWh was published between values of 430), so there each value is checked alone.
    """

    def __init__(self, kind: str = "average") -> None:
        """Begin without a profile: the first values are checked one by one.

        Args:
            kind: `Signal.kind`: average or marginal.
        """
        self._kind = kind
        self._starts: deque[datetime] = deque()
        # A monotonic queue of values without a lower later one; the first is the profile's minimum.
        self._lowest: deque[tuple[datetime, float]] = deque()
        self._falls = 0

    def fault(self, start: datetime, value: float | None) -> str:
        """Say why the value of the interval from `start` on is refused; "" when it is accepted."""
        why = fault(value, kind=self._kind)
        if why or value is None or self._kind != "average":
            return why
        self._forget_older(start - PROFILE)
        lowest = self._lowest[0][1] if self._lowest else 0.0
        fell = len(self._starts) >= PROFILE_VALUES and value < JUMP_SHARE * lowest
        self._falls = self._falls + 1 if fell else 0
        if fell and self._falls < BELIEVED_AFTER:
            return (
                f"is {value:g} g/kWh, under {JUMP_SHARE:.0%} of {lowest:g}, the lowest of the days "
                f"before (accepted after {BELIEVED_AFTER} such intervals in a row)"
            )
        if fell:
            self._starts.clear()
            self._lowest.clear()
        while self._lowest and self._lowest[-1][1] >= value:
            self._lowest.pop()
        self._lowest.append((start, value))
        self._starts.append(start)
        return ""

    def _forget_older(self, before: datetime) -> None:
        while self._starts and self._starts[0] < before:
            self._starts.popleft()
        while self._lowest and self._lowest[0][0] < before:
            self._lowest.popleft()


def refusal(start: datetime, why: str) -> str:
    """Build the sentence for one refused value."""
    return f"The value of {start.astimezone(UTC):%Y-%m-%d %H:%M} UTC {why}."
