"""Makes hours of what a provider sends, and refuses what cannot be true. Pure.

Invariant: an hour is known only when all of its parts are; a value that is not plausible, or was
sent with a wrong unit, becomes a reason and never a point; of two values for one interval the later
in the answer holds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from wattmesh.telemetry.exogenous import (
    ExogenousBatch,
    ExogenousKind,
    ExogenousPoint,
    implausible,
)

HOUR = timedelta(hours=1)
MOST_REASONS = 20
"""A provider that sends only nonsense shall not fill the log."""


@dataclass(slots=True, kw_only=True)
class Collected:
    """Values of one zone while they are read.

    Attributes:
        provider, zone: what the points are of.
        now: when they were fetched.
    """

    provider: str
    zone: str
    now: datetime
    _parts: dict[tuple[ExogenousKind, str], dict[datetime, tuple[datetime, float]]] = field(
        default_factory=dict
    )
    _refused: dict[str, None] = field(default_factory=dict)

    def refuse(self, why: str) -> None:
        """Keep a reason, once."""
        if len(self._refused) < MOST_REASONS:
            self._refused[why] = None

    def add(
        self, kind: ExogenousKind, start: datetime, end: datetime, value: float, series: str = ""
    ) -> None:
        """Take the value of [start, end); `series`: of several that add up (onshore, offshore)."""
        why = "no number" if not math.isfinite(value) else implausible(kind, value)
        if why:
            self.refuse(f"{start.astimezone(UTC):%Y-%m-%dT%H:%MZ}: {why}; left out")
            return
        self._parts.setdefault((kind, series), {})[start] = (end, value)

    def batch(self, issued_at: Mapping[datetime, datetime] | datetime) -> ExogenousBatch:
        """Give the hours.

        Args:
            issued_at: from when all values were known, or by the start of each hour; an hour that
                is not in it was not asked for.
        """
        sums: dict[ExogenousKind, list[dict[datetime, float]]] = {}
        for (kind, _), parts in sorted(self._parts.items()):
            hours = _hours(parts)
            if not isinstance(issued_at, datetime):
                for start in sorted(hours.keys() - issued_at.keys()):
                    self.refuse(f"{start:%Y-%m-%dT%H:%MZ} was not asked for; left out")
                    del hours[start]
            sums.setdefault(kind, []).append(hours)
        points = [
            ExogenousPoint(
                provider=self.provider,
                zone=self.zone,
                kind=kind,
                start=start,
                end=start + HOUR,
                value=math.fsum(series[start] for series in several),
                issued_at=issued_at if isinstance(issued_at, datetime) else issued_at[start],
                fetched_at=self.now,
            )
            for kind, several in sums.items()
            # A zone with wind at sea has all of its wind or none.
            for start in sorted(set.intersection(*(set(series) for series in several)))
        ]
        return ExogenousBatch(
            points=tuple(sorted(points, key=lambda each: (each.start, each.kind))),
            refused=tuple(self._refused),
        )


def _hours(parts: Mapping[datetime, tuple[datetime, float]]) -> dict[datetime, float]:
    """Mean of each whole hour of UTC that the intervals cover without a gap."""
    covered: dict[datetime, timedelta] = {}
    total: dict[datetime, float] = {}
    for start, (end, value) in parts.items():
        at = start
        while at < end:
            hour = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
            until = min(end, hour + HOUR)
            covered[hour] = covered.get(hour, timedelta()) + (until - at)
            total[hour] = total.get(hour, 0.0) + value * ((until - at) / HOUR)
            at = until
    return {hour: total[hour] for hour, length in covered.items() if length == HOUR}
