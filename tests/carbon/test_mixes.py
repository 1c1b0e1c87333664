"""ENTSO-E's generation and Open Electricity over real HTTP: intensities, and what faults become."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.carbon.asking import PATIENT
from tests.carbon.providers.one_answer import answering
from wattmesh.errors import (
    AuthFailed,
    InputInvalid,
    NoData,
    RateLimited,
    SourceUnavailable,
    Transient,
    ZoneMismatch,
)
from wattmesh.integrations.carbon.entsoe import EntsoeMix
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.open_electricity import OpenElectricity
from wattmesh.integrations.carbon.open_electricity_answers import intensity
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.carbon import CarbonBatch, Provider
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
KEY = "mix-key-0123456789"
DAY = (NOON - 24 * HOUR, NOON)
BOTH = ("entsoe", "open_electricity")
ZONE = {"entsoe": "DE", "open_electricity": "NSW1"}


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one key."""
    with GridServer(clock=lambda: NOW, keys=frozenset({KEY})).serving() as server:
        yield server


def opened(name: str, base_url: str, zone: str = "", key: str = KEY, **more: Any) -> Provider:
    """The product's client of a provider."""
    http = JsonHttp(base_url, patience=PATIENT, pause=lambda _: None)
    zone = zone or ZONE[name]
    if name == "entsoe":
        return EntsoeMix(zone=zone, token=key, http=http, **more)
    return OpenElectricity(zone=zone, key=key, http=http, **more)


def of(name: str, grid: GridServer, zone: str = "", **more: Any) -> Provider:
    """The same on the grid server."""
    return opened(name, grid.base(name), zone, **more)


def values(batch: CarbonBatch) -> dict[datetime, float]:
    """Intensities by the start of the hour."""
    return {point.start: point.g_per_kwh for point in batch.points}


@pytest.mark.parametrize(
    ("name", "zone", "signal"),
    [
        ("entsoe", "DE", "entsoe:DE:average:direct:CO2"),
        ("entsoe", "10YPL-AREA-----S", "entsoe:10YPL-AREA-----S:average:direct:CO2"),
        ("open_electricity", "NSW1", "open_electricity:NSW1:average:direct:CO2eq"),
        ("open_electricity", "NEM", "open_electricity:NEM:average:direct:CO2eq"),
        ("open_electricity", "WEM", "open_electricity:WEM:average:direct:CO2eq"),
    ],
)
def test_the_mix_becomes_the_intensity(grid: GridServer, name: str, zone: str, signal: str) -> None:
    """Every hour that is told, with its identity, to what the server's mix is made of."""
    source = of(name, grid, zone)
    batch = source.history(*DAY, now=NOW)
    assert batch.refused == ()
    assert str(source.signal) == signal
    assert [p.start for p in batch.points] == [DAY[0] + i * HOUR for i in range(len(batch.points))]
    assert len(batch.points) >= 23
    truth_zone = "PL" if zone.startswith("10Y") else zone
    for point in batch.points:
        assert (point.end - point.start, point.issued_at) == (HOUR, point.end)
        # Young values are off by up to 4 % of the coal, as they are before they are revised.
        assert point.g_per_kwh == pytest.approx(grid.grid.truth(truth_zone, point.start), rel=0.05)
    old = (NOON - 60 * HOUR, NOON - 48 * HOUR)
    for start, value in values(source.history(*old, now=NOW)).items():
        assert value == pytest.approx(grid.grid.truth(truth_zone, start), abs=0.5)


def test_the_newest_hours_of_australia_are_estimates(grid: GridServer) -> None:
    """Until two hours after its end an hour may lack intervals that come late."""
    points = of("open_electricity", grid).latest(NOW).points
    assert [each.quality for each in points[-3:]] == [
        Quality.MEASURED,
        Quality.ESTIMATED,
        Quality.ESTIMATED,
    ]


@pytest.mark.parametrize("name", BOTH)
def test_restated_values_come_with_the_trailing_days(grid: GridServer, name: str) -> None:
    """What an operator revises is told anew within the days that are asked for again."""
    source = of(name, grid)
    hour = NOON - 50 * HOUR
    before = values(source.latest(NOW))
    grid.fail(Fault.REVISED, provider=name, about=(hour, hour + HOUR))
    after = values(source.latest(NOW))
    assert [start for start in before if before[start] != after[start]] == [hour]
    assert after[hour] > before[hour]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.NULL, "cannot be derived"),
        (Fault.ZERO, "generated anything"),
    ],
)
def test_an_hour_that_is_not_whole_is_refused(
    grid: GridServer, name: str, fault: Fault, words: str
) -> None:
    """A type without its value is not a type that generated nothing."""
    hour = DAY[0] + 3 * HOUR
    source = of(name, grid)
    source.history(*DAY, now=NOW)
    grid.fail(fault, provider=name, about=(hour, hour + HOUR))
    batch = source.history(*DAY, now=NOW)
    assert hour not in values(batch)
    assert len(batch.points) >= 22
    assert any("15:00 UTC" in each and words in each for each in batch.refused), batch.refused


@pytest.mark.parametrize("name", BOTH)
def test_a_fuel_that_stops_being_told_is_missed(grid: GridServer, name: str) -> None:
    """Once gas was seen, hours without it are refused, not reckoned without gas."""
    source = of(name, grid)
    source.history(*DAY, now=NOW)
    grid.fail(Fault.MISSING_FUEL, provider=name)
    batch = source.history(*DAY, now=NOW)
    assert batch.points == ()
    assert {"entsoe": "B04 is missing", "open_electricity": "gas has no energy"}[name] in (
        batch.refused[0]
    )


@pytest.mark.parametrize("name", BOTH)
def test_a_type_nobody_has_heard_of_is_named(grid: GridServer, name: str) -> None:
    """It is never reckoned as clean."""
    grid.fail(Fault.NEW_FUEL, provider=name)
    batch = of(name, grid).history(*DAY, now=NOW)
    assert batch.points == ()
    assert {"entsoe": "B99", "open_electricity": "fusion"}[name] in batch.refused[0]


@pytest.mark.parametrize("name", BOTH)
def test_another_zone_and_another_unit_store_nothing(grid: GridServer, name: str) -> None:
    """An answer for elsewhere ends the poll; kilograms where tonnes belong are no value."""
    grid.fail(Fault.WRONG_ZONE, provider=name, times=1)
    with pytest.raises(ZoneMismatch, match="nothing was stored"):
        of(name, grid).latest(NOW)
    grid.fail(Fault.WRONG_UNIT, provider=name)
    batch = of(name, grid).latest(NOW)
    assert batch.points == ()
    assert any("not in" in each for each in batch.refused)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.EMPTY, NoData),
        (Fault.SERVER_ERROR, Transient),
        (Fault.NOT_JSON, Transient),
        (Fault.NOT_OBJECT, Transient),
        (Fault.TRUNCATED, Transient),
        (Fault.CLOSED, Transient),
        (Fault.RATE_LIMITED, SourceUnavailable),
        (Fault.UNAUTHORIZED, AuthFailed),
    ],
)
def test_each_failure_has_its_place_and_shows_no_key(
    grid: GridServer, name: str, fault: Fault, error: type[Exception]
) -> None:
    """In the tree of errors, with a sentence of its own."""
    grid.fail(fault, provider=name)
    source = of(name, grid)
    with pytest.raises(error) as caught:
        source.latest(NOW)
    chain = (caught.value, caught.value.__cause__, caught.value.__context__, source)
    assert not any(KEY in f"{each} {each!r}" for each in chain)


def test_an_hour_that_is_still_coming_is_left_out_without_a_word(grid: GridServer) -> None:
    """European types are told one after the other; a later poll has them all."""
    newest = NOON - 2 * HOUR
    source = of("entsoe", grid)
    source.history(*DAY, now=NOW)
    grid.fail(Fault.NULL, provider="entsoe", about=(newest, newest + HOUR))
    batch = source.history(*DAY, now=NOW)
    assert newest not in values(batch)
    assert batch.refused == ()
    grid.mend()
    assert newest in values(source.history(*DAY, now=NOW))


def test_an_entity_bomb_is_not_expanded(grid: GridServer) -> None:
    """A document that declares entities is no document."""
    grid.fail(Fault.ENTITIES, provider="entsoe")
    with pytest.raises(Transient, match="declares"):
        of("entsoe", grid).latest(NOW)


def test_hours_and_quarters_of_hours_are_the_same(grid: GridServer) -> None:
    """A zone that changes its resolution changes no value."""
    quarters = values(of("entsoe", grid).history(*DAY, now=NOW))
    grid.fail(Fault.RESOLUTION, provider="entsoe")
    assert values(of("entsoe", grid).history(*DAY, now=NOW)) == quarters


def test_long_spans_are_asked_for_in_parts(grid: GridServer) -> None:
    """Forty days, each hour once; questions to Australia are in its own time, without summer."""
    start = NOON - 45 * 24 * HOUR
    for name, parts in (("entsoe", 3), ("open_electricity", 2)):
        found = of(name, grid).history(start, start + 40 * 24 * HOUR, now=NOW).points
        assert [point.start for point in found] == [start + i * HOUR for i in range(960)]
        assert grid.count(name) == parts
    asked = parse_qs(urlsplit(grid.asked[-2].path).query)
    assert asked["date_start"] == ["2026-10-06T22:00:00"]  # noon of UTC, ten hours on
    assert asked["metrics"] == ["energy", "emissions"]


def test_own_factors_are_told_apart_by_the_model(grid: GridServer) -> None:
    """Another factor for lignite is another model, and another intensity."""
    usual = of("entsoe", grid).history(*DAY, now=NOW).points[0]
    mine = of("entsoe", grid, factors_g_per_kwh={"B02": 0.0}).history(*DAY, now=NOW).points[0]
    assert (usual.model, mine.model) == ("ENTSO-E mix", "ENTSO-E mix (B02=0)")
    assert mine.g_per_kwh < usual.g_per_kwh


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: opened("entsoe", "http://127.0.0.1:1", "Atlantis"), "Atlantis"),
        (
            lambda: opened("entsoe", "http://127.0.0.1:1", factors_g_per_kwh={"B02": -1.0}),
            "factor of B02 is -1",
        ),
        (lambda: opened("open_electricity", "http://127.0.0.1:1", "NZ"), "NEM, NSW1"),
        (lambda: opened("open_electricity", "http://127.0.0.1:1", key=" "), "key"),
    ],
)
def test_choices_that_cannot_be_are_refused(make: Callable[[], Provider], words: str) -> None:
    """Before anything is asked, and with what is allowed."""
    with pytest.raises(InputInvalid, match=words):
        make()


def block(metric: str, unit: str, data: list[Any], **changes: Any) -> dict[str, Any]:
    """One block of Open Electricity's answer: coal alone."""
    series = {"columns": {"region": "NSW1", "fueltech_group": "coal"}, "data": data}
    whole = {"network_code": "NEM", "metric": metric, "unit": unit, "interval": "1h"}
    return {**whole, "results": [series], **changes}


@pytest.mark.parametrize("tonnes", [0.0, -5.0])
def test_what_burns_and_emits_nothing_has_no_emissions_yet(tonnes: float) -> None:
    """Beside a group that has them the hour would look clean; less than a megawatt-hour may."""
    value, why = intensity({"coal": 900.0, "gas": 100.0}, {"coal": tonnes, "gas": 40.0})
    assert value is None
    assert "coal generated 900 MWh and emitted nothing" in why
    clean, why = intensity({"wind": 900.0, "gas": 0.4}, {"wind": 0.0, "gas": 0.0})
    assert (clean, why) == (0.0, "")


AT = "2026-11-20T19:00:00+10:00"
"""09:00 UTC."""
WITHIN = "2026-11-20T19:05:00+10:00"
"""A dispatch interval's time."""


@pytest.mark.parametrize(
    ("energy", "tonnes", "found"),
    [
        ([[AT, 100.0]], [[AT, 90.0]], [900.0]),
        ([[AT, None]], [[AT, 90.0]], []),
        ([[AT, 100.0]], [[AT, None]], []),
        ([[AT, True]], [[AT, 90.0]], []),
        ([[AT, "100"]], [[AT, 90.0]], []),
        ([[AT, -100.0]], [[AT, 90.0]], []),
        ([[AT, 1e-9]], [[AT, 90.0]], []),
        ([[AT, 100.0]], [], []),
        ([[AT, 100.0], [AT, 100.0]], [[AT, 90.0]], [900.0]),
        ([[AT, 100.0], [AT, 50.0]], [[AT, 90.0]], []),
    ],
)
def test_only_numbers_that_can_be_true_become_points(
    energy: list[Any], tonnes: list[Any], found: list[float]
) -> None:
    """What is null, text, below zero or beyond any grid is refused with a sentence."""
    told = {
        "success": True,
        "data": [block("energy", "MWh", energy), block("emissions", "t", tonnes)],
    }
    with answering(told) as server:
        batch = opened("open_electricity", server.url).history(*DAY, now=NOW)
    assert list(values(batch).values()) == found
    assert bool(batch.refused) is not bool(found)


@pytest.mark.parametrize(
    "told",
    [
        {"success": False, "data": []},
        {"success": True, "data": [block("energy", "MWh", [["2026-11-20T19:00:00", 1.0]])]},
        {"success": True, "data": [block("energy", "MWh", [["soon", 1.0]])]},
        {"success": True, "data": [block("energy", "MWh", [[AT, 1.0], [WITHIN, 1.0]])]},
        {"success": True, "data": [block("energy", "MWh", [[AT]])]},
        {"success": True, "data": ["a block"]},
        {"success": True, "data": [block("energy", "MWh", [], results=[{"data": []}])]},
    ],
)
def test_another_form_is_said_to_be_one(told: dict[str, Any]) -> None:
    """A time without a zone or within an hour, a row without a value, a block that is none."""
    with answering(told) as server, pytest.raises(Transient, match="Open Electricity"):
        opened("open_electricity", server.url).history(*DAY, now=NOW)


def generation(kind: str, *periods: tuple[str, str, str, str], unit: str = "MAW") -> str:
    """Write a series of ENTSO-E's: (start, end, resolution, "place=megawatts ...") on one day."""
    told = []
    for start, end, resolution, points in periods:
        each = "".join(
            f"<Point><position>{place}</position><quantity>{megawatts}</quantity></Point>"
            for place, megawatts in (point.split("=") for point in points.split())
        )
        told.append(
            f"<Period><timeInterval><start>2026-11-20T{start}Z</start><end>2026-11-20T{end}Z</end>"
            f"</timeInterval><resolution>{resolution}</resolution>{each}</Period>"
        )
    return (
        "<TimeSeries><inBiddingZone_Domain.mRID>10Y1001A1001A82H</inBiddingZone_Domain.mRID>"
        f"<quantity_Measure_Unit.name>{unit}</quantity_Measure_Unit.name><curveType>A03</curveType>"
        f"<MktPSRType><psrType>{kind}</psrType></MktPSRType>{''.join(told)}</TimeSeries>"
    )


CONSUMED = generation("B05", ("09:00", "10:00", "PT60M", "1=20")).replace(
    "inBiddingZone", "outBiddingZone"
)
"""What plants take while they stand still is a series of its own."""
HALF, OTHER_HALF = ("09:00", "09:30", "PT15M", "1=500"), ("09:30", "10:00", "PT30M", "1=500")


@pytest.mark.parametrize(
    ("coal", "found"),
    [
        ([generation("B05", HALF), generation("B05", OTHER_HALF)], [380.0]),
        ([generation("B05", HALF), generation("B05", HALF)], []),
        ([generation("B05", ("09:05", "10:05", "PT60M", "1=500"))], []),
        ([generation("B05", ("09:00", "10:00", "PT15M", "1=500 1=500"))], [380.0]),
        ([generation("B05", HALF), generation("B05", OTHER_HALF), CONSUMED], [380.0]),
        ([generation("B05", ("09:00", "10:00", "PT15M", "1=500 1=900"))], []),
        ([generation("B05", ("09:00", "10:00", "PT15M", "1=500 5=900"))], []),
        ([generation("B05", ("09:00", "10:00", "PT5M", "1=500"))], []),
        ([generation("B05", ("09:00", "10:00", "PT60M", "1=500"), unit="MWH")], []),
    ],
)
def test_a_european_hour_is_whole_where_each_type_is_told_once_throughout(
    coal: list[str], found: list[float]
) -> None:
    """Half an hour twice is no hour, and coal that cannot be read is not coal that is not there."""
    rest = [generation(kind, ("09:00", "10:00", "PT60M", "1=250")) for kind in ("B18", "B19")]
    created = "<createdDateTime>2026-11-20T11:00:00Z</createdDateTime>"
    document = f"<GL_MarketDocument>{created}{''.join([*rest, *coal])}</GL_MarketDocument>"
    with answering(document.encode()) as server:
        batch = opened("entsoe", server.url).history(*DAY, now=NOW)
    assert [round(each, 6) for each in values(batch).values()] == found
    assert bool(batch.refused) is not bool(found)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("No matching data found", NoData),
        ("requested data exceed the maximum allowed", RateLimited),
    ],
)
def test_what_a_european_acknowledgement_says_is_heard_with_status_200_too(
    text: str, error: type[Exception]
) -> None:
    """That too much was asked for is not that there is nothing."""
    told = "<Acknowledgement_MarketDocument><Reason><code>999</code>"
    told += f"<text>{text}</text></Reason></Acknowledgement_MarketDocument>"
    with answering(told.encode()) as server, pytest.raises(error, match=text):
        opened("entsoe", server.url).history(*DAY, now=NOW)
