"""WattTime over real HTTP: what is told, how it logs in, and what each of its faults becomes."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.clock import Clock
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    NotEntitled,
    RateLimited,
    SourceRefused,
    Transient,
    UnknownZone,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.grid_server import Fault, GridServer, Measure
from wattmesh.integrations.carbon.reading.answers import ErrorAnswer
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.watttime import WattTime
from wattmesh.integrations.carbon.watttime_answers import (
    G_PER_KWH,
    RegionQuery,
    forecast,
    observed,
    verdict,
)
from wattmesh.telemetry.carbon import CarbonBatch, CarbonPoint, Provider, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 18, 42, tzinfo=UTC)
RUNNING = NOW.replace(minute=40)
STEP = timedelta(minutes=5)
HOUR = timedelta(hours=1)
ZONE = "CAISO_NORTH"
USER, PASSWORD = "ann", "correct horse"
SERVICE = "watttime"
OPENED: list[JsonHttp] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Let the request threads of a test end with it."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def clock() -> Clock:
    """Give the one clock."""
    return Clock(NOW)


@pytest.fixture
def grid(clock: Clock) -> Iterator[GridServer]:
    """Give a running grid server that knows one account."""
    with GridServer(clock=clock, accounts={USER: PASSWORD}).serving() as server:
        yield server


def provider(grid: GridServer, **more: Any) -> WattTime:
    """Give a provider that asks the server, impatiently."""
    http = JsonHttp(
        grid.base(SERVICE), patience=PATIENT, pause=lambda _: None, breaker=Breaker(failures=1000)
    )
    OPENED.append(http)
    login = {"zone": ZONE, "username": USER, "password": PASSWORD}
    return WattTime(http=http, **(login | more))


def by_start(points: tuple[CarbonPoint, ...]) -> dict[datetime, CarbonPoint]:
    """Index points; each interval must be there once, oldest first."""
    index = {point.start: point for point in points}
    assert list(index) == sorted(index)
    assert len(index) == len(points)
    return index


def test_latest_is_the_nowcast_of_the_running_five_minutes(grid: GridServer) -> None:
    """The value for now comes from the forecast over no hours, never from the past."""
    wt: Provider = provider(grid)
    (point,) = wt.latest(NOW).points
    assert (point.start, point.end - point.start) == (RUNNING, STEP)
    assert point.quality is Quality.PROVISIONAL
    assert point.model == "co2_moer 2026-03-01 nowcast"
    assert point.signal == Signal(provider=SERVICE, zone=ZONE, kind="marginal")
    assert grid.count(SERVICE, "horizon_hours=0") == 1
    assert grid.count(SERVICE, "historical") == 0


def test_pounds_per_megawatt_hour_become_grams_per_kilowatt_hour(grid: GridServer) -> None:
    """The final value of an old interval is the truth, to the tenth of a pound it is told in."""
    start = RUNNING - timedelta(days=5)
    (point,) = provider(grid).history(start, start + STEP, now=NOW).points
    truth = grid.grid.truth(ZONE, start, STEP, Measure.MARGINAL)
    assert point.g_per_kwh == pytest.approx(truth, abs=0.05 * G_PER_KWH + 1e-9)
    assert point.quality is Quality.MEASURED


def test_history_in_thirty_days_gives_each_interval_once(grid: GridServer) -> None:
    """Both ends of a request are inclusive: the borders come twice and are taken once."""
    start = RUNNING - timedelta(days=61)
    points = by_start(provider(grid).history(start, RUNNING, now=NOW).points)
    assert list(points) == [start + i * STEP for i in range(61 * 288)]
    assert grid.count(SERVICE, "v3/historical") == 3


def test_times_are_sent_with_their_zone(grid: GridServer) -> None:
    """A naive time would be refused there; ours end in Z."""
    provider(grid).history(RUNNING - HOUR, RUNNING, now=NOW)
    (asked,) = [each.path for each in grid.asked if "historical" in each.path]
    assert "start=2026-11-20T17%3A40%3A00Z" in asked
    assert "end=2026-11-20T18%3A40%3A00Z" in asked


def test_forecast_is_one_issue_from_the_running_interval_on(grid: GridServer) -> None:
    """All points have one issue and the model's date; at most 72 hours are asked for."""
    batch = provider(grid).forecast(24, now=NOW)
    assert list(by_start(batch.points)) == [RUNNING + i * STEP for i in range(288)]
    assert {(p.quality, p.issued_at, p.model) for p in batch.points} == {
        (Quality.FORECAST, RUNNING, "co2_moer 2026-03-01")
    }
    provider(grid).forecast(500, now=NOW)
    assert grid.count(SERVICE, "horizon_hours=72") == 1


def test_the_average_is_hourly_late_and_has_no_forecast(grid: GridServer) -> None:
    """co2_aoer is another series: average, of the past only, and its lag says so."""
    wt = provider(grid, signal_type="co2_aoer")
    assert wt.signal == Signal(provider=SERVICE, zone=ZONE, kind="average")
    assert wt.forecast(24, now=NOW) == CarbonBatch(points=())
    assert (wt.series.interval_s, wt.series.forecast_s) == (3600.0, 0.0)
    assert wt.series.lag_s >= 3600.0
    newest = wt.latest(NOW).points[-1]
    assert (newest.start, newest.quality) == (NOW.replace(hour=17, minute=0), Quality.MEASURED)


def test_one_token_serves_25_minutes(grid: GridServer, clock: Clock) -> None:
    """Many requests, one login; after 25 minutes the next one, before the token dies."""
    wt = provider(grid)
    for minutes in (0, 5, 24, 25, 49, 50):
        clock.now = NOW + timedelta(minutes=minutes)
        assert wt.latest(clock.now).points
    assert grid.count(SERVICE, "login") == 3
    assert grid.count(SERVICE, "forecast") == 6


def test_a_clock_set_back_costs_a_login_and_nothing_else(grid: GridServer, clock: Clock) -> None:
    """A token from the future is not trusted."""
    wt = provider(grid)
    wt.latest(NOW)
    clock.now = NOW - HOUR
    assert wt.latest(clock.now).points
    assert grid.count(SERVICE, "login") == 2


def test_a_token_that_dies_mid_run_costs_one_login(grid: GridServer) -> None:
    """401 in the middle of a long history: one login, the request again, nothing lost."""
    wt = provider(grid)
    wt.latest(NOW)
    grid.fail(Fault.TOKEN_EXPIRED, provider=SERVICE, path="historical", times=1)
    points = wt.history(RUNNING - timedelta(days=40), RUNNING, now=NOW).points
    assert len(points) == 40 * 288
    assert grid.count(SERVICE, "login") == 2


def test_a_token_that_is_never_taken_ends_after_one_more_login(grid: GridServer) -> None:
    """401 for ever is a refusal after one login more, not a loop."""
    wt = provider(grid)
    wt.latest(NOW)
    grid.fail(Fault.UNAUTHORIZED, provider=SERVICE, path="forecast")
    with pytest.raises(AuthFailed):
        wt.latest(NOW)
    assert grid.count(SERVICE, "login") == 2
    assert grid.count(SERVICE, "forecast") == 3


def test_a_wrong_password_is_tried_once_in_half_an_hour(grid: GridServer, clock: Clock) -> None:
    """403 in HTML at the login: said, not repeated, tried again after a while."""
    wt = provider(grid, password="wrong horse")
    for _ in range(3):
        with pytest.raises(AuthFailed, match="check username and password"):
            wt.latest(clock.now)
    assert grid.count(SERVICE, "login") == 1
    clock.now += timedelta(minutes=30)
    with pytest.raises(AuthFailed):
        wt.latest(clock.now)
    assert grid.count(SERVICE) == 2


def test_invalid_scope_is_a_plan_that_does_not_cover_it(grid: GridServer) -> None:
    """403 in JSON: another region than the plan's; no login is tried again for it."""
    grid.fail(Fault.INVALID_SCOPE, provider=SERVICE, path="v3")
    wt = provider(grid)
    with pytest.raises(NotEntitled, match="CAISO_NORTH may be asked"):
        wt.latest(NOW)
    assert grid.count(SERVICE, "login") == 1
    assert grid.count(SERVICE, "forecast") == 1


def test_warnings_are_told(grid: GridServer) -> None:
    """What WattTime warns of becomes a sentence; its values are used."""
    grid.fail(Fault.WARNINGS, provider=SERVICE)
    batch = provider(grid).forecast(1, now=NOW)
    assert batch.points
    assert batch.refused == ("WattTime warns: This is just an example (EXAMPLE_WARNING).",)


def test_a_change_of_model_is_told_once(grid: GridServer) -> None:
    """Values before and after are of different models: the points name theirs, one sentence too."""
    wt = provider(grid)
    assert wt.forecast(1, now=NOW).refused == ()
    grid.fail(Fault.MODEL_CHANGED, provider=SERVICE)
    batch = wt.forecast(1, now=NOW)
    assert {point.model for point in batch.points} == {"co2_moer 2026-10-01"}
    assert "changed from 2026-03-01 to 2026-10-01" in batch.refused[0]
    assert wt.forecast(1, now=NOW).refused == ()


def test_imputed_rows_are_estimated(grid: GridServer) -> None:
    """What WattTime filled in is no measurement."""
    grid.fail(Fault.IMPUTED, provider=SERVICE)
    batch = provider(grid).history(RUNNING - HOUR, RUNNING, now=NOW)
    assert {point.quality for point in batch.points} == {Quality.ESTIMATED}


@pytest.mark.parametrize(
    "ask",
    [
        lambda wt: wt.latest(NOW),
        lambda wt: wt.forecast(24, now=NOW),
        lambda wt: wt.history(NOW - HOUR, NOW, now=NOW),
    ],
)
def test_percentiles_are_refused(grid: GridServer, ask: Callable[[WattTime], CarbonBatch]) -> None:
    """A rank from 0 to 100 would look like a very clean grid."""
    grid.fail(Fault.PERCENTILE, provider=SERVICE)
    with pytest.raises(SourceRefused, match="no intensity"):
        ask(provider(grid))


def test_an_answer_for_another_region_is_refused(grid: GridServer) -> None:
    """The region that the answer names must be the one asked for."""
    grid.fail(Fault.WRONG_ZONE, provider=SERVICE)
    with pytest.raises(ZoneMismatch, match="asked for 'CAISO_NORTH'"):
        provider(grid).latest(NOW)


def test_a_marginal_rate_may_be_nothing(grid: GridServer) -> None:
    """Zeros among high values are told: that is curtailment, not an outage."""
    grid.fail(Fault.ZERO, provider=SERVICE, about=(RUNNING - 3 * STEP, RUNNING - STEP))
    batch = provider(grid).history(RUNNING - HOUR, RUNNING, now=NOW)
    assert batch.refused == ()
    assert [point.g_per_kwh for point in batch.points[-3:-1]] == [0.0, 0.0]


def test_a_zero_average_is_refused(grid: GridServer) -> None:
    """The average of a whole grid is never 0."""
    hour = NOW.replace(hour=15, minute=0)
    grid.fail(Fault.ZERO, provider=SERVICE, about=(hour, hour + HOUR))
    batch = provider(grid, signal_type="co2_aoer").history(hour - HOUR, hour + 2 * HOUR, now=NOW)
    assert [point.start for point in batch.points] == [hour - HOUR, hour + HOUR]
    assert "which no grid reaches" in batch.refused[0]


def test_a_null_and_a_gap_are_no_points(grid: GridServer) -> None:
    """An interval without a value and one left out are missing, never zero."""
    grid.fail(Fault.NULL, provider=SERVICE, about=(RUNNING - 3 * STEP, RUNNING - 2 * STEP))
    grid.fail(Fault.GAP, provider=SERVICE, about=(RUNNING - 6 * STEP, RUNNING - 5 * STEP))
    batch = provider(grid).history(RUNNING - HOUR, RUNNING, now=NOW)
    missing = {RUNNING - 3 * STEP, RUNNING - 6 * STEP}
    assert len(batch.points) == 10
    assert not missing & set(by_start(batch.points))
    assert len(batch.refused) == 1


def test_nothing_known_is_no_data(grid: GridServer) -> None:
    """An empty list and a 404 mean: ask later."""
    wt = provider(grid)
    for fault in (Fault.EMPTY, Fault.NO_DATA):
        grid.fail(fault, provider=SERVICE, path="v3")
        for ask in (wt.latest, lambda now: wt.history(NOW - HOUR, NOW, now=now)):
            with pytest.raises(NoData):
                ask(NOW)
        grid.mend()


def test_asked_too_often_and_outages_are_for_later(grid: GridServer) -> None:
    """429 says how long; 500 at the login or later is an outage, not a wrong password."""
    grid.fail(Fault.SERVER_ERROR, provider=SERVICE, path="login", times=3)
    wt = provider(grid)
    with pytest.raises(Transient, match="login"):
        wt.latest(NOW)
    grid.fail(Fault.RATE_LIMITED, provider=SERVICE, path="v3", retry_after_s=250)
    with pytest.raises(RateLimited) as caught:
        wt.latest(NOW)
    assert caught.value.retry_after_s == 250


def test_capabilities_are_those_of_the_account(grid: GridServer) -> None:
    """Endpoints, models and the oldest day as my-access tells them; none for another region."""
    told = provider(grid).capabilities(NOW)
    assert (told.latest, told.history, told.forecast) == (True, True, True)
    assert (told.models, told.history_since) == (("2026-03-01",), datetime(2021, 1, 1, tzinfo=UTC))
    late = provider(grid, signal_type="co2_aoer").capabilities(NOW)
    assert (late.history, late.forecast) == (True, False)
    with pytest.raises(NotEntitled, match="no access to co2_moer of NOWHERE"):
        provider(grid, zone="NOWHERE").capabilities(NOW)


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 8, 8, tzinfo=UTC), datetime(2026, 11, 1, 7, tzinfo=UTC)]
)
def test_days_of_a_clock_change_have_all_their_intervals(
    grid: GridServer, clock: Clock, day: datetime
) -> None:
    """Summer time begins or ends in California: each five minutes once."""
    clock.now = day + timedelta(days=3)
    points = by_start(provider(grid).history(day, day + 24 * HOUR, now=clock.now).points)
    assert list(points) == [day + i * STEP for i in range(288)]


ASKED = RegionQuery(region=ZONE, signal_type="co2_moer", step=STEP)
META = {
    "data_point_period_seconds": 300,
    "region": ZONE,
    "signal_type": "co2_moer",
    "units": "lbs_co2_per_mwh",
    "model": {"date": "2026-03-01"},
}
ROW = {"point_time": "2026-11-20T18:30:00+00:00", "value": 1000.0}


def test_a_pound_is_453_grams_and_a_bit() -> None:
    """1000 lb/MWh are 453.59237 g/kWh."""
    (row,) = observed({"data": [ROW], "meta": META}, ASKED, NOW).reading.rows
    assert row.g_per_kwh == pytest.approx(453.59237, rel=1e-15)


def test_a_forecast_that_begins_in_the_past_is_cut() -> None:
    """Intervals that are over are no forecast any more; the running one still is."""
    rows = [ROW | {"point_time": f"2026-11-20T18:{m}:00+00:00"} for m in (30, 35, 40, 45)]
    told = forecast({"data": rows, "meta": META}, ASKED, NOW).reading
    assert [row.start for row in told.rows] == [RUNNING, RUNNING + STEP]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ([], Transient),
        ({"data": [ROW]}, Transient),
        ({"data": ["x"], "meta": META}, Transient),
        ({"data": [], "meta": META}, NoData),
        ({"data": [ROW], "meta": META | {"region": None}}, ZoneMismatch),
        ({"data": [ROW], "meta": META | {"signal_type": "health_damage"}}, SourceRefused),
        ({"data": [ROW], "meta": META | {"units": "kg_co2_per_mwh"}}, SourceRefused),
        ({"data": [ROW], "meta": META | {"units": None}}, SourceRefused),
        ({"data": [ROW], "meta": META | {"data_point_period_seconds": 3600}}, SourceRefused),
    ],
)
def test_an_answer_that_is_not_what_was_asked_is_refused_whole(
    body: Any, error: type[WattmeshError]
) -> None:
    """Another region, signal, unit or step: nothing of it is used."""
    for read in (observed, forecast):
        with pytest.raises(error):
            read(body, ASKED, NOW)


@pytest.mark.parametrize(
    "bad", [{"value": "870"}, {"value": False}, {"point_time": "2026-11-20T18:30:00"}]
)
def test_a_row_that_cannot_be_read_is_refused_alone(bad: dict[str, Any]) -> None:
    """A text instead of a number or a time without a zone costs its own row only."""
    told = observed({"data": [ROW, ROW | bad], "meta": META}, ASKED, NOW).reading
    assert (len(told.rows), len(told.refused)) == (1, 1)


@pytest.mark.parametrize(
    ("status", "content_type", "body", "error"),
    [
        (403, "application/json", b'{"error": "x", "message": "Invalid scope."}', NotEntitled),
        (403, "text/html", b"<html>403 Forbidden</html>", AuthFailed),
        (400, "application/json", b'{"error": "Invalid region: XX"}', UnknownZone),
        (400, "application/json", b'{"error": "Invalid start"}', None),
        (500, "text/html", b"<html></html>", None),
    ],
)
def test_refusals_are_told_apart_by_their_body(
    status: int, content_type: str, body: bytes, error: type[WattmeshError] | None
) -> None:
    """JSON speaks of the plan, HTML of the account; the rest is read as HTTP means it."""
    told = verdict(ErrorAnswer(status=status, content_type=content_type, body=body))
    assert (told.error if told else None) is error


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"signal_type": "health_damage"}, "co2_moer, co2_aoer"),
        ({"zone": "A:B"}, "not a region"),
        ({"username": "a:b"}, "a user without ':'"),
        ({"password": ""}, "and a password"),
    ],
)
def test_a_choice_that_is_not_offered_is_refused(choice: dict[str, str], words: str) -> None:
    """Before anything is asked, with what there is."""
    chosen: dict[str, Any] = {"zone": ZONE, "username": USER, "password": PASSWORD, **choice}
    with pytest.raises(InputInvalid, match=words):
        WattTime(**chosen)
