"""NESO's regions over real HTTP: forecasts only, and never of another region."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.providers.one_answer import answering
from wattmesh.errors import InputInvalid, NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.neso import Neso
from wattmesh.integrations.carbon.neso_region import NesoRegion, is_region
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HALF_HOUR = timedelta(minutes=30)


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server."""
    with GridServer(clock=lambda: NOW).serving() as server:
        yield server


def http(grid: GridServer) -> JsonHttp:
    """Ask the server, impatiently."""
    return JsonHttp(grid.base("neso"), patience=PATIENT, pause=lambda _: None)


def test_a_region_has_a_forecast_and_nothing_observed(grid: GridServer) -> None:
    """Its answers carry no actual values: nothing of it is ever history."""
    region: Provider = NesoRegion(zone="13", http=http(grid))
    points = region.forecast(3, now=NOW).points
    assert [point.start for point in points] == [NOON + i * HALF_HOUR for i in range(7)]
    assert {(p.quality, p.issued_at) for p in points} == {(Quality.FORECAST, NOON)}
    assert str(points[0].signal) == "neso:13:average:direct:CO2"
    assert region.history(NOON - 4 * HALF_HOUR, NOW, now=NOW).points == ()
    assert region.latest(NOW).points == ()
    assert not region.series.observed
    found = region.capabilities(NOW)
    assert (found.latest, found.history, found.forecast) == (False, False, True)


def test_a_postcode_has_the_forecast_of_its_region(grid: GridServer) -> None:
    """By the first half of a postcode, asked for and answered as such."""
    points = NesoRegion(zone="RG10", http=http(grid)).forecast(3, now=NOW).points
    assert len(points) == 7
    assert str(points[0].signal) == "neso:RG10:average:direct:CO2"


def test_the_nation_without_actual_values_is_provisional(grid: GridServer) -> None:
    """A national answer like a regional one is told as a stand-in, never as measured."""
    grid.fail(Fault.WITHOUT_ACTUAL, provider="neso")
    points = Neso(http=http(grid)).latest(NOW).points
    assert {point.quality for point in points} == {Quality.PROVISIONAL}


def test_an_early_first_half_hour_is_left_out(grid: GridServer) -> None:
    """An answer that begins before what was asked brings nothing twice."""
    grid.fail(Fault.EARLY_FIRST, provider="neso")
    points = NesoRegion(zone="13", http=http(grid)).forecast(1, now=NOW).points
    assert [point.start for point in points] == [NOON, NOON + HALF_HOUR, NOON + 2 * HALF_HOUR]


def test_a_hole_of_46_hours_stays_a_hole(grid: GridServer) -> None:
    """As in October 2023: what the provider left out is not invented."""
    grid.fail(Fault.GAP, provider="neso")
    points = Neso(http=http(grid)).history(NOW - timedelta(hours=72), NOW, now=NOW).points
    assert len(points) == 2 * (72 - 46)
    assert points[-1].start == NOON


@pytest.mark.parametrize(("month", "date"), [(3, 29), (10, 25)])
def test_days_on_which_clocks_change_have_48_half_hours(
    grid: GridServer, month: int, date: int
) -> None:
    """The series is of UTC: nothing is missing or told twice when Britain changes its clocks."""
    day = datetime(2026, month, date, tzinfo=UTC)
    points = Neso(http=http(grid)).history(day, day + 48 * HALF_HOUR, now=NOW).points
    assert [point.start for point in points] == [day + i * HALF_HOUR for i in range(48)]


def test_an_outage_is_worth_another_poll(grid: GridServer) -> None:
    """Its 500 body of an outage, and an empty list."""
    region = NesoRegion(zone="13", http=http(grid))
    grid.fail(Fault.SERVER_ERROR, provider="neso", times=3)
    with pytest.raises(Transient, match="Requested resource not found"):
        region.forecast(48, now=NOW)
    grid.fail(Fault.EMPTY, provider="neso", times=1)
    with pytest.raises(NoData):
        region.forecast(48, now=NOW)
    grid.fail(Fault.NOT_OBJECT, provider="neso", times=1)
    with pytest.raises(Transient, match="has no region"):
        region.forecast(48, now=NOW)


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_answer_for_another_region_is_refused(wrapped: bool) -> None:
    """Both forms of the answer, a list of one region or the region itself, are checked."""
    place = {"regionid": 12, "data": []}
    body = {"data": [place] if wrapped else place}
    mismatch = pytest.raises(ZoneMismatch, match="regionid '12', asked for '13'")
    with answering(body) as other, mismatch:
        NesoRegion(zone="13", base_url=other.url).forecast(48, now=NOW)


def test_a_postcode_is_asked_for_by_its_first_half() -> None:
    """The path says postcode, and the answer must say the same one."""
    body = {"data": {"regionid": 12, "postcode": "RG10", "data": []}}
    with answering(body) as told:
        with pytest.raises(NoData):
            NesoRegion(zone="RG10", base_url=told.url).forecast(48, now=NOW)
        with pytest.raises(ZoneMismatch, match="postcode 'RG10', asked for 'SW1A'"):
            NesoRegion(zone="SW1A", base_url=told.url).forecast(48, now=NOW)
    assert told.asked[0] == "/regional/intensity/2026-11-20T12:00Z/fw48h/postcode/RG10"


@pytest.mark.parametrize("zone", ["1", "13", "17", "RG10", "SW1A", "E1"])
def test_regions_are_numbers_and_postcodes(zone: str) -> None:
    """Both forms that NESO's addresses take."""
    assert is_region(zone)


@pytest.mark.parametrize("zone", ["0", "18", "013", "GB", "rg10", "RG10 1AA", "", "1A", "RG:0"])
def test_what_is_no_region_is_refused(zone: str) -> None:
    """With what is served."""
    assert not is_region(zone)
    with pytest.raises(InputInvalid, match="it serves 1 to 17"):
        NesoRegion(zone=zone)
