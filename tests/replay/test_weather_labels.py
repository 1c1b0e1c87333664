"""Which hours rows are for: a change of labelling is found by what was known, and stated."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tests.builders.weather import Relabelled, weather_csv
from tests.policies.forecasting.windy import DAY, panel, wind_mw
from wattmesh.controller.replay.weather_file import WeatherZone, read_weather
from wattmesh.controller.replay.weather_labels import (
    Array,
    Counterpart,
    Judgement,
    evidence,
    judged,
    moved,
    moves,
    repeated,
)

DAYS = 250
CHANGED = 150
HOUR = timedelta(hours=1)
FOUND_DAYS = 21
"""Without a repeated day, a change is found within so many."""


def read(folder: Path, then: Relabelled | None = None, shift_h: int = 24) -> WeatherZone:
    """A zone of a file that is written so."""
    weather_csv(folder / "x.csv", days=DAYS, shift_h=shift_h, then=then)
    return read_weather(folder / "x.csv")


def off(zone: WeatherZone, origin: int, days: range) -> float:
    """How far the wind that is told of some days at `origin` is from what blew, in its means."""
    wind = wind_mw(DAYS)
    hours = slice(days.start * DAY, days.stop * DAY)
    told = zone.panel(origin).until(origin).values[hours, 0]
    assert np.isfinite(told).all()
    return float(np.abs(told - wind[hours]).mean() / wind.mean())


def test_rows_that_become_their_own_days_are_read_right_from_the_first(tmp_path: Path) -> None:
    """That day stands twice, and both labellings agree on it: no day is ever misread."""
    zone = read(tmp_path, Relabelled(day=CHANGED, shift_h=0))
    assert [(each.since, each.shift_h) for each in zone.labels[0]] == [(0, 24), (CHANGED * DAY, 0)]
    assert zone.labels[0][1].known_at == CHANGED * DAY + 18
    for day in range(CHANGED - 3, CHANGED + 4):
        assert off(zone, day * DAY - 6, range(day - 5, day + 1)) < 0.15
    assert "24 from 2026-01-01" in zone.labelled()
    assert f"0 from {zone.start + CHANGED * DAY * HOUR:%Y-%m-%d} (known" in zone.labelled()


@pytest.mark.parametrize(("before", "after"), [(24, 0), (0, 24)])
def test_without_a_repeated_day_agreement_finds_the_change(
    tmp_path: Path, before: int, after: int
) -> None:
    """Within three weeks; then the days in between are put right too, and not before."""
    zone = read(tmp_path, Relabelled(day=CHANGED, shift_h=after, anew=1.01), before)
    first, second = zone.labels[0]
    assert (first.shift_h, second.shift_h) == (before, after)
    assert abs(second.since / DAY - CHANGED) <= 1
    assert CHANGED * DAY < second.known_at <= (CHANGED + FOUND_DAYS) * DAY
    told = second.known_at // DAY
    days = range(CHANGED + 2, told - 1)
    assert off(zone, second.known_at - 1, days) > 0.2
    assert off(zone, second.known_at, days) < 0.15


@pytest.mark.parametrize("shift_h", [0, 24])
def test_a_file_that_never_changes_is_left_alone(tmp_path: Path, shift_h: int) -> None:
    """One judgement, for all rows; from then on, only what each hour is told of is read."""
    zone = read(tmp_path, shift_h=shift_h)
    assert [(each.since, each.shift_h) for each in zone.labels[0]] == [(0, shift_h)]
    known_at = zone.labels[0][0].known_at
    assert known_at <= 30 * DAY
    assert not np.isfinite(zone.panel(known_at - 1).values).any()
    late, early = zone.panel(DAYS * DAY), zone.panel(known_at)
    np.testing.assert_array_equal(late.values, early.values)


def test_a_day_that_was_filled_with_the_day_before_is_put_right(tmp_path: Path) -> None:
    """It looks like a change of labelling; agreement overthrows that within three weeks."""
    wind = wind_mw(DAYS)
    rows = np.roll(panel(wind).values[:, 0], -DAY)
    rows[CHANGED * DAY : (CHANGED + 1) * DAY] = rows[(CHANGED - 1) * DAY : CHANGED * DAY]
    told = judged([rows], [[Counterpart(said=rows, seen=wind)]])
    assert [each.shift_h for each in told] == [24, 0, 24]
    assert told[2].known_at <= (CHANGED + FOUND_DAYS) * DAY
    assert abs(told[2].since / DAY - CHANGED) <= 1


def until(values: Array, hours: int) -> Array:
    """What was known of a series before an hour; what comes after is nonsense."""
    return np.where(np.arange(len(values)) < hours, values, 1e6 * np.cos(np.arange(len(values))))


def judged_by(day: int, judge: Mapping[str, int]) -> Sequence[Judgement]:
    """Judgements up to 18:00 of a day, with what is known then; `judge` moves what is changed."""
    wind = wind_mw(DAYS)
    rows = np.roll(panel(wind).values[:, 0], -DAY)
    rows[CHANGED * DAY :] = 1.01 * panel(wind).values[CHANGED * DAY :, 0]
    rows = until(rows, (day + 1 + judge.get("rows", 0)) * DAY)
    seen = until(wind, (day + judge.get("seen", 0)) * DAY)
    told = judged([rows], [[Counterpart(said=rows, seen=seen)]])
    return [each for each in told if each.known_at <= day * DAY + 18]


@pytest.mark.parametrize("day", [6, 9, CHANGED, CHANGED + 5, CHANGED + 9, CHANGED + 13])
def test_a_judgement_reads_nothing_that_came_after_it(day: int) -> None:
    """Other rows after its day, and other observations from its day on, change no judgement."""
    told = judged_by(day, {})
    assert told == judged_by(day, {"rows": DAYS, "seen": DAYS})
    assert len(told) <= 2


def test_a_judgement_that_leaks_is_caught() -> None:
    """Sabotaged twin: judged a few days early by what came later, the same comparison differs."""

    def early(judgements: Sequence[Judgement]) -> list[Judgement]:
        return [
            Judgement(known_at=each.known_at - 5 * DAY, since=each.since, shift_h=each.shift_h)
            for each in judgements
        ]

    wind = wind_mw(DAYS)
    rows = np.roll(panel(wind).values[:, 0], -DAY)
    day = judged([rows], [[Counterpart(said=rows, seen=wind)]])[0].known_at // DAY - 5
    blind, seen = until(rows, (day + 1) * DAY), until(wind, day * DAY)
    honest, leaking = (
        [
            each
            for each in early(judged([one], [[Counterpart(said=one, seen=other)]]))
            if each.known_at <= day * DAY + 18
        ]
        for one, other in ((blind, seen), (rows, wind))
    )
    assert leaking != honest


def test_what_is_held_against_what() -> None:
    """The first witness that knows a day speaks for it; without any, rows are of their own hour."""
    wind = wind_mw(60)
    rows = np.roll(wind, -DAY)
    nothing = np.full_like(wind, np.nan)
    some = [Counterpart(said=rows, seen=nothing), Counterpart(said=rows, seen=-wind, sign=-1.0)]
    assert [each.shift_h for each in judged([rows], [some])] == [24]
    assert judged([rows], [some[:1]]) == ()
    assert [each.shift_h for each in judged([rows], [])] == [0]
    assert np.isnan(evidence(some[0])).all()


def test_only_a_lively_day_can_be_repeated() -> None:
    """A dark or calm day says nothing; a column that is unknown does not speak against."""
    wind = wind_mw(4)
    wind[2 * DAY : 3 * DAY] = wind[DAY : 2 * DAY]
    calm = np.zeros_like(wind)
    assert repeated([wind, calm, np.full_like(wind, np.nan)]).tolist() == [0, 0, 1, 0]
    assert not repeated([calm]).any()
    assert not repeated([wind, wind_mw(4, seed=9)]).any()


def test_of_two_rows_for_one_hour_the_later_holds() -> None:
    """And an hour that no row is for is unknown."""
    rows = np.repeat([1.0, 2.0, 3.0, 4.0], DAY)
    changes = [
        Judgement(known_at=0, since=0, shift_h=24),
        Judgement(known_at=9, since=48, shift_h=0),
    ]
    shift_h = moves(changes, len(rows), 9)
    told = moved(rows, shift_h)[::DAY]
    np.testing.assert_array_equal(told, [np.nan, 1.0, 3.0, 4.0, np.nan])
    back = moved(rows, 24.0 - shift_h)[::DAY]
    np.testing.assert_array_equal(back, [1.0, 2.0, np.nan, 3.0, 4.0])
    assert np.isnan(moves(changes, len(rows), -1)).all()
