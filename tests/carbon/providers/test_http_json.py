"""Any JSON service over real HTTP: what the settings declare is read, anything else is refused."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.carbon.asking import PATIENT
from tests.carbon.providers.one_answer import Answering, answering
from wattmesh.errors import AuthFailed, InputInvalid, NoData, SourceUnavailable, Transient
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.http_json import HttpJson
from wattmesh.integrations.carbon.reading.credentials import Credentials
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.integrations.carbon.reading.json_shape import (
    G_PER_KWH,
    JsonShape,
    at_path,
    filled,
    moment,
    placed,
    split,
)
from wattmesh.telemetry.carbon import CarbonPoint, Provider, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
TOKEN = "in-house-token-0123456789"
SIGNAL = Signal(provider="http_json", zone="DE", factor="direct", gas="CO2")
SPAN = (NOON - 12 * HOUR, NOW)


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one token."""
    with GridServer(clock=lambda: NOW, keys=frozenset({TOKEN})).serving() as server:
        yield server


def shape(grid: GridServer, **changes: Any) -> JsonShape:
    """Describe the server's own form."""
    url = f"{grid.base('http_json')}/intensity/{{zone}}?hours={{hours}}"
    told = JsonShape(
        url=url,
        forecast_url=url,
        rows="rows",
        forecast_rows="rows",
        end="end",
        forecast_value="forecast",
    )
    return replace(told, **changes)


def source(grid: GridServer, *, token: str = TOKEN, zone: str = "DE", **changes: Any) -> HttpJson:
    """Give a provider that asks the server, impatiently; `changes` are of the shape."""
    return HttpJson(
        signal=replace(SIGNAL, zone=zone),
        shape=shape(grid, **changes),
        credentials=Credentials.header("Authorization", token, scheme="Bearer"),
        http=JsonHttp(grid.url, patience=PATIENT, pause=lambda _: None),
    )


def by_start(points: tuple[CarbonPoint, ...]) -> dict[datetime, CarbonPoint]:
    """Index points; each interval must be there once."""
    index = {point.start: point for point in points}
    assert len(index) == len(points)
    return index


def test_history_is_what_the_service_measured(grid: GridServer) -> None:
    """Past hours are told as measured; the running one, without a value yet, is not told."""
    json: Provider = source(grid)
    batch = json.history(*SPAN, now=NOW)
    assert batch.refused == ()
    assert list(by_start(batch.points)) == [NOON - i * HOUR for i in range(12, 0, -1)]
    for point in batch.points:
        assert (point.quality, point.signal) == (Quality.MEASURED, SIGNAL)
        assert abs(point.g_per_kwh - grid.grid.truth("DE", point.start)) < 0.05 * point.g_per_kwh
    assert json.latest(NOW).points == batch.points[-3:]


def test_a_forecast_is_one_issue_from_the_running_hour_on(grid: GridServer) -> None:
    """Its number stands under another key of the same rows."""
    points = source(grid).forecast(6, now=NOW).points
    assert [point.start for point in points] == [NOON + i * HOUR for i in range(7)]
    assert {point.issued_at for point in points} == {NOON}
    assert {point.quality for point in points} == {Quality.FORECAST}


def test_without_a_forecast_address_there_is_none(grid: GridServer) -> None:
    """Nothing is asked for, and the series says so."""
    json = source(grid, forecast_url="")
    assert json.forecast(6, now=NOW).points == ()
    assert json.series.forecast_s == 0
    assert grid.count("http_json") == 0


def test_units_are_what_was_declared(grid: GridServer) -> None:
    """The same numbers as pounds by megawatt-hour are 0.4536 times as many grams."""
    grams = source(grid).history(*SPAN, now=NOW).points
    pounds = source(grid, unit="lbs/MWh").history(*SPAN, now=NOW).points
    kilograms = source(grid, unit="kg/MWh").history(*SPAN, now=NOW).points
    assert [p.g_per_kwh for p in kilograms] == [p.g_per_kwh for p in grams]
    assert [p.g_per_kwh for p in pounds] == pytest.approx([p.g_per_kwh * 0.45359237 for p in grams])


@pytest.mark.parametrize("unit", ["percentile", "percent", "index", "", "tons"])
def test_what_has_no_grams_is_no_unit(grid: GridServer, unit: str) -> None:
    """A percentile ranks hours; steering or booking with it would be steering with noise."""
    with pytest.raises(InputInvalid, match="is no grams by energy"):
        shape(grid, unit=unit)


def test_a_false_zero_a_hole_and_a_late_value_have_no_point(grid: GridServer) -> None:
    """A zero and a value that is missing beyond its lag are named; a hole is just not there."""
    grid.fail(Fault.ZERO, provider="http_json", about=(NOON - 5 * HOUR, NOON - 4 * HOUR))
    grid.fail(Fault.NULL, provider="http_json", about=(NOON - 7 * HOUR, NOON - 6 * HOUR))
    grid.fail(Fault.GAP, provider="http_json", about=(NOON - 9 * HOUR, NOON - 8 * HOUR))
    batch = source(grid).history(*SPAN, now=NOW)
    lost = {NOON - i * HOUR for i in (5, 7, 9)}
    assert not lost & set(by_start(batch.points))
    assert len(batch.points) == 9
    assert [words[:40] for words in batch.refused] == [
        "The value of 2026-11-20 05:00 UTC is mis",
        "The value of 2026-11-20 07:00 UTC is 0 g",
    ]


def test_a_revision_is_told_as_it_is_now(grid: GridServer) -> None:
    """A later answer says the newest value of an old hour."""
    hour = NOON - 5 * HOUR
    before = by_start(source(grid).history(*SPAN, now=NOW).points)
    grid.fail(Fault.REVISED, provider="http_json", about=(hour, hour + HOUR))
    after = by_start(source(grid).history(*SPAN, now=NOW).points)
    assert [at for at in before if before[at].g_per_kwh != after[at].g_per_kwh] == [hour]


def test_rows_off_the_grid_are_refused(grid: GridServer) -> None:
    """Hours declared as half hours are no half hours: each row is named, none becomes a point."""
    json = HttpJson(
        signal=SIGNAL,
        shape=shape(grid),
        interval_s=1800.0,
        credentials=Credentials.header("Authorization", TOKEN, scheme="Bearer"),
        http=JsonHttp(grid.url, patience=PATIENT, pause=lambda _: None),
    )
    batch = json.history(*SPAN, now=NOW)
    assert batch.points == ()
    assert "is not one interval of 1800 s" in batch.refused[0]
    with pytest.raises(Transient, match="returned nothing usable"):
        json.capabilities(NOW)


def test_either_end_of_an_interval_will_do(grid: GridServer) -> None:
    """With one of the two times the other follows from the length."""
    both = source(grid).history(*SPAN, now=NOW)
    assert source(grid, end="").history(*SPAN, now=NOW) == both
    assert source(grid, start="").history(*SPAN, now=NOW) == both


def test_long_spans_are_asked_in_parts(grid: GridServer) -> None:
    """Twenty-five days take three requests of at most ten and give each hour once."""
    span = (NOON - 25 * 24 * HOUR, NOON)
    points = source(grid).history(*span, now=NOW).points
    assert len(by_start(points)) == 600
    hours = [parse_qs(urlsplit(each.path).query)["hours"] for each in grid.asked]
    assert hours == [["601"], ["361"], ["121"]]


@pytest.mark.parametrize("day", [datetime(2026, 10, 25, tzinfo=UTC)])
def test_a_day_on_which_clocks_change_has_24_hours(grid: GridServer, day: datetime) -> None:
    """Times carry their offset; no hour is missing or told twice."""
    points = source(grid).history(day, day + 24 * HOUR, now=NOW).points
    assert [point.start for point in points] == [day + i * HOUR for i in range(24)]


def test_a_wrong_token_is_refused_and_never_shown(grid: GridServer) -> None:
    """The token travels in its header alone."""
    wrong = source(grid, token="not-the-token-9876")
    with pytest.raises(AuthFailed, match="401") as caught:
        wrong.latest(NOW)
    assert "not-the-token" not in f"{caught.value} {caught.value!r} {wrong!r}"
    source(grid).latest(NOW)
    assert all(TOKEN not in each.path for each in grid.asked)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.EMPTY, NoData, "an empty list for DE"),
        (Fault.NOT_OBJECT, Transient, "no list at 'rows'"),
        (Fault.SERVER_ERROR, Transient, "500"),
        (Fault.NOT_JSON, Transient, "not JSON"),
        (Fault.REDIRECT, SourceUnavailable, "a redirect to"),
    ],
)
def test_what_is_no_answer_says_what_came(
    grid: GridServer, fault: Fault, error: type[Exception], words: str
) -> None:
    """Each failure has its place in the tree of errors and its own sentence."""
    grid.fail(fault, provider="http_json")
    with pytest.raises(error, match=words):
        source(grid).history(*SPAN, now=NOW)


def test_an_unknown_zone_has_no_data(grid: GridServer) -> None:
    """What the service says of it is in the sentence."""
    with pytest.raises(NoData, match="no zone 'XX'"):
        source(grid, zone="XX").latest(NOW)


def test_templates_fill_in_what_is_asked() -> None:
    """Values are quoted as an address wants them."""
    base, path = split("https://grid.example:8443/v1/{zone}?from={start}&to={end}&n={hours}")
    assert base == "https://grid.example:8443"
    assert filled(path, zone="a b/c", start=SPAN[0], end=NOW, hours=12.2) == (
        "/v1/a%20b%2Fc?from=2026-11-20T00%3A00%3A00Z&to=2026-11-20T12%3A10%3A00Z&n=13"
    )
    assert split("http://h") == ("http://h", "/")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://h/{region}", r"\{region\}.*allowed are \{zone\}, \{start\}"),
        ("https://h/{", "is not an address"),
        ("https://h:99999/x", r"is not an address \(Port out of range 0-65535\)"),
        ("ftp://h/x", "does not begin with http"),
        ("https:///x", "does not begin with http"),
        ("https://{zone}.example/x", "does not begin with http"),
        ("https://user:word@h/x", "token_file"),
    ],
)
def test_templates_that_cannot_be_are_refused(template: str, words: str) -> None:
    """Each says what is allowed; a password in an address is not repeated."""
    with pytest.raises(InputInvalid, match=words) as caught:
        JsonShape(url=template)
    assert "user:word" not in str(caught.value)


def test_a_forecast_elsewhere_is_refused(grid: GridServer) -> None:
    """One token and one breaker belong to one host."""
    with pytest.raises(InputInvalid, match="one source asks one host"):
        source(grid, forecast_url="http://other.example/{zone}")
    with pytest.raises(InputInvalid, match="needs one"):
        JsonShape(url="https://h/x", start="", end="")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-11-20T12:10:00Z", NOW),
        ("2026-11-20T13:10:00+01:00", NOW),
        (int(NOW.timestamp()), NOW),
        (NOW.timestamp() * 1000, NOW),
        ("2026-11-20T12:10:00", None),
        ("noon", None),
        (True, None),
        (None, None),
        (1e300, None),
    ],
)
def test_times_name_their_offset_or_are_refused(value: Any, expected: datetime | None) -> None:
    """Text without an offset is whose local time? It is not guessed."""
    assert moment(value) == expected


def test_paths_lead_through_objects_and_lists() -> None:
    """A key that is not there gives nothing, never an error."""
    document = {"a": [{"b": 1}, {"b": 2}]}
    assert [at_path(document, path) for path in ("a.1.b", "a.9.b", "a.b", "x", "")] == [
        2,
        None,
        None,
        None,
        document,
    ]
    assert G_PER_KWH["lbs/MWh"] == 453.59237 / 1000


def rows(*values: Any, first: datetime = NOON - 2 * HOUR, **more: Any) -> list[dict[str, Any]]:
    """Write hours from `first` on, one per value."""
    return [
        {"start": (first + i * HOUR).isoformat(), "value": value, **more}
        for i, value in enumerate(values)
    ]


def told(document: Answering, *, kind: str = "average", **changes: Any) -> HttpJson:
    """Give a provider that asks a server of one document."""
    lag_s = changes.pop("lag_s", 0.0)
    return HttpJson(
        signal=replace(SIGNAL, kind=kind),
        shape=JsonShape(url=document.url, **changes),
        lag_s=lag_s,
        http=JsonHttp(document.url, patience=PATIENT, pause=lambda _: None),
    )


@pytest.mark.parametrize(
    ("mark", "quality"),
    [
        (True, Quality.ESTIMATED),
        ("TIME_SLICER", Quality.ESTIMATED),
        (1, Quality.ESTIMATED),
        (False, Quality.MEASURED),
        ("measured", Quality.MEASURED),
        ("", Quality.MEASURED),
        (None, Quality.MEASURED),
    ],
)
def test_a_mark_tells_estimated_from_measured(mark: Any, quality: Quality) -> None:
    """A row says whether its value is estimated; false, "" and null say that it is not."""
    with answering(rows(300.0, isEstimated=mark)) as document:
        (point,) = told(document, estimated="isEstimated").history(*SPAN, now=NOW).points
    assert (point.quality, point.g_per_kwh) == (quality, 300.0)


def test_a_value_of_the_running_hour_is_provisional() -> None:
    """It may still change until the hour is over."""
    with answering(rows(300.0, "310.5", 320.0)) as document:
        points = told(document).history(*SPAN, now=NOW).points
    assert [(p.quality, p.g_per_kwh) for p in points] == [
        (Quality.MEASURED, 300.0),
        (Quality.MEASURED, 310.5),
        (Quality.PROVISIONAL, 320.0),
    ]


def test_what_is_late_within_its_lag_is_no_fault() -> None:
    """A null is named only when it is later than declared."""
    with answering(rows(300.0, None)) as document:
        assert told(document, lag_s=3600.0).history(*SPAN, now=NOW).refused == ()
        (why,) = told(document).history(*SPAN, now=NOW).refused
    assert why == "The value of 2026-11-20 11:00 UTC is missing at the source."


def test_a_marginal_rate_may_be_nothing_and_an_average_may_not() -> None:
    """While wind is curtailed one kilowatt-hour more emits nothing; no grid's average is 0."""
    document = {"made": "2026-11-20T11:55:00Z", "data": rows(0.0, 80.0, first=NOON)}
    changes = {"forecast_rows": "data", "issued": "made"}
    with answering(document) as service:
        marginal = told(service, kind="marginal", forecast_url=service.url, **changes)
        ahead = marginal.forecast(24, now=NOW)
        average = told(service, forecast_url=service.url, **changes).forecast(24, now=NOW)
    assert [p.g_per_kwh for p in ahead.points] == [0.0, 80.0]
    assert {p.issued_at for p in ahead.points} == {NOON - timedelta(minutes=5)}
    assert [p.g_per_kwh for p in average.points] == [80.0]
    assert "(forecast) is 0 g/kWh" in average.refused[0]


def test_a_forecast_that_is_over_is_none() -> None:
    """Yesterday's forecast does not reach now: no data, not an empty success."""
    none = pytest.raises(NoData, match="no forecast from now on")
    with answering(rows(300.0, 310.0, first=NOON - 30 * HOUR)) as service, none:
        told(service, forecast_url=service.url).forecast(24, now=NOW)


def test_rows_without_a_time_are_named() -> None:
    """A local time without its offset is not guessed, and hides no other row."""
    odd = [{"start": "2026-11-20T10:00:00", "value": 1.0}, "text", {"value": 2.0}]
    with answering([*odd, *rows(300.0)]) as document:
        batch = told(document).history(*SPAN, now=NOW)
    assert [p.g_per_kwh for p in batch.points] == [300.0]
    assert len(batch.refused) == 3
    assert all("has no time with its offset at 'start'" in why for why in batch.refused)


@given(
    st.sampled_from([300.0, 900.0, 1800.0, 3600.0, 86_400.0]),
    st.integers(0, 2 * 10**9),
)
def test_rows_are_kept_exactly_when_they_begin_on_the_grid(interval_s: float, at_s: int) -> None:
    """Against plain division: a row is an interval when its start divides by the length."""
    at = datetime.fromtimestamp(at_s, UTC)
    refused: list[str] = []
    found = placed([{"start": at.isoformat()}], JsonShape(url="http://h"), interval_s, refused)
    assert bool(found) is (at_s % int(interval_s) == 0)
    assert bool(refused) is not bool(found)
