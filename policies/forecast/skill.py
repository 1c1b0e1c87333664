"""Measured skill: how far each source of a forecast was off, by how far ahead it looked. Pure.

A tracker keeps fading sums of absolute errors per source and lead, beside the errors that the last
value and 24 h persistence made on the same outcomes: sources that were scored at different times
can be compared by their ratio to persistence. Blends weigh by it, metrics show it, and the journal
keeps it as JSON.

Invariant: an outcome counts fully at the moment of its scoring and by e^-1 of that `DECAY` later;
a source that was never scored has no error, never the error zero.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

DECAY = timedelta(days=14)
"""Two weeks hold every weekday twice."""
LEADS_H = (1.0, 3.0, 6.0, 12.0, 24.0, 48.0, 72.0)
"""Upper borders of the lead buckets, hours; what looks further ahead is in the last."""


class ForecastSource(StrEnum):
    """Who says what the grid will emit.

    `EXOGENOUS`: our own with wind, sun and weather; `LAST` and `DAY`: the last value, that of a day
    before.
    """

    ISSUED = "issued"
    EXOGENOUS = "exogenous"
    OWN = "own"
    PROFILE = "profile"
    LAST = "last"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastOutcome:
    """What a source said about one interval, and what it was; g/kWh, `lead_h` > 0 to its end."""

    source: ForecastSource
    lead_h: float
    expected_g_per_kwh: float
    observed_g_per_kwh: float
    last_g_per_kwh: float
    day_g_per_kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Faded sums over the outcomes of one source in one lead bucket.

    Attributes:
        weight: how many recent outcomes they stand for.
        error_g, last_error_g, day_error_g: absolute errors of the source, of the last value and of
            24 h persistence, g/kWh times outcomes.
    """

    weight: float = 0.0
    error_g: float = 0.0
    last_error_g: float = 0.0
    day_error_g: float = 0.0

    @property
    def mean_error_g_per_kwh(self) -> float | None:
        """Mean absolute error; None when nothing was scored."""
        return self.error_g / self.weight if self.weight > 0 else None

    @property
    def against_day(self) -> float | None:
        """Error as a multiple of that of 24 h persistence; None when that made none."""
        return self.error_g / self.day_error_g if self.day_error_g > 0 else None

    def faded(self, share: float) -> "Tally":
        """Keep `share` of everything."""
        return Tally(
            weight=self.weight * share,
            error_g=self.error_g * share,
            last_error_g=self.last_error_g * share,
            day_error_g=self.day_error_g * share,
        )

    def plus(self, outcome: ForecastOutcome) -> "Tally":
        """Count one more outcome in full."""
        observed = outcome.observed_g_per_kwh
        return Tally(
            weight=self.weight + 1.0,
            error_g=self.error_g + abs(outcome.expected_g_per_kwh - observed),
            last_error_g=self.last_error_g + abs(outcome.last_g_per_kwh - observed),
            day_error_g=self.day_error_g + abs(outcome.day_g_per_kwh - observed),
        )


def bucket(lead_h: float) -> int:
    """Give the index in `LEADS_H` of the bucket that a lead belongs to."""
    return min(bisect_left(LEADS_H, lead_h), len(LEADS_H) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """Measured skill per source and lead bucket, as of `at`; None: nothing scored yet."""

    at: datetime | None = None
    tallies: Mapping[tuple[ForecastSource, int], Tally] = field(default_factory=dict)

    def tally(self, source: ForecastSource, lead_h: float) -> Tally:
        """Give what was scored of a source so far ahead; an empty tally when nothing was."""
        return self.tallies.get((source, bucket(lead_h)), Tally())

    def after(self, outcomes: Iterable[ForecastOutcome], *, at: datetime) -> "Skill":
        """Let what there is fade to `at`, then count `outcomes`; those with NaN are left out.

        Raises:
            ValueError: `at` is before what was scored already.
        """
        if self.at is not None and at < self.at:
            raise ValueError(f"skill as of {self.at.isoformat()} cannot go back to {at}")
        share = 1.0 if self.at is None else math.exp(-((at - self.at) / DECAY))
        tallies = {key: tally.faded(share) for key, tally in self.tallies.items()}
        for outcome in outcomes:
            if _is_whole(outcome):
                key = (outcome.source, bucket(outcome.lead_h))
                tallies[key] = tallies.get(key, Tally()).plus(outcome)
        return Skill(at=at, tallies=tallies)

    def to_json(self) -> str:
        """Write it as one JSON object, the same text for the same skill."""
        rows = [
            [source.value, LEADS_H[index], t.weight, t.error_g, t.last_error_g, t.day_error_g]
            for (source, index), t in sorted(self.tallies.items())
        ]
        at = None if self.at is None else self.at.isoformat()
        return json.dumps({"at": at, "memory_s": DECAY.total_seconds(), "rows": rows})

    @classmethod
    def from_json(cls, text: str) -> "Skill":
        """Read back what `to_json` wrote; sources and buckets of another version are left out."""
        told: dict[str, Any] = json.loads(text)
        tallies = {
            (ForecastSource(source), LEADS_H.index(lead_h)): Tally(
                weight=weight, error_g=error, last_error_g=last, day_error_g=day
            )
            for source, lead_h, weight, error, last, day in told["rows"]
            if source in set(ForecastSource) and lead_h in LEADS_H
        }
        at = None if told["at"] is None else datetime.fromisoformat(told["at"])
        return cls(at=at, tallies=tallies)


def _is_whole(outcome: ForecastOutcome) -> bool:
    values = (outcome.expected_g_per_kwh, outcome.observed_g_per_kwh)
    return all(map(math.isfinite, (*values, outcome.last_g_per_kwh, outcome.day_g_per_kwh)))
