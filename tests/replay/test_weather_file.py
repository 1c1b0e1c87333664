"""Recorded zones with exogenous forecasts: placed in time, known when they were known, replayed."""

from argparse import Namespace
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks.forecast.__main__ import measure
from benchmarks.forecast.dayahead import DayAheadScore, day_ahead_goals, score_zone
from tests.builders.replays import job
from tests.builders.weather import DAYS, weather_csv
from tests.policies.forecasting.windy import DAY
from tests.policies.forecasting.worlds import START
from wattmesh.controller.replay.bench import ReplayRequest, forecast_of
from wattmesh.controller.replay.exogenous_forecast import ExogenousForecast
from wattmesh.controller.replay.forecasts import ForesightForecast, OwnForecast
from wattmesh.controller.replay.grid import GridSeries, read, starts
from wattmesh.controller.replay.weather_file import WeatherZone, read_weather, weather_files
from wattmesh.controller.replay.weather_labels import Judgement
from wattmesh.errors import InputInvalid

HOUR = timedelta(hours=1)
SCORED = 4
"""Days: each score learns, and rehearses a month."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zone as DACF's files are: each row holds what is forecast of a day later."""
    file = tmp_path_factory.mktemp("weather") / "windy.csv.gz"
    weather_csv(file)
    return file


@pytest.fixture(scope="module")
def zone(path: Path) -> WeatherZone:
    """The same, read."""
    return read_weather(path)


@pytest.fixture(scope="module")
def honest(zone: WeatherZone) -> DayAheadScore:
    """Its first scored days, forecast."""
    return score_zone(zone, most_days=SCORED)


@pytest.mark.parametrize("shift_h", [0, 24])
def test_forecasts_are_moved_to_the_hours_they_are_for(tmp_path: Path, shift_h: int) -> None:
    """Found out by what they forecast: whichever way the rows are labelled, hours agree."""
    _, wind = weather_csv(tmp_path / "x.csv", shift_h=shift_h)
    told = read_weather(tmp_path / "x.csv")
    assert [each.shift_h for each in told.labels[0]] == [shift_h]
    assert told.labels[0][0].since == 0
    placed = told.panel(len(wind)).values[: len(wind), 0]
    known = np.isfinite(placed)
    off = np.abs(placed - wind)[known]
    assert known.mean() > 0.99
    assert off.mean() < 0.15 * wind.mean()


def test_what_belongs_to_a_day_is_known_at_18_00_of_the_day_before(zone: WeatherZone) -> None:
    """And the last six months are scored, from a midnight on."""
    hours = np.arange(5 * DAY, 6 * DAY)
    assert (zone.panel(len(zone.target)).known_at[hours, 0] == 5 * DAY - 6).all()
    first = zone.start + zone.scored * HOUR
    assert (first.day, first.hour, first.month) == (1, 0, 6)


def test_a_target_that_came_late_is_brought_to_its_level(tmp_path: Path) -> None:
    """From a day of both on, the other observation stands for the time before; nothing ahead."""
    since = 200 * DAY
    values, _ = weather_csv(tmp_path / "late.csv", target_since=since)
    late = read_weather(tmp_path / "late.csv")
    assert late.known(since + 12) is None
    told = late.known(since + 30 * DAY)
    assert told is not None
    np.testing.assert_allclose(told, values[: since + 30 * DAY], rtol=1e-3)
    assert len(told) == since + 30 * DAY


def test_our_forecast_beats_the_past_and_the_rows_say_what_they_rest_on(
    honest: DayAheadScore,
) -> None:
    """On the first scored days; DACF's column of this file is a fifth off."""
    told, row = honest, honest.row
    assert row["ours_day_mape"] < 0.6 * row["past_day_mape"]
    assert row["dacf_mape"] == pytest.approx(20.0, abs=0.1)
    assert told.over_dacf == pytest.approx(row["day_ahead_mape"] / row["dacf_mape"])
    assert row["compared_hours"] == SCORED * DAY
    assert row["rows_moved_h"].startswith("forecast_wind_mwh: 24 from 2026-01-01 (known 2026-01-")
    assert row["seen"] == "nothing of this zone"
    assert "18:00 UTC" in row["issued"]
    goals = {goal.name: goal for goal in day_ahead_goals([told])}
    assert goals["dayahead_over_dacf"].ok
    assert not day_ahead_goals([replace(told, over_dacf=1.2)])[1].ok
    assert not any(goal.ok for goal in day_ahead_goals([]))


def test_a_leak_would_be_seen_in_the_score(zone: WeatherZone, honest: DayAheadScore) -> None:
    """Sabotaged twin: with the future in the panel the error falls far below what wind explains."""
    leaking = replace(
        zone,
        names=zone.names * 2,
        said=np.stack([zone.said[:, 0], zone.target], axis=1),
        labels=(zone.labels[0], (Judgement(known_at=0, since=0, shift_h=0),)),
    )
    leaked = score_zone(leaking, most_days=SCORED)
    assert leaked.row["day_ahead_mape"] < 0.6 * honest.row["day_ahead_mape"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "timestamp_utc"),
        ("zone,timestamp_utc,carbon_direct_g_per_kwh,forecast_wind_mwh\n", "no rows"),
        ("zone,timestamp_utc,carbon_direct_g_per_kwh\nX,2026-01-01T00:00:00Z,5\n", "days"),
        ("zone,timestamp_utc,carbon_direct_g_per_kwh\nX,2026-01-01T00:30:00Z,5\n", "whole hour"),
        ("zone,timestamp_utc,carbon_direct_g_per_kwh\nX,soon,5\n", "soon"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_sentence(
    tmp_path: Path, text: str, words: str
) -> None:
    """With the file's name; a folder without any is refused too."""
    bad = tmp_path / "bad.csv"
    bad.write_text(text)
    with pytest.raises(InputInvalid, match=words):
        read_weather(bad)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputInvalid, match="holds no CSV file"):
        weather_files(tmp_path / "none")


def hourly(zone: WeatherZone, first: int, count: int) -> GridSeries:
    """A part of the zone as a recorded grid."""
    return GridSeries(
        name="windy",
        kind="average",
        start=zone.start + first * HOUR,
        step=HOUR,
        values=tuple(zone.target[first : first + count].tolist()),
        zone=zone.zone,
    )


def test_a_replayed_forecast_holds_nothing_that_was_not_known(zone: WeatherZone) -> None:
    """Other values and other forecasts after now change no slot; the wind of tomorrow does."""
    now = START + 150 * DAY * HOUR + timedelta(hours=19, minutes=20)
    origin = zone.hour(now) + 1
    grid = hourly(zone, 0, len(zone.target))
    told = ExogenousForecast(grid, zone).slots(now, now + 5 * DAY * HOUR)
    hours = np.arange(len(zone.target))
    # Rows hold the forecasts of the day after: this row's is out at 18:00 of its own day.
    out = (hours // DAY + 1) * DAY - 6
    blind = replace(
        zone,
        target=np.where(hours >= origin, 999.0, zone.target),
        said=np.where((out > origin)[:, None], 1e6, zone.said),
    )
    assert ExogenousForecast(grid, blind).slots(now, now + 5 * DAY * HOUR) == told
    other = replace(zone, said=np.where((out == origin - 2)[:, None], 0.0, zone.said))
    assert ExogenousForecast(grid, other).slots(now, now + 5 * DAY * HOUR) != told
    truth = zone.target[origin : origin + DAY]
    ours = [slot.g_per_kwh for slot in told[1 : 1 + DAY]]
    own = [slot.g_per_kwh for slot in OwnForecast(grid).slots(now, now + 2 * DAY * HOUR)[1:25]]
    assert np.abs(np.array(ours) - truth).mean() < np.abs(np.array(own) - truth).mean()


def test_bench_takes_a_file_as_trace_and_as_exogenous(path: Path, zone: WeatherZone) -> None:
    """The same file does for both; another zone, or a grid it does not cover, is refused."""
    grid = read(path)
    assert grid.zone == "WINDY"
    assert grid.values == pytest.approx(zone.target.tolist(), abs=1e-6)
    asked = ReplayRequest(catalogue=job(), slacks=(1.5,), count=1, exogenous=path)
    assert isinstance(forecast_of(asked, grid), ExogenousForecast)
    truth_first = forecast_of(replace(asked, forecast="perfect-24h"), grid)
    assert isinstance(truth_first, ForesightForecast)
    assert isinstance(truth_first.beyond, ExogenousForecast)
    with pytest.raises(InputInvalid, match="'ATLANTIS'"):
        forecast_of(asked, replace(grid, zone="ATLANTIS"))
    with pytest.raises(InputInvalid, match="does not cover"):
        ExogenousForecast(replace(grid, start=grid.start - DAY * HOUR), zone)
    with pytest.raises(InputInvalid, match="not hourly"):
        ExogenousForecast(replace(grid, step=HOUR / 2), zone)


def test_starts_are_not_before_the_day_that_was_asked_for(zone: WeatherZone) -> None:
    """So that only the months that nothing was learned on are replayed."""
    grid = hourly(zone, 0, len(zone.target))
    since = START + 200 * DAY * HOUR
    month = timedelta(days=30)
    found = starts(grid, window=month, history=month, count=4, since=since)
    assert found[0] == since
    assert len(found) == 4
    assert starts(grid, window=month, history=month, count=4)[0] == START + month
    assert len(grid.values) == DAYS * DAY


def test_the_benchmark_names_files_that_cannot_be_scored(tmp_path: Path) -> None:
    """A folder of short files gives rows with the reason, and no goal that is met."""
    weather_csv(tmp_path / "short.csv", days=50)
    report = measure(Namespace(data=str(tmp_path)))
    assert any("50 days" in str(row.get("skipped")) for row in report.rows)
    assert not any(goal.ok for goal in report.goals)
