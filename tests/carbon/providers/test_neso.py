"""NESO's API over real HTTP: what is told, and what each of its faults becomes."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.carbon import asking as without_pauses
from tests.carbon.asking import asked
from tests.carbon.providers.one_answer import answering
from tests.daemon.waiting import wait_for
from wattmesh.errors import InputInvalid, NoData, SourceUnavailable
from wattmesh.integrations.carbon.grid_server import Fault, GridServer, Ripening, SimulatedGrid
from wattmesh.integrations.carbon.neso import FORM, HALF_HOUR, Neso
from wattmesh.integrations.carbon.reading.breaker import Breaker
from wattmesh.integrations.carbon.reading.http import JsonHttp, RetryPolicy
from wattmesh.telemetry.carbon import CarbonPoint, Provider, Signal
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
PATIENT = replace(without_pauses.PATIENT, pause_s=0.01)
HURRIED = RetryPolicy(connect_s=0.5, read_s=0.3, try_s=0.5, pause_s=0.01)
"""Ends a server that says nothing soon; of a busy machine it may end any."""


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server whose measured values are the truth at once."""
    at_once = Ripening(measured_after=timedelta(), final_after=timedelta())
    with GridServer(clock=lambda: NOW, grid=SimulatedGrid(ripening=at_once)).serving() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    """Give the list of pauses between tries, which are not waited for."""
    return []


@contextmanager
def asking(url: str, pauses: list[float], patience: RetryPolicy = PATIENT) -> Iterator[Neso]:
    """Ask a server."""
    # What is tested here is one poll; a breaker that opens is test_http's.
    patient = Breaker(failures=1000)
    http = JsonHttp(url, patience=patience, pause=pauses.append, breaker=patient)
    yield Neso(http=http)
    http.close()


@pytest.fixture
def neso(grid: GridServer, pauses: list[float]) -> Iterator[Neso]:
    """Give a source that asks the grid server."""
    with asking(grid.base("neso"), pauses) as source:
        yield source


@pytest.fixture
def hurried(grid: GridServer, pauses: list[float]) -> Iterator[Neso]:
    """Give a source that soon gives up."""
    with asking(grid.base("neso"), pauses, HURRIED) as source:
        yield source


def suffer(grid: GridServer, fault: Fault, times: int = 1, **more: Any) -> None:
    """Spoil so many answers."""
    grid.fail(fault, provider="neso", times=times, **{"retry_after_s": 1} | more)


def actual(grid: GridServer, start: datetime) -> float:
    """Give the true value of a half hour."""
    return grid.grid.truth("GB", start, HALF_HOUR)


def forecast(grid: GridServer, start: datetime) -> float:
    """Give what was last said of a half hour before it began."""
    issued = min(NOON, start - HALF_HOUR)
    return int(grid.grid.expected("GB", start, issued, HALF_HOUR))


def by_start(points: tuple[CarbonPoint, ...]) -> dict[datetime, CarbonPoint]:
    """Index points; each half hour must be there once."""
    index = {point.start: point for point in points}
    assert len(index) == len(points)
    return index


def test_past_is_measured_present_provisional_future_forecast(neso: Neso, grid: GridServer) -> None:
    """One poll tells 48 h back as measured, the running half hour as provisional, 48 h ahead."""
    batch = asked(neso, NOW)
    points = by_start(batch.points)
    assert batch.refused == ()
    before, running, after = points[NOON - HALF_HOUR], points[NOON], points[NOON + HALF_HOUR]
    assert (before.quality, before.g_per_kwh) == (Quality.MEASURED, actual(grid, before.start))
    assert (running.quality, running.g_per_kwh) == (Quality.PROVISIONAL, forecast(grid, NOON))
    assert after.quality is Quality.FORECAST
    assert min(points) <= NOON - timedelta(hours=47)
    assert max(points) >= NOON + timedelta(hours=47)
    assert {point.signal for point in batch.points} == {Signal(provider="neso", zone="GB")}
    assert all(point.end - point.start == HALF_HOUR for point in batch.points)


def test_provisional_is_replaced_when_the_measured_value_comes(
    neso: Neso, grid: GridServer
) -> None:
    """A late `actual` leaves its half hour provisional; the next poll tells it measured."""
    start = NOON - 2 * HALF_HOUR
    grid.neso_delay = timedelta(hours=1)
    early = by_start(asked(neso, NOW).points)[start]
    grid.neso_delay = timedelta()
    late = by_start(asked(neso, NOW).points)[start]
    assert (early.quality, late.quality) == (Quality.PROVISIONAL, Quality.MEASURED)
    assert early.g_per_kwh == forecast(grid, start)
    assert late.g_per_kwh == actual(grid, start) != early.g_per_kwh


def test_a_repeated_poll_says_the_same(neso: Neso) -> None:
    """Two polls in one half hour give equal points: a journal that ignores repeats stays small."""
    assert asked(neso, NOW) == asked(neso, NOW)


def test_the_first_half_hour_may_begin_before_what_was_asked(neso: Neso, grid: GridServer) -> None:
    """A point says when it is by its own `from`; the one before the asked span is left out."""
    batch = neso.history(NOON - timedelta(hours=2), NOON, now=NOW)
    assert [point.start for point in batch.points] == [NOON - i * HALF_HOUR for i in (4, 3, 2, 1)]
    assert all(point.g_per_kwh == actual(grid, point.start) for point in batch.points)


def test_latest_ends_with_the_running_half_hour(neso: Provider) -> None:
    """The last two hours, measured, and the running half hour from the forecast."""
    points = neso.latest(NOW).points
    assert [point.start for point in points] == [NOON - i * HALF_HOUR for i in (4, 3, 2, 1, 0)]
    assert {point.quality for point in points[:-1]} == {Quality.MEASURED}
    assert points[-1].quality is Quality.PROVISIONAL


def test_history_tells_nothing_that_has_not_begun(neso: Provider) -> None:
    """However far the span reaches, coming half hours are no history."""
    points = neso.history(NOW - HALF_HOUR, NOW + 9 * HALF_HOUR, now=NOW).points
    assert [point.start for point in points] == [NOON]
    assert neso.history(NOW, NOW, now=NOW).points == ()


def test_a_forecast_is_one_issue_from_the_running_half_hour_on(neso: Provider) -> None:
    """Each point says the same time of issue, so that a journal never mixes two."""
    points = neso.forecast(3, now=NOW).points
    assert [point.start for point in points] == [NOON + i * HALF_HOUR for i in range(7)]
    assert {point.issued_at for point in points} == {NOON}
    assert {point.quality for point in points} == {Quality.FORECAST}
    assert neso.series.forecast_s == 48 * 3600
    assert len(neso.forecast(48, now=NOW).points) == 96


def test_without_any_half_hour_there_is_no_data(neso: Provider, grid: GridServer) -> None:
    """An outage in which the list is empty is `NoData`, for the past and for the forecast."""
    grid.fail(Fault.EMPTY, provider="neso")
    with pytest.raises(NoData, match="outages of days"):
        neso.history(NOW - HALF_HOUR, NOW, now=NOW)
    with pytest.raises(NoData, match="outages of days"):
        neso.forecast(48, now=NOW)


def test_capabilities_are_those_of_a_provider_that_answers(
    neso: Provider, grid: GridServer
) -> None:
    """No key is needed: all is served, unless it is down."""
    found = neso.capabilities(NOW)
    assert (found.latest, found.history, found.forecast) == (True, True, True)
    suffer(grid, Fault.SERVER_ERROR, 3)
    with pytest.raises(SourceUnavailable, match="500"):
        neso.capabilities(NOW)


def test_a_false_zero_is_refused_and_the_forecast_stands_in(neso: Neso, grid: GridServer) -> None:
    """`actual: 0` never becomes a point; it is named, and its half hour stays provisional."""
    zero = NOON - timedelta(hours=3)
    grid.fail(Fault.ZERO, provider="neso", about=(zero, zero + HALF_HOUR))
    batch = asked(neso, NOW)
    point = by_start(batch.points)[zero]
    assert (point.quality, point.g_per_kwh) == (Quality.PROVISIONAL, forecast(grid, zero))
    assert batch.refused == (
        "The value of 2026-11-20 09:00 UTC is 0 g/kWh, which no grid reaches (an outage at the "
        "source looks like this).",
    )


def test_a_hole_of_46_hours_stays_a_hole(neso: Neso, grid: GridServer) -> None:
    """Half hours that the provider left out are not invented; those around them are right."""
    holes = [NOON - i * HALF_HOUR for i in range(93, 1, -1)]
    grid.fail(Fault.GAP, provider="neso", about=(holes[0], holes[-1] + HALF_HOUR))
    points = by_start(asked(neso, NOW).points)
    assert not set(holes) & set(points)
    assert holes[0] - HALF_HOUR in points
    assert points[NOON - HALF_HOUR].quality is Quality.MEASURED


def test_long_history_is_asked_in_fortnights(neso: Neso, grid: GridServer) -> None:
    """Forty days take three requests of at most 14 days and give each half hour once."""
    start = NOON - timedelta(days=40)
    batch = neso.history(start, NOON, now=NOW)
    assert len({each.path for each in grid.asked}) == 3  # a busy machine may ask again
    starts = set(by_start(batch.points))
    assert {start + i * HALF_HOUR for i in range(40 * 48)} <= starts


@pytest.mark.parametrize(
    "fault", [Fault.SERVER_ERROR, Fault.NOT_JSON, Fault.TRUNCATED, Fault.RATE_LIMITED]
)
def test_a_passing_fault_costs_a_try(neso: Neso, grid: GridServer, fault: Fault) -> None:
    """What fails once and may pass is tried again, and the poll succeeds."""
    suffer(grid, fault)
    assert asked(neso, NOW).refused == ()
    assert len(grid.asked) == 3


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DRIP])
def test_a_passing_silence_costs_a_try(grid: GridServer, pauses: list[float], fault: Fault) -> None:
    """An answer that does not end meets its deadline; the next one is taken."""
    suffer(grid, fault)
    with asking(grid.base("neso"), pauses, replace(HURRIED, tries=100)) as neso:
        assert asked(neso, NOW).refused == ()
    assert len(grid.asked) >= 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.SERVER_ERROR, "answered 500 (Requested resource not found.) (3 tries)"),
        (Fault.NOT_JSON, "which is not JSON (3 tries)"),
        (Fault.TRUNCATED, "IncompleteRead"),
        (Fault.RATE_LIMITED, "answered 429 (Slow down.) (3 tries)"),
    ],
)
def test_a_lasting_fault_ends_after_three_tries(
    neso: Neso, grid: GridServer, fault: Fault, words: str
) -> None:
    """What goes on failing is one sentence after three tries, within their deadlines."""
    suffer(grid, fault, 3)
    with pytest.raises(SourceUnavailable) as caught:
        asked(neso, NOW)
    assert words in str(caught.value)
    assert len(grid.asked) == 3


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.DRIP])
def test_a_lasting_silence_ends_after_three_tries(
    hurried: Neso, grid: GridServer, fault: Fault
) -> None:
    """Three deadlines, then one sentence."""
    suffer(grid, fault, 3)
    with pytest.raises(SourceUnavailable, match=r"\(3 tries\)"):
        asked(hurried, NOW)
    assert len(grid.asked) == 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.BAD_REQUEST, "answered 400 (Please enter a valid date in ISO8601 format.)"),
        (Fault.NO_DATA, "answered 404"),
        (Fault.REDIRECT, "a redirect to"),
        (Fault.HUGE, "answered more than 4 MiB"),
        (Fault.NOT_OBJECT, "has no list of data"),
        (Fault.EMPTY, "an empty list"),
    ],
)
def test_what_another_try_cannot_mend_is_not_tried_again(
    neso: Neso, grid: GridServer, fault: Fault, words: str
) -> None:
    """A refusal, a redirect or another form ends the poll at once, with what came."""
    suffer(grid, fault)
    with pytest.raises(SourceUnavailable) as caught:
        asked(neso, NOW)
    assert words in str(caught.value)
    assert len(grid.asked) == 1


def test_headers_that_never_end_meet_the_deadline(hurried: Neso, grid: GridServer) -> None:
    """A server that drips header bytes is given up, and does not stall the next polls either."""
    suffer(grid, Fault.DRIP_HEADERS)
    with pytest.raises(SourceUnavailable):
        asked(hurried, NOW)
    grid.released.set()

    def recovered() -> bool:
        with contextlib.suppress(SourceUnavailable):
            return bool(asked(hurried, NOW).points)
        return False

    wait_for(recovered, "an answer")


def test_a_server_that_is_gone_is_one_sentence(pauses: list[float]) -> None:
    """Nobody listens: three tries, one sentence with the cause."""
    neso = Neso(http=JsonHttp("http://127.0.0.1:9", patience=PATIENT, pause=pauses.append))
    with pytest.raises(SourceUnavailable, match="Connection refused") as caught:
        asked(neso, NOW)
    assert "(3 tries)" in str(caught.value)
    assert len(pauses) == 2


def test_pauses_grow_and_are_jittered(neso: Neso, grid: GridServer, pauses: list[float]) -> None:
    """The pause before try n lies between 0 and 2^(n-1) x the base."""
    for _ in range(20):
        suffer(grid, Fault.SERVER_ERROR, 3)
        with pytest.raises(SourceUnavailable):
            asked(neso, NOW)
    first, second = pauses[::2], pauses[1::2]
    assert all(0 <= pause <= 0.01 for pause in first)
    assert max(second) > 0.01
    assert len(set(first)) == 20


def test_retry_after_is_obeyed(neso: Neso, grid: GridServer, pauses: list[float]) -> None:
    """The pause after a 429 is what the server asked for."""
    suffer(grid, Fault.RATE_LIMITED, retry_after_s=7)
    asked(neso, NOW)
    assert pauses == [7.0]


def test_a_long_retry_after_ends_the_poll_and_holds_the_next(neso: Neso, grid: GridServer) -> None:
    """Asked to wait an hour: no more requests, not even by the next poll."""
    suffer(grid, Fault.RATE_LIMITED, retry_after_s=3600)
    with pytest.raises(SourceUnavailable, match="asks to wait 3600 s"):
        asked(neso, NOW)
    with pytest.raises(SourceUnavailable, match="asked for a pause"):
        asked(neso, NOW)
    assert len(grid.asked) == 1


def row(start: datetime = NOON - HALF_HOUR, **intensity: Any) -> dict[str, Any]:
    """Make one half hour as NESO writes it."""
    return {
        "from": f"{start:{FORM}}",
        "to": f"{start + HALF_HOUR:{FORM}}",
        "intensity": {"forecast": 200, "actual": 190, "index": "moderate"} | intensity,
    }


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (7, "it has no intensity"),
        ({"from": "x"}, "it has no intensity"),
        (row() | {"from": "2026-11-20"}, "not times like"),
        (row() | {"from": None}, "not times like"),
        (row() | {"to": "2026-11-20T14:00Z"}, "not a half hour"),
        (row(NOON - timedelta(minutes=35)), "not a half hour"),
        (row(actual="190"), "actual is not a number"),
        (row(actual=True), "actual is not a number"),
        (row(actual=-3), "less than nothing"),
        (row(actual=190_000), "check the unit"),
        (row(actual=None, forecast=0), "which no grid reaches"),
        (row(actual=None, forecast=None), "is missing at the source"),
    ],
)
def test_a_row_that_cannot_be_is_refused_alone(pauses: list[float], bad: Any, words: str) -> None:
    """Nonsense in one row is one sentence; the rows around it are told."""
    good = row(NOON - timedelta(hours=2))
    with answering({"data": [good, bad]}) as server, asking(server.url, pauses) as neso:
        batch = neso.history(NOON - timedelta(hours=2), NOON, now=NOW)
    assert any(words in sentence for sentence in batch.refused)
    assert by_start(batch.points)[NOON - timedelta(hours=2)].g_per_kwh == 190
    assert all(point.quality is not Quality.MEASURED for point in batch.points[1:])


def test_an_infinite_number_is_refused(pauses: list[float]) -> None:
    """JSON's Infinity and NaN are no intensities."""
    rows = [row(actual=float("inf")), row(NOON - timedelta(hours=1), actual=float("nan"))]
    with answering({"data": rows}) as server, asking(server.url, pauses) as neso:
        batch = neso.history(NOON - timedelta(hours=1), NOON, now=NOW)
    assert [point.quality for point in batch.points] == [Quality.PROVISIONAL] * 2


@pytest.mark.parametrize("zone", ["GB-13", "DE", "", "gb"])
def test_other_zones_are_refused_with_what_is_allowed(zone: str) -> None:
    """Regional and foreign zones are refused before anything is asked."""
    with pytest.raises(InputInvalid, match="it serves GB, the national value"):
        Neso(zone=zone)
