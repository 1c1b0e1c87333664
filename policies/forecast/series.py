"""What was observed of one carbon series, and its whole hours as the forecasts want them. Pure.

Invariant: an hour is known only when every interval in it is; what is not finite or below zero is
unknown, and unknown is never zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

HOUR_S = 3600.0
DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Consecutive intervals of one series, oldest first; the last one is the newest known.

    Attributes:
        start: when the first interval starts, aware UTC.
        interval_s: length of each; it divides an hour, or is whole hours that divide a day.
        values: g/kWh, NaN where unknown.
    """

    start: datetime
    interval_s: float
    values: Sequence[float]

    def __post_init__(self) -> None:
        """Refuse intervals of which neither an hour nor a day can be made.

        Raises:
            ValueError: with the length.
        """
        whole = self.interval_s > 0 and (
            HOUR_S % self.interval_s == 0
            or (self.interval_s % HOUR_S == 0 and DAY_S % self.interval_s == 0)
        )
        if not whole:
            raise ValueError(
                f"an interval of {self.interval_s:g} s does not divide an hour, nor is it whole "
                "hours that divide a day"
            )

    @property
    def end(self) -> datetime:
        """When the last interval ends."""
        return self.start + timedelta(seconds=self.interval_s * len(self.values))

    @property
    def last_g_per_kwh(self) -> float:
        """The newest known value; NaN when there is none."""
        return next((value for value in map(_known, reversed(self.values)) if value >= 0), math.nan)

    def coarse(self) -> "Observed":
        """Give it in steps of at least an hour, counted back from the end; a broken first one goes.

        So an hour of a half-hourly series may start at half past: the day repeats all the same,
        and no value has to wait for the clock.
        """
        if self.interval_s >= HOUR_S:
            return self
        each = round(HOUR_S / self.interval_s)
        known = [_known(value) for value in self.values]
        first = len(known) % each
        means = [math.fsum(known[at : at + each]) / each for at in range(first, len(known), each)]
        start = self.start + timedelta(seconds=self.interval_s * first)
        return Observed(start=start, interval_s=HOUR_S, values=tuple(means))

    def mean(self, start: datetime, end: datetime) -> float:
        """Mean of [start, end), NaN unless every interval in it is known; `start` on a border."""
        first = round((start - self.start).total_seconds() / self.interval_s)
        count = round((end - start).total_seconds() / self.interval_s)
        if first < 0 or count < 1 or first + count > len(self.values):
            return math.nan
        return math.fsum(map(_known, self.values[first : first + count])) / count


def _known(value: float) -> float:
    return value if math.isfinite(value) and value >= 0 else math.nan
