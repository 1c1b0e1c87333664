"""The forecast benchmark reads recorded zones, names what it skips, and lets nobody look ahead."""

import gzip
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.forecast.__main__ import Seen, _goals, _report, _seen
from benchmarks.forecast.data import NoSeriesError, Recorded, _series, read
from benchmarks.forecast.score import RULES, Forecasts, Score, forecasts, score
from tests.policies.forecasting.worlds import START, Zone, observed, values

HEAD = "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type"


def write(path: Path, told: Sequence[object], step_s: float, kind: str = "average") -> Path:
    """Write a file as the recorded ones are."""
    rows = [
        f"XX,{(START + at * timedelta(seconds=step_s)).isoformat()},{value},{kind},direct"
        for at, value in enumerate(told)
    ]
    text = "\n".join([HEAD, *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_half_hours_become_hours_and_false_values_become_unknown(tmp_path: Path) -> None:
    """Two halves make an hour; an empty one, and a false zero, make it unknown."""
    told: list[object] = [200.0, 300.0] * (24 * 61)
    told[2], told[5] = "", 0.0
    hours = _series(write(tmp_path / "x.csv.gz", told, 1800.0)).hours.values
    assert hours[0] == 250.0
    assert np.isnan(hours[1])
    assert np.isnan(hours[2])
    assert len(hours) == 24 * 61


def test_a_marginal_rate_may_be_zero(tmp_path: Path) -> None:
    """What is false of an average is true of a marginal rate."""
    path = write(tmp_path / "m.csv", [0.0] * 24 * 61, 3600.0, kind="marginal")
    assert set(_series(path).hours.values) == {0.0}


def test_what_is_no_series_is_named(tmp_path: Path) -> None:
    """Forecast files, short files, other tables: skipped by name, with the reason."""
    write(tmp_path / "good.csv", values(Zone(), 61), 3600.0)
    write(tmp_path / "short.csv", values(Zone(), 12), 3600.0)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty.csv.gz").write_bytes(b"not gzip")
    (tmp_path / "issued.csv").write_text(f"generated_at_utc,{HEAD}\n")
    found, skipped = read(tmp_path)
    assert [each.file for each in found] == ["good.csv"]
    assert set(skipped) == {"short.csv", "other.csv", "empty.csv.gz", "issued.csv"}
    assert "12 days" in skipped["short.csv"]


def test_a_step_that_makes_no_hour_is_refused(tmp_path: Path) -> None:
    """Seven minutes do not divide an hour."""
    with pytest.raises(NoSeriesError, match="420 s"):
        _series(write(tmp_path / "x.csv", values(Zone(), 4), 420.0))


def recorded(told: Sequence[float], year_zone: str = "XX") -> Recorded:
    """A zone as it comes from a file."""
    return Recorded(
        file="x.csv", zone=year_zone, kind="average", step_s=3600.0, hours=observed(list(told))
    )


def leaks(both: tuple[Forecasts, Forecasts], until: int) -> list[str]:
    """Name the rules whose forecasts before `until` depend on values from there on."""
    early, late = both
    before = early.origins <= until
    return [
        name
        for name in RULES
        if not np.allclose(early.rules[name][before], late.rules[name][before])
    ]


def test_no_rule_looks_ahead_and_a_leak_is_caught() -> None:
    """Later values change no earlier forecast; its twin that has seen the truth is named."""
    told = values(Zone(), 38)
    until = 32 * 24
    changed = [value if at < until else 900.0 for at, value in enumerate(told)]
    first, second = forecasts(recorded(told)), forecasts(recorded(changed))
    assert leaks((first, second), until) == []
    assert leaks((spoilt(first), spoilt(second)), until) == ["ours"]


def spoilt(honest: Forecasts) -> Forecasts:
    """Ours as it would be if it knew a tenth of what comes."""
    ours = 0.9 * honest.rules["ours"] + 0.1 * honest.truth
    return replace(honest, rules={**honest.rules, "ours": ours})


def made(truth: np.ndarray, profile: np.ndarray, ours: np.ndarray) -> Score:
    """Score two rules on a made-up truth."""
    origins = np.arange(len(truth)) * 12
    rules = {"last": profile, "day": profile, "profile": profile, "ours": ours}
    return score(
        Forecasts(origins=origins, truth=truth, rules=rules, low=ours * 0.9, high=ours * 1.1)
    )


def test_figures_are_what_they_say() -> None:
    """Half the error is a gain of 50 %; knowing the truth is worth all of the decision."""
    chance = np.random.default_rng(1)
    truth = chance.uniform(100, 300, (60, 72))
    sign = chance.choice([-1.0, 1.0], truth.shape)
    told = made(truth, truth * (1 + 0.2 * sign), truth * (1 + 0.1 * sign))
    assert told.profile_mape_24h == pytest.approx(20.0)
    assert told.gain_24h == pytest.approx(50.0)
    assert told.gain_lower == pytest.approx(50.0)
    perfect = made(truth, truth, truth)
    assert perfect.row["ours_decision_value"] == pytest.approx(100.0)
    assert perfect.row["coverage80"] == 100.0


def test_a_forecast_worse_than_the_profile_fails_its_goal() -> None:
    """Sabotaged twin: ours with twice the error, in bands too narrow, misses every goal."""
    chance = np.random.default_rng(2)
    truth = chance.uniform(100, 300, (60, 72))
    sign = chance.choice([-1.0, 1.0], truth.shape)
    bad = made(truth, truth * (1 + 0.2 * sign), truth * (1 + 0.4 * sign))
    good = {goal.name: goal.ok for goal in _goals([bad])}
    assert not good["gain_24h"]
    assert not good["worst_zone_lower"]
    assert not good["coverage80"]
    assert not any(goal.ok for goal in _goals([])), "nothing measured is nothing reached"


def test_a_grid_that_never_changes_has_no_gain_and_no_loss() -> None:
    """Without errors there is nothing to make smaller: zero, not a division by it."""
    truth = np.full((60, 72), 250.0)
    told = made(truth, truth, truth)
    assert (told.gain_24h, told.gain_lower) == (0.0, 0.0)
    assert told.row["ours_decision_value"] is None


def placed(zone: str, year: int) -> Recorded:
    """A short recording of some zone and year."""
    found = recorded(values(Zone(), 3), zone)
    return replace(found, hours=replace(found.hours, start=START.replace(year=year)))


def gaining(percent: float) -> Score:
    """The score of a forecast whose error is so many percent below the profile's."""
    chance = np.random.default_rng(3)
    truth = chance.uniform(100, 300, (60, 72))
    sign = chance.choice([-1.0, 1.0], truth.shape)
    ours = 0.2 * (1 - percent / 100)
    return made(truth, truth * (1 + 0.2 * sign), truth * (1 + ours * sign))


def test_only_zones_and_years_that_tuning_never_saw_are_judged() -> None:
    """Sabotaged twin: without the one such zone, no gain of the others can stand in for it."""
    assert [_seen(placed(*each)) for each in (("XX", 2023), ("XX", 2022), ("DE", 2023))] == [
        Seen.NOTHING,
        Seen.YEAR,
        Seen.ZONE,
    ]
    assert _seen(placed("DE", 2022)) is Seen.ALL
    flattering = [
        (placed("DE", 2023), gaining(60)),
        (placed("XX", 2022), gaining(40)),
        (placed("DE", 2022), gaining(90)),
        (replace(placed("XX", 2023), kind="marginal"), gaining(95)),
    ]
    report = _report([(placed("XX", 2023), gaining(20)), *flattering], {})
    assert {goal.name: goal.value for goal in report.goals}["gain_24h"] == pytest.approx(20)
    means = {row["set"]: row["gain_to_24h"] for row in report.rows if "set" in row}
    assert means[Seen.ZONE] == pytest.approx(60)
    assert means["every zone not tuned on, in any year"] == pytest.approx(30)
    assert all("CISO 2021-22" in row["tuned"] for row in report.rows)
    assert not any(goal.ok for goal in _report(flattering, {}).goals)
