"""Day-ahead prices over real HTTP: hours in EUR/MWh, of one auction, and what faults become."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.builders import cycles
from tests.carbon.asking import PATIENT
from tests.cycle.test_caps import node
from tests.cycle.test_clocks import GPUS, read
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.journal.carbon.exogenous import ExogenousValue, series_of
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.exogenous_poller import ExogenousPoller
from wattmesh.controller.signals.weather_wire import columns_of
from wattmesh.errors import NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.exogenous.entsoe import BRUSSELS, Entsoe
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.grid_server.entsoe_prices import OTHER_EUR, eur_per_mwh
from wattmesh.integrations.carbon.reading.entsoe_xml import (
    MarketDocument,
    parsed,
)
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.policies.powercap.demand_response import hours_of_day
from wattmesh.policies.powercap.triggers import CapOrigin, DemandSource, Trigger
from wattmesh.telemetry.exogenous import KINDS, ExogenousBatch, ExogenousKind

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
"""Ten past one in Brussels: tomorrow's prices are out."""
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TOKEN = "entsoe-token-0123456789"
GERMANY = "10Y1001A1001A82H"
SERIES = series_of("entsoe", "DE")


class Wall:
    """A clock that a test moves."""

    now = NOW


@pytest.fixture
def wall() -> Wall:
    """The server's clock."""
    return Wall()


@pytest.fixture
def grid(wall: Wall) -> Iterator[GridServer]:
    """A running grid server that knows one token."""
    with GridServer(clock=lambda: wall.now, keys=frozenset({TOKEN})).serving() as server:
        yield server


def entsoe(grid: GridServer, zone: str = "DE", *, prices: bool = True) -> Entsoe:
    """The product's client, on the server."""
    http = JsonHttp(grid.base("entsoe"), patience=PATIENT, pause=lambda _: None)
    return Entsoe(zone=zone, token=TOKEN, prices=prices, http=http)


def of(batch: ExogenousBatch) -> dict[datetime, float]:
    """Prices by the start of the hour."""
    return {each.start: each.value for each in batch.points if each.kind is ExogenousKind.PRICE}


def true_price(start: datetime) -> float:
    """The mean of an hour's quarters."""
    return sum(eur_per_mwh(GERMANY, start + n * HOUR / 4) for n in range(4)) / 4


def test_quarters_become_hours_of_the_coupled_auction_alone(grid: GridServer) -> None:
    """Repeated quarters are left out and filled; other auctions and the intraday market are not."""
    told = of(entsoe(grid).forecast(now=NOW))
    assert (min(told), max(told)) == (
        NOW.replace(day=19, hour=23, minute=0),
        NOW.replace(day=21, hour=22, minute=0),
    )
    for start, value in told.items():
        assert value == pytest.approx(true_price(start), abs=1e-3)
        assert value < OTHER_EUR / 2
    assert min(told.values()) < 0
    assert KINDS[ExogenousKind.PRICE].unit == "EUR/MWh"
    assert of(entsoe(grid, prices=False).forecast(now=NOW)) == {}


def test_a_change_of_resolution_changes_nothing_else(grid: GridServer) -> None:
    """One day in quarters, the next in hours."""
    before = of(entsoe(grid).forecast(now=NOW))
    grid.fail(Fault.RESOLUTION, provider="entsoe")
    after = of(entsoe(grid).forecast(now=NOW))
    assert after == pytest.approx(before, abs=2e-3)


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2025, 10, 26, tzinfo=UTC)]
)
def test_days_of_23_and_25_hours_are_whole(grid: GridServer, day: datetime) -> None:
    """No hour of UTC is missing or told twice."""
    told = of(entsoe(grid).past_forecasts(day - DAY, day + DAY, now=NOW))
    first, last = min(told), max(told)
    assert sorted(told) == [first + n * HOUR for n in range((last - first) // HOUR + 1)]


def test_a_price_is_known_from_the_auction_on_or_when_it_was_fetched(grid: GridServer) -> None:
    """13:00 in Brussels, in summer and in winter time; forecasts keep their own hour."""
    for day, hour in (
        (datetime(2026, 7, 10, tzinfo=UTC), 11),
        (datetime(2026, 11, 12, tzinfo=UTC), 12),
    ):
        told = entsoe(grid).past_forecasts(day, day + DAY, now=NOW)
        noon = {each.kind: each for each in told.points if each.start == day + 12 * HOUR}
        assert noon[ExogenousKind.PRICE].issued_at == day - DAY + hour * HOUR
        assert noon[ExogenousKind.LOAD].issued_at == day - DAY + (hour + 5) * HOUR
    early = {each.start: each for each in entsoe(grid).forecast(now=NOW).points}
    assert early[NOW.replace(day=21, hour=12, minute=0)].issued_at <= NOW


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.ENTITIES, Transient, "document type"),
        (Fault.EMPTY, NoData, "No matching data"),
        (Fault.WRONG_ZONE, ZoneMismatch, GERMANY),
        (Fault.TRUNCATED, Transient, "entsoe"),
    ],
)
def test_each_fault_has_one_sentence(
    grid: GridServer, fault: Fault, error: type[Exception], words: str
) -> None:
    """Nothing is made up, and the next answer is used again."""
    grid.fail(fault, provider="entsoe", times=None if fault is Fault.EMPTY else 6)
    with pytest.raises(error, match=words):
        entsoe(grid).forecast(now=NOW)
    grid.mend()
    assert of(entsoe(grid).forecast(now=NOW))


def test_another_currency_and_what_cannot_be_true_are_refused_with_a_reason(
    grid: GridServer,
) -> None:
    """Their hours have no point."""
    about = (NOW.replace(hour=9, minute=0), NOW.replace(hour=10, minute=0))
    whole = of(entsoe(grid).forecast(now=NOW))
    grid.fail(Fault.SPIKE, provider="entsoe", about=about)
    spiked = entsoe(grid).forecast(now=NOW)
    assert set(whole) - set(of(spiked)) == {about[0]}
    assert any("price of 9e+09 EUR/MWh is outside" in why for why in spiked.refused)
    grid.mend()
    grid.fail(Fault.WRONG_UNIT, provider="entsoe")
    other = entsoe(grid).forecast(now=NOW)
    assert of(other) == {}
    assert any("'PLN/MWH', not in EUR/MWH" in why for why in other.refused)


DOCUMENT = """<Publication_MarketDocument
xmlns="urn:iec62325.351:tc57wg16:451-3:publicationdocument:7:3">
<createdDateTime>2026-11-20T12:00:00Z</createdDateTime><TimeSeries>
<in_Domain.mRID>10Y1001A1001A82H</in_Domain.mRID><out_Domain.mRID>10Y1001A1001A82H</out_Domain.mRID>
<contract_MarketAgreement.type>A01</contract_MarketAgreement.type>
<currency_Unit.name>EUR</currency_Unit.name><price_Measure_Unit.name>MWH</price_Measure_Unit.name>
{auction}<curveType>{curve}</curveType><Period><timeInterval><start>2026-11-20T23:00Z</start>
<end>2026-11-21T02:00Z</end></timeInterval><resolution>PT60M</resolution>{points}</Period>
</TimeSeries></Publication_MarketDocument>"""
POSITION = "classificationSequence_AttributeInstanceComponent.position"


@pytest.mark.parametrize(
    ("curve", "points", "expected"),
    [
        ("A03", {1: "5", 3: "-2.5"}, [5.0, 5.0, -2.5]),  # left out because it repeats
        ("A01", {1: "5", 3: "-2.5"}, [5.0, -2.5]),  # left out because it is not known
        ("A03", {2: "0"}, [0.0, 0.0]),
        ("A03", {1: "nan", 2: "1e999", 3: "x"}, []),
        ("A03", {1: "5", 2: "nan"}, [5.0]),  # came, and says something that nobody can read
        ("A03", {1: "5", 9: "7"}, [5.0]),  # it may have been meant for any of the others
        ("A03", {1: "5", "x": "7", 3: "6"}, [5.0, 6.0]),
    ],
)
def test_points_that_are_left_out(
    curve: str, points: dict[int | str, str], expected: list[float]
) -> None:
    """Only a curve of kind A03 repeats; a price of 0 is a price; no number is none, nor filled."""
    told = "".join(
        f"<Point><position>{n}</position><price.amount>{value}</price.amount></Point>"
        for n, value in points.items()
    )
    found = parsed(DOCUMENT.format(auction="", curve=curve, points=told).encode())
    assert isinstance(found, MarketDocument)
    (series,) = found.series
    assert [value for _, _, value in series.intervals] == expected
    assert (found.prices, series.contract, series.auction) == (True, "A01", 1)


@pytest.mark.parametrize(
    ("text", "number"), [("2", 2), ("", 1), ("x", 0), ("-1", 0), ("9" * 40, 0)]
)
def test_the_number_of_an_auction(text: str, number: int) -> None:
    """None is the only one; one that is no number is none of ours."""
    auction = f"<{POSITION}>{text}</{POSITION}>"
    found = parsed(DOCUMENT.format(auction=auction, curve="A03", points="").encode())
    assert isinstance(found, MarketDocument)
    assert found.series[0].auction == number


# ---- in the journal, and what demand response makes of it

SOURCE = DemandSource(
    trigger=Trigger(
        origin=CapOrigin.PRICE, worst_hours=2, cap_w=1500.0, ahead_hours=36, timezone=BRUSSELS
    ),
    prices="entsoe:DE",
)


def turn(journal: Journal, at: datetime, source: DemandSource = SOURCE) -> CycleReport:
    """Run one cycle of a daemon that leads, follows prices alone, and hears four boards."""
    fleet = Fleet(nodes=(node(at=at),), gpus=read(*GPUS))
    return cycles.turn(journal, at=at, fleet=fleet, demand=(source,), facts=None)


def test_the_dearest_hours_of_each_day_are_capped_once_they_are_priced(
    sqlite_journal: Journal, grid: GridServer, wall: Wall
) -> None:
    """Negative prices around noon are none of them; late prices leave tomorrow as it is."""
    poller = ExogenousPoller("entsoe", "DE", entsoe(grid), sqlite_journal)
    grid.fail(Fault.LATE_ISSUE, provider="entsoe")  # tomorrow's prices come a day late
    poller.poll(NOW)
    turn(sqlite_journal, NOW)
    grid.mend()
    (today,) = sqlite_journal.caps.list()
    hours = list(hours_of_day(NOW.date(), BRUSSELS))
    dearest = sorted(hours, key=lambda at: (-true_price(at), at))[:2]
    assert (today.start, today.until) == (min(dearest), max(dearest) + HOUR)
    assert today.trigger is not None
    assert (today.origin, today.trigger.signal, today.trigger.unit) == (
        CapOrigin.PRICE,
        "entsoe:DE",
        "EUR/MWh",
    )
    assert today.trigger.issued_at is not None
    assert today.trigger.issued_at <= NOW
    wall.now = NOW + HOUR
    poller.poll(wall.now)
    turn(sqlite_journal, wall.now)
    tomorrow = sqlite_journal.caps.list()[0]
    assert tomorrow.start.date() == (NOW + DAY).date()
    assert tomorrow.trigger is not None
    assert tomorrow.trigger.issued_at == NOW  # when it was asked for and not told


def test_restated_prices_take_back_a_window_with_notice(
    sqlite_journal: Journal, grid: GridServer, wall: Wall
) -> None:
    """The newest value counts, from when it was fetched."""
    poller = ExogenousPoller("entsoe", "DE", entsoe(grid), sqlite_journal)
    poller.poll(NOW)
    above = replace(
        SOURCE, trigger=replace(SOURCE.trigger, worst_hours=None, above=185.0, hysteresis=0.0)
    )
    turn(sqlite_journal, NOW, above)
    before = len(sqlite_journal.caps.list())
    wall.now = NOW + HOUR
    grid.fail(Fault.REVISED, provider="entsoe", about=(NOW, NOW + 3 * DAY))  # dearer by 20
    poller.poll(wall.now)
    turn(sqlite_journal, wall.now, replace(above, trigger=replace(above.trigger, above=300.0)))
    rows = sqlite_journal.caps.list()
    assert before > 0
    assert all(row.ended_by.endswith("is below 300 by now") for row in rows)
    value = turn(sqlite_journal, wall.now, above).demand[0]
    assert not value.held
    newest = sqlite_journal.caps.list()[0]
    assert newest.trigger is not None
    assert newest.trigger.value > max(row.trigger.value for row in rows if row.trigger)


@pytest.mark.parametrize(
    ("wait", "held", "words"),
    [
        (timedelta(), True, "entsoe:DE has not answered yet"),
        (10 * HOUR, False, ""),  # what an auction told does not age
        (27 * HOUR, True, "entsoe:DE was last heard 1.1 d ago, more than the 1 d"),
    ],
)
def test_prices_are_fresh_for_as_long_as_an_auction_is_not_missed(
    sqlite_journal: Journal, grid: GridServer, wait: timedelta, held: bool, words: str
) -> None:
    """And nothing is triggered where nobody told any."""
    if wait:
        ExogenousPoller("entsoe", "DE", entsoe(grid), sqlite_journal).poll(NOW)
    (told,) = turn(sqlite_journal, NOW + wait).demand
    assert told.held is held
    assert words in told.sentence


def test_a_failed_poll_says_why_and_takes_no_price_away(
    sqlite_journal: Journal, grid: GridServer
) -> None:
    """The detail of the last poll stands in the sentence once prices run out."""
    poller = ExogenousPoller("entsoe", "DE", entsoe(grid), sqlite_journal)
    poller.poll(NOW)
    grid.fail(Fault.SERVER_ERROR, provider="entsoe")
    poller.poll(NOW + HOUR)
    assert not turn(sqlite_journal, NOW + HOUR).demand[0].held
    patient = replace(SOURCE, stale_after_s=1e8)
    (told,) = turn(sqlite_journal, NOW + 3 * DAY, patient).demand
    assert "tells no price of the hours ahead (" in told.sentence
    assert "500" in told.sentence


def test_the_forecast_with_weather_does_not_read_prices() -> None:
    """Its figures are measured without."""
    row = ExogenousValue(
        series=SERIES, kind=ExogenousKind.PRICE, start=NOW, value=1.0, known_at=NOW
    )
    rows: list[Any] = [row, replace(row, kind=ExogenousKind.WIND)]
    assert set(columns_of(rows, NOW, 0, NOW)) == {(SERIES, "wind")}
