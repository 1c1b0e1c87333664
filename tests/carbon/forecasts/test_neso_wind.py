"""NESO's wind forecast over real HTTP: half hours, when they count as known, and each fault."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.forecasts.known import too_early
from tests.carbon.providers.one_answer import answering
from wattmesh.errors import (
    InputInvalid,
    NoData,
    NotEntitled,
    RateLimited,
    SourceUnavailable,
    Transient,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.exogenous.neso import NesoWind, settlement_period
from wattmesh.integrations.carbon.exogenous.neso_portal import _classify
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.grid_server.exogenous.neso_portal import (
    NEWER,
    forecast_mw,
    made_ahead,
    taken_in,
)
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind, ExogenousProvider

NOW = datetime(2026, 10, 28, 12, 10, tzinfo=UTC)
HOUR, DAY, HALF_HOUR = timedelta(hours=1), timedelta(days=1), timedelta(minutes=30)
RUNNING = NOW.replace(minute=0)
PAST = (RUNNING - 12 * DAY, RUNNING - 2 * DAY)
"""Clocks change in it."""


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server."""
    with GridServer(clock=lambda: NOW).serving() as server:
        yield server


def wind(base: str) -> NesoWind:
    """The product's client."""
    return NesoWind(http=JsonHttp(base, patience=PATIENT, pause=lambda _: None))


def values(batch: ExogenousBatch) -> dict[datetime, float]:
    """Values by the start of the hour."""
    assert {point.kind for point in batch.points} <= {ExogenousKind.WIND}
    return {point.start: point.value for point in batch.points}


def archived_from(start: datetime, *, late: bool = False) -> datetime:
    """From when the archive tells both half hours of an hour."""
    return max(taken_in(at, late=late) for at in (start, start + HALF_HOUR))


def test_half_hours_become_hours_four_days_ahead_known_when_fetched(grid: GridServer) -> None:
    """Of the newest forecast; when it was made says only that it is not stale."""
    source: ExogenousProvider = wind(grid.base("neso"))
    told = source.forecast(now=NOW)
    assert told.refused == ()
    assert list(values(told)) == [RUNNING + n * HOUR for n in range(96)]
    made = made_ahead(NOW, late=False)
    for start, value in values(told).items():
        halves = [forecast_mw(at, made) for at in (start, start + HALF_HOUR)]
        assert value == pytest.approx(sum(halves) / 2)
    assert {point.issued_at for point in told.points} == {NOW}
    assert {point.kind for point in told.points} == set(source.kinds)
    assert grid.count("neso", "datastore_search_sql") == 1


@pytest.mark.parametrize("late", [False, True])
def test_the_past_is_known_from_when_the_archive_took_it_in(grid: GridServer, late: bool) -> None:
    """Often on the day itself, as its rows say; hours before that were never a day ahead."""
    if late:
        grid.fail(Fault.LATE_ISSUE, provider="neso")
    points = wind(grid.base("neso")).past_forecasts(*PAST, now=NOW).points
    assert [point.start for point in points] == [PAST[0] + n * HOUR for n in range(10 * 24)]
    assert too_early(points, lambda start: archived_from(start, late=late)) == []
    assert all(point.issued_at == archived_from(point.start, late=late) for point in points)


@pytest.mark.parametrize("back", [timedelta(), DAY])
def test_an_issue_time_made_of_the_hour_itself_is_caught(grid: GridServer, back: timedelta) -> None:
    """The sabotaged twins: an hour known as it begins, or a day before it."""
    points = wind(grid.base("neso")).past_forecasts(*PAST, now=NOW).points
    claimed = [replace(point, issued_at=point.start - back) for point in points]
    assert too_early(claimed, archived_from)


def test_a_half_hour_that_was_put_right_is_told_as_it_was_first(grid: GridServer) -> None:
    """The archive has two rows then; the later one was not known before its own moment."""
    before = wind(grid.base("neso")).past_forecasts(*PAST, now=NOW)
    grid.fail(Fault.REVISED, provider="neso", about=(PAST[0], PAST[0] + 5 * DAY))
    assert wind(grid.base("neso")).past_forecasts(*PAST, now=NOW) == before
    ahead = values(wind(grid.base("neso")).forecast(now=NOW))
    grid.mend()
    grid.fail(Fault.REVISED, provider="neso", about=(RUNNING, RUNNING + HOUR))
    after = values(wind(grid.base("neso")).forecast(now=NOW))
    assert [start for start in ahead if ahead[start] != after[start]] == [RUNNING]


@pytest.mark.parametrize(
    ("at", "date", "period"),
    [
        ("2026-03-29T00:00", "2026-03-29", 1),
        ("2026-03-29T22:30", "2026-03-29", 46),
        ("2026-03-29T23:00", "2026-03-30", 1),
        ("2025-10-25T23:00", "2025-10-26", 1),
        ("2025-10-26T23:30", "2025-10-26", 50),
        ("2026-07-10T12:00", "2026-07-10", 27),
    ],
)
def test_settlement_periods_count_from_midnight_in_london(at: str, date: str, period: int) -> None:
    """A day has 46 or 50 of them when clocks change."""
    assert settlement_period(datetime.fromisoformat(at).replace(tzinfo=UTC)) == (date, period)


@pytest.mark.parametrize("day", [(2026, 3, 29), (2025, 10, 26)])
def test_days_of_46_and_50_periods_are_whole(grid: GridServer, day: tuple[int, int, int]) -> None:
    """No hour of UTC is missing or told twice."""
    start = datetime(*day, tzinfo=UTC) - DAY
    told = wind(grid.base("neso")).past_forecasts(start, start + 3 * DAY, now=NOW)
    assert list(values(told)) == [start + n * HOUR for n in range(72)]
    assert told.refused == ()


def test_times_that_are_london_s_are_refused_by_their_settlement_period(grid: GridServer) -> None:
    """An hour too late in summer; in winter both are the same."""
    whole = values(wind(grid.base("neso")).past_forecasts(*PAST, now=NOW))
    grid.fail(Fault.LOCAL_TIME, provider="neso")
    told = wind(grid.base("neso")).past_forecasts(*PAST, now=NOW)
    winter = datetime(2026, 10, 25, 1, tzinfo=UTC)
    # The hour that stands twice on London's clocks is the second one's.
    assert values(told) == {at: value for at, value in whole.items() if at >= winter}
    assert "it is period" in told.refused[0]


def test_holes_nulls_and_what_cannot_be_true_are_no_points(grid: GridServer) -> None:
    """Each is one reason and no zero; half an hour of wind is not an hour's."""
    half = PAST[0] + 3 * HOUR
    whole = values(wind(grid.base("neso")).past_forecasts(*PAST, now=NOW))
    for fault, words in (
        (Fault.GAP, ""),
        (Fault.NULL, "'None' is no number"),
        (Fault.SPIKE, "9e+09 MW of a fleet of 25000 MW"),
    ):
        grid.fail(fault, provider="neso", about=(half, half + HALF_HOUR))
        told = wind(grid.base("neso")).past_forecasts(*PAST, now=NOW)
        assert set(whole) - set(values(told)) == {half}
        assert [words in why for why in told.refused] == [True] * bool(words)
        grid.mend()


def test_another_unit_shows_in_the_size_of_the_fleet(grid: GridServer) -> None:
    """No answer says a unit; gigawatts taken for megawatts would be a calm."""
    grid.fail(Fault.WRONG_UNIT, provider="neso")
    told = wind(grid.base("neso")).forecast(now=NOW)
    assert told.points == ()
    assert "a fleet of '25.0' MW is not that of GB" in told.refused[0]


def test_a_forecast_that_is_not_made_any_more_is_not_used(grid: GridServer) -> None:
    """It reaches two weeks ahead, and looks alive for as long."""
    grid.fail(Fault.LATE_ISSUE, provider="neso")
    with pytest.raises(NoData, match="39 h ago; it is not used"):
        wind(grid.base("neso")).forecast(now=NOW)


def test_new_ids_are_looked_up_once_and_kept(grid: GridServer) -> None:
    """The catalogue names the resource's id; a wind farm's resource beside it is not taken."""
    before = wind(grid.base("neso")).forecast(now=NOW)
    grid.fail(Fault.MOVED, provider="neso")
    source = wind(grid.base("neso"))
    assert source.forecast(now=NOW) == before
    assert source.forecast(now=NOW) == before
    assert source.past_forecasts(*PAST, now=NOW).points
    assert grid.count("neso", "package_show") == 2
    assert all(grid.count("neso", each) for each in NEWER.values())


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.WRONG_ZONE, ZoneMismatch, "single wind farms"),
        (Fault.NOT_SUCCESS, SourceUnavailable, "data store is not available"),
        (Fault.EMPTY, NoData, "NESO has no 14 Days Ahead Wind Forecast"),
        (Fault.NOT_JSON, Transient, "not JSON"),
        (Fault.NOT_OBJECT, Transient, "no answer of CKAN"),
        (Fault.TRUNCATED, Transient, "neso"),
        (Fault.HUGE, SourceUnavailable, "MiB"),
        (Fault.REDIRECT, SourceUnavailable, "redirect"),
        (Fault.RATE_LIMITED, RateLimited, "429"),
        (Fault.FORBIDDEN_HTML, RateLimited, "asks too often"),
        (Fault.SERVER_ERROR, Transient, "500"),
        (Fault.NO_DATA, NoData, "404"),
        (Fault.CLOSED, Transient, "neso"),
    ],
)
def test_each_fault_has_one_sentence(
    grid: GridServer, fault: Fault, error: type[WattmeshError], words: str
) -> None:
    """Whatever it answers, nothing is made up, and the next answer is used again."""
    grid.fail(fault, provider="neso")
    with pytest.raises(error, match=words):
        wind(grid.base("neso")).forecast(now=NOW)
    grid.mend()
    assert wind(grid.base("neso")).forecast(now=NOW).points


def test_a_failed_question_of_data_is_not_repeated_at_once(grid: GridServer) -> None:
    """Two a minute are asked for at most: the product's own client leaves it to the next poll."""
    grid.fail(Fault.SERVER_ERROR, provider="neso", path="datastore_search_sql")
    with pytest.raises(Transient, match="1 try"):
        NesoWind(base_url=grid.base("neso")).forecast(now=NOW)
    assert grid.count("neso") == 1


def test_only_great_britain_is_served() -> None:
    """The regions of its carbon forecast have no wind."""
    with pytest.raises(InputInvalid, match="it serves GB"):
        NesoWind(zone="13")


def row(**other: Any) -> dict[str, Any]:
    """One half hour as the archive writes it, in summer."""
    return {
        "_id": 1,
        "Datetime_GMT": "2026-07-10T12:00:00",
        "Date": "2026-07-10",
        "Settlement_period": 27,
        "Capacity": 24609,
        "Incentive_forecast": 9866,
        "Forecast_Timestamp": "2026-07-10T08:45:00",
    } | other


SECOND = row(Datetime_GMT="2026-07-10T12:30:00", Settlement_period=28, Incentive_forecast="9756")
SUMMER = (datetime(2026, 7, 10, 12, tzinfo=UTC), datetime(2026, 7, 10, 13, tzinfo=UTC))


def of_rows(*rows: Any, **result: Any) -> ExogenousBatch:
    """What the product makes of an answer with these rows."""
    document = {"success": True, "result": {"records": list(rows), **result}}
    with answering(document) as server:
        return wind(server.url).past_forecasts(*SUMMER, now=NOW)


def test_recorded_forms_are_read() -> None:
    """A date with a time behind it, text for numbers, a moment with an offset."""
    told = of_rows(row(Date="2026-07-10T00:00:00", Settlement_period="27"), SECOND)
    assert values(told) == {SUMMER[0]: 9811.0}
    assert told.points[0].issued_at == datetime(2026, 7, 10, 8, 45, tzinfo=UTC)
    again = row(Incentive_forecast=1, Forecast_Timestamp="2026-07-10T09:45:00")
    for rows in ((row(), again, SECOND), (again, SECOND, row())):
        assert of_rows(*rows).points == told.points  # the earliest holds, wherever it stands
    late = of_rows(row(Forecast_Timestamp="2026-07-12T09:05:35+01:00"), SECOND)
    assert late.points[0].issued_at == datetime(2026, 7, 12, 8, 5, 35, tzinfo=UTC)


@pytest.mark.parametrize("stamp", [None, "", "soon", "2031-01-01T00:00:00", 0])
def test_a_row_without_a_moment_that_can_be_is_known_now_and_not_before(stamp: Any) -> None:
    """The latest that it can have been."""
    assert of_rows(row(Forecast_Timestamp=stamp), SECOND).points[0].issued_at == NOW


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"Forecast_Timestamp": "2001-01-01T00:00:00"}, "earlier than any forecast"),
        ({"Settlement_period": 28}, "it is period 27 of 2026-07-10, not 28"),
        ({"Settlement_period": None}, "not None"),
        ({"Date": "2026-07-11"}, "not 27.0 of 2026-07-11"),
        ({"Datetime_GMT": "2026-07-10T12:10:00"}, "not a half hour"),
        ({"Datetime_GMT": None}, "not a half hour"),
        ({"Datetime_GMT": "9999-12-31T23:30:00-23:00"}, "not a half hour"),
        ({"Incentive_forecast": "1e999"}, "no number"),
        ({"Incentive_forecast": True}, "no number"),
        ({"Incentive_forecast": -3}, "outside"),
        ({"Capacity": None}, "is not that of GB"),
        ({"Capacity": 5e9}, "is not that of GB"),
    ],
)
def test_a_row_that_contradicts_itself_is_left_out(other: dict[str, Any], words: str) -> None:
    """Its hour has no point, and its reason is told."""
    told = of_rows(row(**other), SECOND)
    assert told.points == ()
    assert words in told.refused[0]


@pytest.mark.parametrize(
    ("rows", "result", "error"),
    [
        ([[]], {}, Transient),
        ([{"Datetime_GMT": "2026-07-10T12:00:00"}], {}, Transient),
        ([row(BMU_ID="T_ONE-1")], {}, ZoneMismatch),
        ([row()], {"sql": 'SELECT * FROM "another"'}, ZoneMismatch),
        ([row()], {"records_truncated": True}, SourceUnavailable),
        ([row()], {"records": {}}, Transient),
        ([{}] * 20_000, {}, SourceUnavailable),
    ],
)
def test_an_answer_of_another_form_is_no_answer(
    rows: list[Any], result: dict[str, Any], error: type[WattmeshError]
) -> None:
    """Missing columns, a wind farm's, the answer to another question, one cut short."""
    with pytest.raises(error):
        of_rows(*rows, **result)


def test_a_catalogue_that_names_something_else_is_not_put_into_a_question() -> None:
    """An id is hexadecimal characters and nothing that SQL would understand."""
    name = "Historic Day Ahead Wind Forecasts"
    evil = {"id": 'x"; DROP TABLE y; --', "name": name}
    document = {"success": True, "result": {"records": [], "resources": [None, evil]}}
    with answering(document) as server, pytest.raises(NoData):
        wind(server.url).past_forecasts(*SUMMER, now=NOW)
    assert not any("DROP" in path for path in server.asked)


def test_what_nobody_may_read_any_more_waits_for_a_person() -> None:
    """CKAN says so in its own form; a page of a proxy means: too often."""
    body = b'{"success": false, "error": {"__type": "Authorization Error"}}'
    told = _classify(ErrorAnswer(status=403, content_type="application/json", body=body))
    assert told is not None
    assert told.error is NotEntitled
