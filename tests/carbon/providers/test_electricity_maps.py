"""Electricity Maps over real HTTP: what is told, and what each of its faults becomes."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.carbon.asking import PATIENT
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    NotEntitled,
    RateLimited,
    SandboxData,
    SourceUnavailable,
    Transient,
    UnknownZone,
    WattmeshError,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.electricity_maps import ElectricityMaps
from wattmesh.integrations.carbon.grid_server import Fault, GridServer, Measure
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.carbon import CarbonPoint, Provider, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
KEY = "em-key-0123456789"
SERVICE = "electricity_maps"


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one key."""
    with GridServer(clock=lambda: NOW, keys=frozenset({KEY, "sandbox-1"})).serving() as server:
        yield server


OPENED: list[JsonHttp] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Let the request threads of a test end with it."""
    yield
    while OPENED:
        OPENED.pop().close()


def provider(grid: GridServer, *, key: str = KEY, zone: str = "DE", **more: Any) -> ElectricityMaps:
    """Give a provider that asks the server, impatiently."""
    base = grid.base(SERVICE).replace("/v4", f"/{more.get('api_version', 'v4')}")
    http = JsonHttp(base, patience=PATIENT, pause=lambda _: None, breaker=Breaker(failures=1000))
    OPENED.append(http)
    return ElectricityMaps(zone=zone, key=key, http=http, **more)


def queries(grid: GridServer) -> list[dict[str, list[str]]]:
    """Give the parameters of all requests."""
    return [parse_qs(urlsplit(each.path).query) for each in grid.asked]


def by_start(points: tuple[CarbonPoint, ...]) -> dict[datetime, CarbonPoint]:
    """Index points; each interval must be there once, oldest first."""
    index = {point.start: point for point in points}
    assert list(index) == sorted(index)
    assert len(index) == len(points)
    return index


def test_history_is_estimated_then_measured_and_the_running_hour_provisional(
    grid: GridServer,
) -> None:
    """The newest hours are estimates with their method; older ones measured; the truth at last."""
    em: Provider = provider(grid)
    batch = em.history(NOON - 60 * HOUR, NOW + HOUR, now=NOW)
    points = by_start(batch.points)
    assert batch.refused == ()
    assert len(points) == 61
    assert points[NOON].quality is Quality.PROVISIONAL
    newest, old = points[NOON - HOUR], points[NOON - 60 * HOUR]
    assert (newest.quality, newest.model) == (Quality.ESTIMATED, "TIME_SLICER_AVERAGE")
    assert (old.quality, old.model) == (Quality.MEASURED, "")
    assert old.g_per_kwh == grid.grid.truth("DE", old.start, HOUR, Measure.LIFECYCLE)
    assert all(
        p.end - p.start == HOUR and p.issued_at <= p.fetched_at == NOW for p in points.values()
    )
    assert {point.signal for point in batch.points} == {
        Signal(provider=SERVICE, zone="DE", factor="lifecycle", gas="CO2eq")
    }


def test_latest_is_the_running_hour(grid: GridServer) -> None:
    """The newest value is of the hour that is not over: provisional, with its method."""
    (point,) = provider(grid).latest(NOW).points
    assert (point.start, point.quality) == (NOON, Quality.PROVISIONAL)
    assert point.model == "TIME_SLICER_AVERAGE"


def test_forecast_is_one_issue_from_the_running_hour_on(grid: GridServer) -> None:
    """All points of a forecast have one issue; the horizon asked for is one that is offered."""
    batch = provider(grid).forecast(30, now=NOW)
    points = by_start(batch.points)
    assert list(points) == [NOON + i * HOUR for i in range(48)]
    assert {p.quality for p in batch.points} == {Quality.FORECAST}
    assert {p.issued_at for p in batch.points} == {NOON}
    assert queries(grid)[0]["horizonHours"] == ["48"]
    assert len(provider(grid).forecast(1000, now=NOW).points) == 72


def test_every_request_names_the_zone_and_forbids_the_look_up_of_the_caller(
    grid: GridServer,
) -> None:
    """No request could be answered for where the caller sits; all ask for the factor."""
    em = provider(grid, factor="direct")
    em.latest(NOW)
    em.history(NOW - HOUR, NOW, now=NOW)
    em.forecast(24, now=NOW)
    for query in queries(grid):
        assert query["zone"] == ["DE"]
        assert query["disableCallerLookup"] == ["true"]
        assert query["emissionFactorType"] == ["direct"]
        assert query["temporalGranularity"] == ["hourly"]
    assert {each.key for each in grid.asked} == {KEY}


def test_direct_and_lifecycle_are_different_series_of_one_gas(grid: GridServer) -> None:
    """The factor is part of the identity; the API counts CO2eq for both."""
    direct, lifecycle = provider(grid, factor="direct"), provider(grid)
    assert str(direct.signal) == "electricity_maps:DE:average:direct:CO2eq"
    assert str(lifecycle.signal) == "electricity_maps:DE:average:lifecycle:CO2eq"
    start = NOON - 60 * HOUR
    (point,) = direct.history(start, start + HOUR, now=NOW).points
    assert point.g_per_kwh == grid.grid.truth("DE", start, HOUR, Measure.DIRECT)


def test_long_history_is_asked_in_ten_days(grid: GridServer) -> None:
    """Twenty-five days take three requests and give each hour once."""
    start = NOON - timedelta(days=25)
    points = by_start(provider(grid).history(start, NOON, now=NOW).points)
    assert list(points) == [start + i * HOUR for i in range(25 * 24)]
    assert grid.count(SERVICE, "past-range") == 3


def test_nothing_is_asked_about_the_future(grid: GridServer) -> None:
    """A span that has not begun is empty, without a request."""
    assert provider(grid).history(NOW + HOUR, NOW + 2 * HOUR, now=NOW).points == ()
    assert grid.asked == []


def test_version_3_serves_the_same(grid: GridServer) -> None:
    """The legacy API gives the same hours from its own address."""
    assert provider(grid, api_version="v3").latest(NOW) == provider(grid).latest(NOW)
    assert [each.path.split("/")[2] for each in grid.asked] == ["v3", "v4"]


def test_a_base_address_without_version_gets_one(grid: GridServer) -> None:
    """A mirror's address may be given with the version or without it."""
    base = grid.base(SERVICE)
    for url in (base, base.removesuffix("/v4"), base + "/"):
        em = ElectricityMaps(zone="DE", key=KEY, base_url=url)
        assert em.latest(NOW).points
        em.close()


@pytest.mark.parametrize(
    ("granularity", "minutes", "requests"), [("15_minutes", 15, 2), ("5_minutes", 5, 3)]
)
def test_finer_data_has_finer_intervals(
    grid: GridServer, granularity: str, minutes: int, requests: int
) -> None:
    """A quarter of an hour or five minutes: intervals, borders, requests and polls follow."""
    em = provider(grid, granularity=granularity)
    points = by_start(em.history(NOON - 60 * HOUR, NOON, now=NOW).points)
    assert len(points) == 60 * 60 // minutes
    assert grid.count(SERVICE, "past-range") == requests
    assert em.series.interval_s == 60 * minutes
    assert em.series.cadence_s == min(900, 60 * minutes)


def test_a_sandbox_row_with_status_200_is_refused(grid: GridServer) -> None:
    """Invented values never become points, whoever marks them."""
    grid.fail(Fault.SANDBOX, provider=SERVICE)
    em = provider(grid)
    for ask in (em.latest, lambda now: em.forecast(24, now=now)):
        with pytest.raises(SandboxData, match="sandbox key"):
            ask(NOW)
    grid.mend()
    with pytest.raises(SandboxData):
        provider(grid, key="sandbox-1").history(NOW - HOUR, NOW, now=NOW)


def test_an_answer_for_another_zone_is_refused(grid: GridServer) -> None:
    """The trap of the caller's address: the answer names another zone than the one asked."""
    grid.fail(Fault.WRONG_ZONE, provider=SERVICE)
    em = provider(grid)
    with pytest.raises(ZoneMismatch, match="when asked for 'DE'"):
        em.latest(NOW)
    with pytest.raises(ZoneMismatch):
        em.forecast(24, now=NOW)


def test_a_wrong_key_is_not_tried_again(grid: GridServer) -> None:
    """401 in JSON: one request, and what to do."""
    with pytest.raises(AuthFailed, match="check the key"):
        provider(grid, key="other").latest(NOW)
    assert len(grid.asked) == 1


@pytest.mark.parametrize("fault", [Fault.FORBIDDEN_TEXT, Fault.FORBIDDEN_HTML, Fault.INVALID_SCOPE])
def test_a_plan_that_does_not_cover_it_is_told_as_that(grid: GridServer, fault: Fault) -> None:
    """403 as plain text, HTML or JSON: the plan lacks it; one request."""
    grid.fail(fault, provider=SERVICE)
    with pytest.raises(NotEntitled, match="the plan of this key"):
        provider(grid).latest(NOW)
    assert len(grid.asked) == 1


def test_a_plan_without_range_has_the_last_day(grid: GridServer) -> None:
    """The range is refused once; from then on the last 24 hours are asked for, and it is said."""
    grid.fail(Fault.FORBIDDEN_TEXT, provider=SERVICE, path="past-range")
    em = provider(grid)
    for _ in range(3):
        batch = em.history(NOON - 48 * HOUR, NOW, now=NOW)
        assert list(by_start(batch.points)) == [NOON - i * HOUR for i in range(23, -1, -1)]
        assert "has only the last 24 hours of DE" in batch.refused[0]
    assert em.history(NOON - 2 * HOUR, NOW, now=NOW).refused == ()
    assert grid.count(SERVICE, "past-range") == 1
    em.history(NOON - HOUR, NOW, now=NOW + timedelta(days=1))
    assert grid.count(SERVICE, "past-range") == 2


def test_a_plan_without_forecast_has_an_empty_one(grid: GridServer) -> None:
    """No forecast is no error: a sentence says why, and it is asked for once a day."""
    grid.fail(Fault.FORBIDDEN_TEXT, provider=SERVICE, path="forecast")
    em = provider(grid)
    for _ in range(3):
        batch = em.forecast(48, now=NOW)
        assert batch.points == ()
        assert "this key has no forecast for DE" in batch.refused[0]
    assert grid.count(SERVICE, "forecast") == 1


def test_no_recent_data_is_no_data(grid: GridServer) -> None:
    """404 and an empty list both mean: nothing known, ask later."""
    grid.fail(Fault.NO_DATA, provider=SERVICE, times=1)
    with pytest.raises(NoData, match="No recent data available"):
        provider(grid).latest(NOW)
    grid.fail(Fault.EMPTY, provider=SERVICE)
    with pytest.raises(NoData):
        provider(grid).history(NOW - HOUR, NOW, now=NOW)


def test_an_empty_span_costs_only_itself(grid: GridServer) -> None:
    """Of two requests one is empty: the other's hours are told."""
    grid.fail(Fault.EMPTY, provider=SERVICE, times=1)
    points = provider(grid).history(NOON - timedelta(days=15), NOON, now=NOW).points
    assert len(points) == 5 * 24


@pytest.mark.parametrize("fault", [Fault.RATE_LIMITED, Fault.RATE_LIMITED_DATE])
def test_asked_too_often_says_how_long_to_wait(fault: Fault) -> None:
    """429 with Retry-After, in seconds or as a date: no further request before it is over."""
    # A date is measured against the Date header, which is of this machine.
    now = datetime.now(UTC)
    with GridServer(clock=lambda: now).serving() as grid:
        grid.fail(fault, provider=SERVICE, retry_after_s=3000)
        em = provider(grid)
        with pytest.raises(RateLimited) as caught:
            em.latest(now)
        assert caught.value.retry_after_s == pytest.approx(3000, abs=30)
        with pytest.raises(RateLimited, match="asked for a pause"):
            em.latest(now)
        assert len(grid.asked) == 1


def test_updated_before_its_own_hour_is_fine(grid: GridServer) -> None:
    """`updatedAt` may precede `datetime`: newest hours are estimated ahead."""
    grid.fail(Fault.UPDATED_EARLY, provider=SERVICE)
    (point,) = provider(grid).latest(NOW).points
    assert point.issued_at == NOON - timedelta(minutes=75)
    assert point.start == NOON


def test_missing_optional_fields_are_fine(grid: GridServer) -> None:
    """Only zone, value and time: that is enough."""
    grid.fail(Fault.MISSING_OPTIONALS, provider=SERVICE)
    batch = provider(grid).history(NOON - 40 * HOUR, NOW, now=NOW)
    assert batch.refused == ()
    assert len(batch.points) == 41


@pytest.mark.parametrize("fault", [Fault.ZERO, Fault.NULL])
def test_a_false_zero_and_a_null_are_refused_alone(grid: GridServer, fault: Fault) -> None:
    """Two hours without a usable value are two sentences; the others are told."""
    grid.fail(fault, provider=SERVICE, about=(NOON - 3 * HOUR, NOON - HOUR))
    batch = provider(grid).history(NOON - 5 * HOUR, NOON, now=NOW)
    assert list(by_start(batch.points)) == [NOON - i * HOUR for i in (5, 4, 1)]
    assert len(batch.refused) == 2


def test_a_gap_stays_a_gap(grid: GridServer) -> None:
    """Hours that the provider left out are not invented."""
    grid.fail(Fault.GAP, provider=SERVICE)
    points = by_start(provider(grid).history(NOON - 72 * HOUR, NOON, now=NOW).points)
    assert len(points) == 72 - 46


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.SERVER_ERROR, Transient),
        (Fault.TRUNCATED, Transient),
        (Fault.NOT_JSON, Transient),
        (Fault.NOT_OBJECT, Transient),
        (Fault.CLOSED, Transient),
        (Fault.REDIRECT, SourceUnavailable),
        (Fault.HUGE, SourceUnavailable),
    ],
)
def test_what_the_line_does_is_one_sentence(
    grid: GridServer, fault: Fault, error: type[WattmeshError]
) -> None:
    """Outages and nonsense are errors of their kind; a redirect is never followed."""
    grid.fail(fault, provider=SERVICE)
    with pytest.raises(error):
        provider(grid).latest(NOW)
    assert not any("elsewhere" in each.path for each in grid.asked)


def test_an_unknown_zone_is_told_as_that(grid: GridServer) -> None:
    """A zone that nobody has, asked for values and for its rights."""
    with pytest.raises(UnknownZone, match="does not exist"):
        provider(grid, zone="XX").latest(NOW)
    with pytest.raises(UnknownZone, match="has no zone 'XX'"):
        provider(grid, zone="XX").capabilities(NOW)


def test_capabilities_are_what_the_key_may_ask(grid: GridServer) -> None:
    """All endpoints with a full key; the zones are asked with the key."""
    told = provider(grid).capabilities(NOW)
    assert (told.latest, told.history, told.forecast, told.detail) == (True, True, True, "")


def test_a_failing_hour_stays_under_the_free_limit(grid: GridServer) -> None:
    """Four polls of three questions, all failing with all their tries: under 50 requests."""
    grid.fail(Fault.SERVER_ERROR, provider=SERVICE)
    em = provider(grid)
    polls = int(3600 / em.series.cadence_s)
    for _ in range(polls):
        with pytest.raises(Transient):
            em.latest(NOW)
        with pytest.raises(Transient):
            em.history(NOW - 48 * HOUR, NOW, now=NOW)
        with pytest.raises(Transient):
            em.forecast(48, now=NOW)
    assert polls == 4
    assert len(grid.asked) == 36


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)]
)
def test_days_of_a_clock_change_have_24_hours_of_utc(day: datetime) -> None:
    """Summer time begins or ends in Berlin: each hour once, none missing."""
    now = day + timedelta(days=3)
    with GridServer(clock=lambda: now).serving() as grid:
        points = by_start(provider(grid).history(day, day + 24 * HOUR, now=now).points)
    assert list(points) == [day + i * HOUR for i in range(24)]


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"factor": "both"}, "lifecycle, direct"),
        ({"granularity": "daily"}, "hourly, 15_minutes, 5_minutes"),
        ({"api_version": "v2"}, "v4, v3"),
        ({"zone": ""}, "not a zone"),
        ({"key": " \n"}, "put the key alone into its file"),
        ({"key": "two words"}, "put the key alone into its file"),
    ],
)
def test_a_choice_that_is_not_offered_is_refused(choice: dict[str, str], words: str) -> None:
    """Before anything is asked, with what there is."""
    chosen: dict[str, Any] = {"zone": "DE", "key": KEY, **choice}
    with pytest.raises(InputInvalid, match=words) as caught:
        ElectricityMaps(**chosen)
    assert "two words" not in str(caught.value)
