"""What each source said is kept with an issue, and scores the same after it was read back."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from wattmesh.controller.journal.carbon.forecasts import PROFILE, Forecast
from wattmesh.controller.signals.forecast_parts import earlier, model_of, parts_of
from wattmesh.policies.decision import Rung
from wattmesh.policies.forecast.predict import PredictedIntensity, predict, scored
from wattmesh.policies.forecast.series import Observed
from wattmesh.policies.forecast.skill import ForecastSource, Skill
from wattmesh.telemetry.carbon import Signal

START = datetime(2026, 11, 1, tzinfo=UTC)
DAYS = 9


def observed(hours: int) -> Observed:
    """A grid with a day in it that grows a little dirtier."""
    values = tuple(
        200.0 + 50.0 * math.sin(hour / 24 * math.tau) + hour / 9 for hour in range(hours)
    )
    return Observed(start=START, interval_s=3600.0, values=values)


def predicted(hours: int) -> PredictedIntensity:
    """Predict from so many hours of history."""
    known = observed(hours)
    return predict(known, now=known.end, hours=24)


def kept(made: PredictedIntensity, at: datetime) -> Forecast:
    """Make the issue that a prediction is stored as."""
    return Forecast(
        signal=Signal(provider="neso", zone="GB"),
        rung=Rung.PROFILE,
        source=PROFILE,
        issued_at=at,
        fetched_at=at,
        slots=made.slots,
        parts=parts_of(made),
    )


def test_what_is_read_back_scores_as_what_was_said() -> None:
    """For every source and lead, to the rounding of a milligram."""
    hours = [DAYS * 24 + step for step in range(4)]
    made = [predicted(each) for each in hours]
    issues = [
        kept(each, START + timedelta(hours=hour)) for each, hour in zip(made, hours, strict=True)
    ]
    truth = observed(DAYS * 24 + 30)
    wanted = scored(Skill(), made, truth)
    found = scored(Skill(), earlier(issues), truth)
    assert set(found.tallies) == set(wanted.tallies)
    assert ForecastSource.PROFILE in {source for source, _ in found.tallies}
    for key, tally in wanted.tallies.items():
        assert found.tallies[key].weight == tally.weight
        assert found.tallies[key].error_g == pytest.approx(tally.error_g, abs=0.001 * tally.weight)


def test_a_prediction_that_was_changed_scores_otherwise() -> None:
    """The sabotaged twin."""
    made = predicted(DAYS * 24)
    issue = kept(made, START)
    told = json.loads(issue.parts)
    told["said"]["profile"][0] += 1000
    wrong = replace(issue, parts=json.dumps(told))
    truth = observed(DAYS * 24 + 24)
    assert scored(Skill(), earlier([wrong]), truth) != scored(Skill(), earlier([issue]), truth)


def test_one_issue_an_hour_counts_and_a_provider_s_has_no_parts() -> None:
    """Polls every five minutes count no more than polls every hour."""
    made = predicted(DAYS * 24)
    noon = START + timedelta(days=DAYS)
    every = [kept(made, noon + timedelta(minutes=5 * step)) for step in range(24)]
    assert len(earlier(every)) == 2
    assert earlier([replace(every[0], parts="")]) == ()


def test_the_model_names_its_sources_by_share() -> None:
    """The largest first, in words."""
    text = model_of(predicted(DAYS * 24))
    assert "%" in text
    assert text.split(" 1")[0] in ("anchored profile", "our own forecast")
    assert model_of(PredictedIntensity()) == ""
