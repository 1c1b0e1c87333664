"""Measured skill: fading sums against a brute-force count, and what the journal keeps of it."""

import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from wattmesh.policies.forecast.skill import (
    DECAY,
    LEADS_H,
    ForecastOutcome,
    ForecastSource,
    Skill,
    Tally,
    bucket,
)

START = datetime(2026, 3, 1, tzinfo=UTC)


def outcome(
    source: ForecastSource, lead_h: float, off: float, day_off: float = 10.0
) -> ForecastOutcome:
    """An outcome in which `source` was off by so much."""
    return ForecastOutcome(
        source=source,
        lead_h=lead_h,
        expected_g_per_kwh=200.0 + off,
        observed_g_per_kwh=200.0,
        last_g_per_kwh=220.0,
        day_g_per_kwh=200.0 + day_off,
    )


def test_it_equals_a_count_by_hand() -> None:
    """Batches at odd times: the faded mean equals the weighted mean over every outcome ever."""
    chance = random.Random(3)
    at, skill = START, Skill()
    told: list[tuple[datetime, ForecastOutcome]] = []
    for _ in range(200):
        at += timedelta(minutes=chance.randrange(1, 600))
        batch = [
            outcome(
                chance.choice(list(ForecastSource)), chance.uniform(0.1, 90), chance.gauss(0, 30)
            )
            for _ in range(chance.randrange(4))
        ]
        told += [(at, each) for each in batch]
        skill = skill.after(batch, at=at)
    for source in ForecastSource:
        for lead_h in LEADS_H:
            assert by_hand(told, source, lead_h, at) == pytest.approx(
                skill.tally(source, lead_h).mean_error_g_per_kwh
            )


def by_hand(
    told: Sequence[tuple[datetime, ForecastOutcome]],
    source: ForecastSource,
    lead_h: float,
    at: datetime,
) -> float | None:
    """The weighted mean as it is defined, over all outcomes."""
    mine = [
        (math.exp(-((at - when) / DECAY)), abs(each.expected_g_per_kwh - each.observed_g_per_kwh))
        for when, each in told
        if each.source == source and bucket(each.lead_h) == bucket(lead_h)
    ]
    weights = sum(weight for weight, _ in mine)
    return sum(weight * error for weight, error in mine) / weights if weights else None


def test_never_scored_is_not_perfect() -> None:
    """A source without outcomes has no error at all, rather than the error zero."""
    assert Skill().tally(ForecastSource.ISSUED, 6).mean_error_g_per_kwh is None
    assert Tally().against_day is None


def test_a_value_that_is_not_known_scores_nothing() -> None:
    """NaN in any part of an outcome leaves it out."""
    holes = [
        outcome(ForecastSource.OWN, 3, math.nan),
        outcome(ForecastSource.OWN, 3, 5.0, day_off=math.nan),
    ]
    assert Skill().after(holes, at=START).tally(ForecastSource.OWN, 3) == Tally()


def test_ratios_compare_with_what_persistence_did() -> None:
    """Half the error of yesterday's value is a ratio of one half."""
    skill = Skill().after([outcome(ForecastSource.ISSUED, 5, -5.0)], at=START)
    assert skill.tally(ForecastSource.ISSUED, 6).against_day == pytest.approx(0.5)
    tally = skill.tally(ForecastSource.ISSUED, 6)
    assert tally.error_g / tally.last_error_g == pytest.approx(0.25)


def test_time_does_not_run_backwards() -> None:
    """Scoring before what was scored already is refused."""
    skill = Skill().after([], at=START)
    with pytest.raises(ValueError, match="cannot go back"):
        skill.after([], at=START - timedelta(hours=1))


def test_leads_fall_into_the_bucket_that_holds_them() -> None:
    """A border belongs to the bucket below it; what is further than all is in the last."""
    assert [bucket(lead) for lead in (0.2, 1.0, 1.1, 24.0, 24.5, 500.0)] == [0, 0, 1, 4, 5, 6]


def test_the_journal_gives_back_what_it_was_given() -> None:
    """JSON and back is the same skill; rows of another version are left out, not refused."""
    batch = [outcome(source, lead, 7.0) for source in ForecastSource for lead in (0.5, 30.0)]
    skill = Skill().after(batch, at=START)
    assert Skill.from_json(skill.to_json()) == skill
    assert Skill.from_json(Skill().to_json()) == Skill()
    told = json.loads(skill.to_json())
    told["rows"] += [["astrology", 1.0, 1, 1, 1, 1], ["own", 5.5, 1, 1, 1, 1]]
    assert Skill.from_json(json.dumps(told)) == skill
