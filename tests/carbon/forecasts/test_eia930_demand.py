"""EIA-930's demand forecast over real HTTP: hours, when they count as known, and each fault."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.forecasts.known import too_early
from tests.carbon.providers.one_answer import answering
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    RateLimited,
    SourceUnavailable,
    Transient,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.exogenous.eia930 import Eia930Demand, posted_by
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.grid_server.exogenous.eia930_demand import forecast_mwh, told_from
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind, ExogenousProvider

NOW = datetime(2026, 11, 20, 23, 30, tzinfo=UTC)
"""Half past six in the evening on the East coast: the next day is told."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
RUNNING = NOW.replace(minute=0)
PAST = (RUNNING - 5 * DAY, RUNNING - DAY)
KEY = "eia-key-0123456789"


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one key."""
    with GridServer(clock=lambda: NOW, keys=frozenset({KEY})).serving() as server:
        yield server


def demand(base: str, *, key: str = KEY, zone: str = "PJM", **more: Any) -> Eia930Demand:
    """The product's client."""
    http = JsonHttp(base, patience=PATIENT, pause=lambda _: None)
    return Eia930Demand(zone=zone, key=key, http=http, **more)


def values(batch: ExogenousBatch) -> dict[datetime, float]:
    """Values by the start of the hour."""
    assert {point.kind for point in batch.points} <= {ExogenousKind.LOAD}
    return {point.start: point.value for point in batch.points}


def test_hours_stand_where_their_label_ends_and_reach_to_the_end_of_tomorrow(
    grid: GridServer,
) -> None:
    """Forecasts alone, not what was measured; text and numbers are read alike."""
    source: ExogenousProvider = demand(grid.base("eia930"))
    told = source.forecast(now=NOW)
    assert told.refused == ()
    last = datetime(2026, 11, 22, 4, tzinfo=UTC)  # eleven at night in the East
    assert list(values(told)) == [RUNNING - DAY + n * HOUR for n in range(24 + 30)]
    assert max(values(told)) == last
    assert all(value == forecast_mwh("PJM", start) for start, value in values(told).items())
    assert {point.kind for point in told.points} == set(source.kinds)
    grid.fail(Fault.NUMBERS, provider="eia930")
    assert source.forecast(now=NOW) == told


def test_another_label_moves_the_series_by_an_hour(grid: GridServer) -> None:
    """`starting` takes the label as the beginning of the hour."""
    ending = values(demand(grid.base("eia930")).past_forecasts(*PAST, now=NOW))
    moved = values(demand(grid.base("eia930"), label="starting").past_forecasts(*PAST, now=NOW))
    assert [moved[start + HOUR] for start in ending if start + HOUR in moved] == [
        value for start, value in ending.items() if start + HOUR in moved
    ]
    assert ending != moved


@pytest.mark.parametrize("late", [False, True])
def test_nothing_is_known_before_it_was_told(grid: GridServer, late: bool) -> None:
    """The server told each hour at a moment; however late that was, we claim none earlier."""
    if late:
        grid.fail(Fault.LATE_ISSUE, provider="eia930")
    source = demand(grid.base("eia930"))
    points = source.forecast(now=NOW).points + source.past_forecasts(*PAST, now=NOW).points
    assert len(points) > 100
    assert too_early(points, lambda start: told_from(start, late=late)) == []
    assert all(point.issued_at <= point.fetched_at == NOW for point in points)
    assert all(point.issued_at == min(NOW, posted_by(point.start)) for point in points)
    # What came in time is known from when it was fetched, not from when it had to be there.
    ahead = [point for point in points if posted_by(point.start) > NOW]
    assert bool(ahead) is not late
    assert {point.issued_at for point in ahead} <= {NOW}


@pytest.mark.parametrize("back", [timedelta(), DAY])
def test_an_issue_time_made_of_the_hour_itself_is_caught(grid: GridServer, back: timedelta) -> None:
    """The sabotaged twins: an hour known as it begins, or a day before it."""
    grid.fail(Fault.LATE_ISSUE, provider="eia930")
    points = demand(grid.base("eia930")).past_forecasts(*PAST, now=NOW).points
    claimed = [replace(point, issued_at=point.start - back) for point in points]
    assert too_early(claimed, lambda start: told_from(start, late=True))


@pytest.mark.parametrize(("day", "hour"), [((2026, 7, 10), 11), ((2026, 12, 10), 12)])
def test_a_day_counts_as_posted_at_seven_in_the_east(day: tuple[int, int, int], hour: int) -> None:
    """In summer and winter time, for each hour of the Eastern day and no other."""
    first = datetime(*day, hour - 7, tzinfo=UTC)
    posted = datetime(*day, hour, tzinfo=UTC)
    assert {posted_by(first + n * HOUR) for n in range(24)} == {posted}
    assert posted_by(first - HOUR) == posted - DAY


@pytest.mark.parametrize("day", [(2026, 3, 8), (2025, 11, 2)])
def test_days_on_which_clocks_change_have_no_hole(grid: GridServer, day: tuple[int, ...]) -> None:
    """Labels are UTC."""
    start = datetime(day[0], day[1], day[2], tzinfo=UTC)
    told = demand(grid.base("eia930")).past_forecasts(start, start + 2 * DAY, now=NOW)
    assert list(values(told)) == [start + n * HOUR for n in range(48)]


def test_long_spans_are_asked_for_in_parts_and_pages_by_offset(grid: GridServer) -> None:
    """Two hundred days in two questions; a part without any row is a hole, not the end."""
    start = RUNNING - 200 * DAY
    told = values(demand(grid.base("eia930")).past_forecasts(start, RUNNING, now=NOW))
    assert list(told) == [start + n * HOUR for n in range(200 * 24)]
    assert grid.count("eia930", "offset=0") == 2
    grid.fail(Fault.GAP, provider="eia930", about=(start - DAY, start + 181 * DAY))
    holed = values(demand(grid.base("eia930")).past_forecasts(start, RUNNING, now=NOW))
    assert min(holed) == start + 181 * DAY


def test_a_full_page_is_followed_by_the_next() -> None:
    """Five thousand rows are not all: the rest is asked for behind them."""
    with answering(page([None] * 5000)) as server:
        demand(server.url, zone="CISO").past_forecasts(NOW - DAY, NOW, now=NOW)
    offsets = [path.split("offset=")[1].split("&")[0] for path in server.asked]
    assert offsets[:3] == ["0", "5000", "10000"]
    assert len(offsets) == 40


def test_holes_nulls_and_what_cannot_be_true_are_no_points(grid: GridServer) -> None:
    """Each is one reason and no zero."""
    hour = PAST[0] + 3 * HOUR
    whole = values(demand(grid.base("eia930")).past_forecasts(*PAST, now=NOW))
    for fault, words in (
        (Fault.GAP, ""),
        (Fault.NULL, "'None', which is no number"),
        (Fault.ZERO, "outside 1 to"),
        (Fault.SPIKE, "outside 1 to"),
    ):
        grid.fail(fault, provider="eia930", about=(hour, hour + HOUR))
        told = demand(grid.base("eia930")).past_forecasts(*PAST, now=NOW)
        assert set(whole) - set(values(told)) == {hour}
        assert [words in why for why in told.refused] == [True] * bool(words)
        grid.mend()


def test_a_restated_value_is_told_as_it_is_now(grid: GridServer) -> None:
    """The journal keeps when each came."""
    hour = RUNNING + 5 * HOUR
    before = values(demand(grid.base("eia930")).forecast(now=NOW))
    grid.fail(Fault.REVISED, provider="eia930", about=(hour, hour + HOUR))
    after = values(demand(grid.base("eia930")).forecast(now=NOW))
    assert [start for start in before if before[start] != after[start]] == [hour]


def test_another_unit_is_refused(grid: GridServer) -> None:
    """Gigawatt-hours taken for megawatt-hours would be a thousandth."""
    grid.fail(Fault.WRONG_UNIT, provider="eia930")
    told = demand(grid.base("eia930")).forecast(now=NOW)
    assert told.points == ()
    assert told.refused == ("EIA sent DF in 'gigawatthours', not in megawatthours; left out",)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.WRONG_ZONE, ZoneMismatch, "'ELSE', asked for 'PJM'"),
        (Fault.EMPTY, NoData, "not every authority sends one"),
        (Fault.NOT_JSON, Transient, "not JSON"),
        (Fault.NOT_OBJECT, Transient, "no response.data"),
        (Fault.TRUNCATED, Transient, "eia930"),
        (Fault.HUGE, SourceUnavailable, "MiB"),
        (Fault.REDIRECT, SourceUnavailable, "redirect"),
        (Fault.RATE_LIMITED, RateLimited, "429"),
        (Fault.SERVER_ERROR, Transient, "500"),
        (Fault.BAD_REQUEST, SourceUnavailable, "400"),
        (Fault.FORBIDDEN_TEXT, AuthFailed, "token_file"),
        (Fault.CLOSED, Transient, "eia930"),
    ],
)
def test_each_fault_has_one_sentence_without_the_key(
    grid: GridServer, fault: Fault, error: type[WattmeshError], words: str
) -> None:
    """Whatever it answers, nothing is made up, and the next answer is used again."""
    grid.fail(fault, provider="eia930")
    with pytest.raises(error, match=words) as caught:
        demand(grid.base("eia930")).forecast(now=NOW)
    assert KEY not in str(caught.value)
    grid.mend()
    assert demand(grid.base("eia930")).forecast(now=NOW).points


def test_a_wrong_key_and_zones_that_cannot_be_are_named(grid: GridServer) -> None:
    """A region is a sum of which parts come late; a part of an authority has no forecast."""
    with pytest.raises(AuthFailed, match="invalid api_key") as caught:
        demand(grid.base("eia930"), key="eia-wrong-987654321").forecast(now=NOW)
    assert "eia-wrong" not in str(caught.value)
    for zone, words in (("US48", "sum over authorities"), ("PJM-AE", "no code of an authority")):
        with pytest.raises(InputInvalid, match=words):
            demand(grid.base("eia930"), zone=zone)
    with pytest.raises(InputInvalid, match="label"):
        demand(grid.base("eia930"), label="middle")
    assert grid.count("eia930") == 1


def row(**other: Any) -> dict[str, Any]:
    """One row as EIA writes it."""
    return {
        "period": "2026-11-21T02",
        "respondent": "CISO",
        "type": "DF",
        "value": "21000",
        "value-units": "megawatthours",
    } | other


def page(rows: list[Any]) -> dict[str, Any]:
    """An answer with rows."""
    return {"response": {"total": str(len(rows)), "data": rows}}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"type": "D"}, "type 'D', asked for DF"),
        ({"type": None}, "type 'None'"),
        ({"value": "12,000"}, "no number"),
        ({"value": True}, "no number"),
        ({"value": "1e999"}, "no number"),
        ({"value": -5}, "outside"),
        ({"value-units": None}, "not in megawatthours"),
        ({"period": "2026-11-20"}, "not an hour"),
        ({"period": 2026}, "not an hour"),
        ({"period": "0001-01-01T00"}, "not an hour"),
    ],
)
def test_a_row_that_is_not_a_forecast_of_an_hour_is_left_out(
    other: dict[str, Any], words: str
) -> None:
    """What was measured above all: taken for a forecast it would be known before it was."""
    sound = row(period="2026-11-21T03")
    with answering(page([row(**other), sound, [], None])) as server:
        told = demand(server.url, zone="CISO").forecast(now=NOW)
    assert list(values(told).values()) == [21000.0]
    assert words in told.refused[0]
    assert len(told.refused) == 3


@pytest.mark.parametrize("other", [{"subba": "PGAE", "parent": "CISO"}, {"respondent": "BANC"}])
def test_a_part_of_an_authority_is_another_zone(other: dict[str, str]) -> None:
    """The rows of sub-regions look alike."""
    with answering(page([row(**other)])) as server, pytest.raises(ZoneMismatch):
        demand(server.url, zone="CISO").forecast(now=NOW)
