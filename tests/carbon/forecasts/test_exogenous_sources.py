"""Exogenous series over real HTTP: hours with their issue time, and what each fault becomes."""

import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.carbon.asking import PATIENT
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
from wattmesh.integrations.carbon.exogenous.collected import Collected
from wattmesh.integrations.carbon.exogenous.entsoe import Entsoe
from wattmesh.integrations.carbon.exogenous.open_meteo import OpenMeteo, Place
from wattmesh.integrations.carbon.grid_server import Fault, GridServer, ServedProvider
from wattmesh.integrations.carbon.grid_server.entsoe import megawatts
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.exogenous import ExogenousBatch, ExogenousKind, ExogenousProvider

NOW = datetime(2026, 11, 20, 19, 10, tzinfo=UTC)
"""Ten past eight in the evening in Brussels: tomorrow's forecasts are out."""
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
TOKEN = "entsoe-token-0123456789"
GERMANY = "10Y1001A1001A82H"


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one token."""
    with GridServer(clock=lambda: NOW, keys=frozenset({TOKEN})).serving() as server:
        yield server


def entsoe(grid: GridServer, token: str = TOKEN, zone: str = "DE") -> Entsoe:
    """The product's client, on the server."""
    http = JsonHttp(grid.base("entsoe"), patience=PATIENT, pause=lambda _: None)
    return Entsoe(zone=zone, token=token, http=http)


def open_meteo(grid: GridServer, places: int = 2) -> OpenMeteo:
    """The same for the weather; the second place counts three times."""
    http, past = (
        JsonHttp(grid.base("open_meteo"), patience=PATIENT, pause=lambda _: None) for _ in "12"
    )
    where = (
        Place(latitude=54.0, longitude=9.0),
        Place(latitude=48.1, longitude=11.6, weight=3.0),
    )
    return OpenMeteo(zone="DE", places=where[:places], http=http, past_http=past)


def of(batch: ExogenousBatch, kind: ExogenousKind) -> dict[datetime, float]:
    """Values of a kind by the start of the hour."""
    return {point.start: point.value for point in batch.points if point.kind is kind}


def test_both_serve_the_protocol(grid: GridServer) -> None:
    """And name what they serve, in the units of the kinds."""
    for source in (entsoe(grid), open_meteo(grid)):
        protocol: ExogenousProvider = source
        told = protocol.forecast(now=NOW)
        assert {point.kind for point in told.points} == set(protocol.kinds)
        assert told.refused == ()
        assert protocol.cadence > timedelta()


def test_quarters_become_hours_and_wind_at_sea_is_added(grid: GridServer) -> None:
    """Points that repeat the one before are left out of the answer, and filled."""
    told = of(entsoe(grid).forecast(now=NOW), ExogenousKind.WIND)
    for start in (NOW.replace(minute=0), NOW.replace(minute=0) + 10 * HOUR):
        quarters = [start + n * timedelta(minutes=15) for n in range(4)]
        each = [sum(megawatts(GERMANY, kind, at) for kind in ("B18", "B19")) for at in quarters]
        assert told[start] == pytest.approx(sum(each) / 4)


def test_a_day_is_known_from_18_00_in_brussels_of_the_day_before(grid: GridServer) -> None:
    """In summer and in winter time; what is not published has no point."""
    for day, hour in (
        (datetime(2026, 7, 10, tzinfo=UTC), 16),
        (datetime(2026, 11, 12, tzinfo=UTC), 17),
    ):
        told = entsoe(grid).past_forecasts(day, day + DAY, now=NOW)
        noon = next(each for each in told.points if each.start == day + 12 * HOUR)
        assert noon.issued_at == day - DAY + hour * HOUR
        assert noon.fetched_at == NOW
    tomorrow = of(entsoe(grid).forecast(now=NOW), ExogenousKind.LOAD)
    assert max(tomorrow) == datetime(2026, 11, 21, 22, tzinfo=UTC)
    with pytest.raises(NoData, match="no day-ahead forecast of DE"):
        entsoe(grid).past_forecasts(NOW + 3 * DAY, NOW + 4 * DAY, now=NOW)


def test_what_was_fetched_before_18_00_was_known_then(grid: GridServer) -> None:
    """Operators may be early; nothing counts as issued after it was fetched."""
    early = NOW - 3 * HOUR
    told = entsoe(grid).past_forecasts(NOW + 6 * HOUR, NOW + 9 * HOUR, now=early)
    assert {point.issued_at for point in told.points if point.start > NOW + 5 * HOUR} == {early}


def test_an_hour_of_three_quarters_is_no_hour() -> None:
    """Its mean is not known, and neither is that of one which is told twice in part."""
    told = Collected(provider="p", zone="z", now=NOW)
    quarter, start = timedelta(minutes=15), NOW.replace(minute=0)
    for number in (0, 1, 3, 4, 5, 6, 7):
        at = start + number * quarter
        told.add(ExogenousKind.WIND, at, at + quarter, 8.0 * number)
    assert of(told.batch(NOW), ExogenousKind.WIND) == {start + HOUR: 44.0}
    told.add(ExogenousKind.WIND, start + 65 * quarter / 15, start + 6 * quarter, 1.0)
    assert of(told.batch(NOW), ExogenousKind.WIND) == {}


def test_wind_at_sea_that_is_not_told_leaves_no_wind() -> None:
    """Half of a zone's wind is not its wind."""
    told = Collected(provider="p", zone="z", now=NOW)
    start = NOW.replace(minute=0)
    for series, hours in (("onshore", 2), ("offshore", 1)):
        for at in (start + n * HOUR for n in range(hours)):
            told.add(ExogenousKind.WIND, at, at + HOUR, 5.0, series)
    assert of(told.batch(NOW), ExogenousKind.WIND) == {start: 10.0}


def test_one_of_two_places_that_says_nothing_leaves_a_hole(grid: GridServer) -> None:
    """The other one's weather is not the zone's."""

    class Half(JsonHttp):
        def get(self, path: str, **how: Any) -> Any:
            told = super().get(path, **how)
            told[0]["hourly"]["wind_speed_10m"][5] = None
            return told

    places = (Place(latitude=54.0, longitude=9.0), Place(latitude=48.1, longitude=11.6))
    half = OpenMeteo(zone="DE", places=places, http=Half(grid.base("open_meteo")))
    told = half.forecast(now=NOW)
    missing = set(of(told, ExogenousKind.DEW_POINT)) - set(of(told, ExogenousKind.WIND_SPEED))
    assert missing == {NOW.replace(hour=5, minute=0)}


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2025, 10, 26, tzinfo=UTC)]
)
def test_days_of_23_and_25_hours_are_whole(grid: GridServer, day: datetime) -> None:
    """When clocks change no hour of UTC is missing or told twice."""
    told = of(entsoe(grid).past_forecasts(day - DAY, day + DAY, now=NOW), ExogenousKind.LOAD)
    first, last = min(told), max(told)
    assert sorted(told) == [first + n * HOUR for n in range((last - first) // HOUR + 1)]
    assert first <= day - DAY
    assert last >= day + DAY - HOUR


def test_a_change_of_resolution_changes_nothing_else(grid: GridServer) -> None:
    """One day in quarters of an hour, the next in hours: the same hours are told."""
    span = (NOW - 6 * DAY, NOW - 2 * DAY)
    before = entsoe(grid).past_forecasts(*span, now=NOW)
    grid.fail(Fault.RESOLUTION, provider="entsoe")
    after = entsoe(grid).past_forecasts(*span, now=NOW)
    wind, same = of(before, ExogenousKind.WIND), of(after, ExogenousKind.WIND)
    assert list(wind) == list(same)
    assert wind == same  # the server's wind is constant within an hour


def test_missing_days_are_missing_and_revised_ones_restated(grid: GridServer) -> None:
    """A hole is no zero; a later answer has the newer values."""
    span = (NOW - 5 * DAY, NOW - DAY)
    whole = of(entsoe(grid).past_forecasts(*span, now=NOW), ExogenousKind.SOLAR)
    grid.fail(Fault.GAP, provider="entsoe", about=(NOW - 4 * DAY, NOW - 3 * DAY))
    holed = of(entsoe(grid).past_forecasts(*span, now=NOW), ExogenousKind.SOLAR)
    assert len(whole) - len(holed) == 24
    assert all(whole[start] == value for start, value in holed.items())
    grid.mend()
    grid.fail(Fault.REVISED, provider="entsoe")
    newer = of(entsoe(grid).past_forecasts(*span, now=NOW), ExogenousKind.SOLAR)
    noon = (NOW - 2 * DAY).replace(hour=12, minute=0)
    assert newer[noon] == pytest.approx(1.2 * whole[noon], rel=1e-3)


def test_long_spans_are_asked_for_in_parts(grid: GridServer) -> None:
    """Two hundred days in three parts, two documents each, without a hole."""
    told = of(entsoe(grid).past_forecasts(NOW - 200 * DAY, NOW - DAY, now=NOW), ExogenousKind.LOAD)
    assert grid.count("entsoe") == 6
    assert len(told) >= 199 * 24
    assert (max(told) - min(told)) // HOUR + 1 == len(told)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.ENTITIES, Transient, "document type"),
        (Fault.NOT_JSON, Transient, "not a GL_MarketDocument"),
        (Fault.TRUNCATED, Transient, "entsoe"),
        (Fault.EMPTY, NoData, "No matching data"),
        (Fault.NO_DATA, NoData, "DE"),
        (Fault.BAD_REQUEST, RateLimited, "maximum allowed"),
        (Fault.UNAUTHORIZED, AuthFailed, "token"),
        (Fault.SERVER_ERROR, Transient, "500"),
        (Fault.RATE_LIMITED, RateLimited, "429"),
        (Fault.HUGE, SourceUnavailable, "MiB"),
        (Fault.WRONG_ZONE, ZoneMismatch, GERMANY),
        (Fault.REDIRECT, SourceUnavailable, "redirect"),
    ],
)
def test_each_fault_of_entsoe_has_one_sentence_without_the_token(
    grid: GridServer, fault: Fault, error: type[WattmeshError], words: str
) -> None:
    """Whatever it answers, nothing is made up, and the next answer is used again."""
    source = entsoe(grid)
    grid.fail(fault, provider="entsoe", times=None if fault is Fault.EMPTY else 6)
    with pytest.raises(error, match=words) as caught:
        source.forecast(now=NOW)
    assert TOKEN not in str(caught.value)
    grid.mend()
    assert entsoe(grid).forecast(now=NOW).points


@pytest.mark.parametrize("provider", [ServedProvider.ENTSOE, ServedProvider.OPEN_METEO])
def test_what_cannot_be_true_is_refused_with_a_reason(
    grid: GridServer, provider: ServedProvider
) -> None:
    """A spike or a unit that was not asked for becomes a reason; its hour has no point."""
    source = entsoe(grid) if provider is ServedProvider.ENTSOE else open_meteo(grid)
    whole = source.forecast(now=NOW)
    about = (NOW.replace(hour=9, minute=0), NOW.replace(hour=10, minute=0))
    grid.fail(Fault.SPIKE, provider=provider, about=about)
    spiked = source.forecast(now=NOW)
    kind = source.kinds[0]
    assert set(of(whole, kind)) - set(of(spiked, kind)) == {about[0]}
    assert any("outside" in why for why in spiked.refused)
    grid.mend()
    grid.fail(Fault.WRONG_UNIT, provider=provider)
    assert not of(source.forecast(now=NOW), kind)


def test_a_wrong_token_and_a_wrong_zone_are_named(grid: GridServer) -> None:
    """A refusal waits for a person; a zone is checked before anything is sent."""
    with pytest.raises(AuthFailed, match="token"):
        entsoe(grid, token="another-token").forecast(now=NOW)
    with pytest.raises(InputInvalid, match="10YFR-RTE"):
        entsoe(grid, zone="Atlantis")
    assert grid.count("entsoe") == 1


def test_the_weather_of_a_zone_is_the_weighted_mean_of_its_places(grid: GridServer) -> None:
    """Kelvin and metres a second; radiation belongs to the hour before its time."""
    both = open_meteo(grid).forecast(now=NOW)
    one = open_meteo(grid, places=1).forecast(now=NOW)
    at = NOW.replace(minute=0)
    assert all(point.issued_at == NOW for point in both.points)
    assert 250 < of(both, ExogenousKind.TEMPERATURE)[at] < 320
    assert of(both, ExogenousKind.WIND_SPEED)[at] != of(one, ExogenousKind.WIND_SPEED)[at]
    radiation = of(one, ExogenousKind.RADIATION)
    assert radiation[at.replace(hour=6)] > 0 == radiation[at.replace(hour=5)]
    hours = of(both, ExogenousKind.WIND_SPEED)
    assert len(hours) == 4 * 24


def test_a_place_that_says_nothing_leaves_a_hole(grid: GridServer) -> None:
    """Half a zone's weather is not the zone's."""
    about = (NOW.replace(hour=9, minute=0), NOW.replace(hour=11, minute=0))
    grid.fail(Fault.NULL, provider="open_meteo", about=about)
    told = of(open_meteo(grid).forecast(now=NOW), ExogenousKind.TEMPERATURE)
    assert about[0] not in told
    assert about[1] in told


def test_the_past_is_what_was_forecast_a_day_before(grid: GridServer) -> None:
    """Each hour is known 18 hours before it: a day, less the six hours that a model takes."""
    start = datetime(2026, 9, 1, tzinfo=UTC)
    told = open_meteo(grid).past_forecasts(start, start + 70 * DAY, now=NOW)
    assert all(point.issued_at == point.start - 18 * HOUR for point in told.points)
    hours = of(told, ExogenousKind.DEW_POINT)
    assert [start + n * HOUR for n in range(70 * 24)] == sorted(hours)[: 70 * 24]
    assert grid.count("open_meteo", "previous_day1") == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault.BAD_REQUEST, SourceUnavailable),
        (Fault.NOT_JSON, Transient),
        (Fault.NOT_OBJECT, Transient),
        (Fault.WRONG_ZONE, ZoneMismatch),
        (Fault.RATE_LIMITED, RateLimited),
    ],
)
def test_each_fault_of_open_meteo_has_one_sentence(
    grid: GridServer, fault: Fault, error: type[WattmeshError]
) -> None:
    """And the next answer is used again."""
    grid.fail(fault, provider="open_meteo", times=3)
    with pytest.raises(error):
        open_meteo(grid).forecast(now=NOW)
    grid.mend()
    assert open_meteo(grid).forecast(now=NOW).points


class Elsewhen(JsonHttp):
    """A proxy that answers every question with the documents of other days."""

    def get(self, path: str, **how: Any) -> Any:
        """Ask for nine days before."""
        moved = dict(how.pop("query"))
        for name, form in _FORMS.items():
            if name in moved:
                asked = datetime.strptime(moved[name], form).replace(tzinfo=UTC)
                moved[name] = f"{asked - 9 * DAY:{form}}"
        return super().get(path, query=moved, **how)


_FORMS = {
    "periodStart": "%Y%m%d%H%M",
    "periodEnd": "%Y%m%d%H%M",
    "start_date": "%Y-%m-%d",
    "end_date": "%Y-%m-%d",
}


def test_a_document_of_other_days_is_left_out_with_a_reason(grid: GridServer) -> None:
    """Nothing says from when its hours were known."""
    asked_from, asked_to = NOW - 5 * DAY, NOW - 3 * DAY
    stale = [Elsewhen(grid.base(each), patience=PATIENT) for each in ("entsoe", "open_meteo")]
    place = Place(latitude=54.0, longitude=9.0)
    sources: tuple[ExogenousProvider, ...] = (
        Entsoe(zone="DE", token=TOKEN, http=stale[0]),
        OpenMeteo(zone="DE", places=(place,), http=stale[1], past_http=stale[1]),
    )
    for source in sources:
        told = source.past_forecasts(asked_from, asked_to, now=NOW)
        assert told.points == ()
        assert re.match("2026-11-0[56]T.* was not asked for", told.refused[0])


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"time": [253402297200]}, Transient, "another form"),
        ({"time": [-62135596800]}, Transient, "another form"),
        ({"latitude": math.nan}, ZoneMismatch, "nan"),
        ({"temperature_2m": [10**400]}, None, "no number"),
    ],
)
def test_numbers_of_open_meteo_that_cannot_be_are_refused(
    grid: GridServer, changed: Mapping[str, Any], error: type[WattmeshError] | None, words: str
) -> None:
    """A time beyond all calendars, no place, and an integer beyond all floats."""

    class Odd(JsonHttp):
        def get(self, path: str, **how: Any) -> Any:
            told = super().get(path, **how)
            for name, value in changed.items():
                told[name] = value
                told["hourly"][name] = value
            return told

    place = Place(latitude=54.0, longitude=9.0)
    source = OpenMeteo(zone="DE", places=(place,), http=Odd(grid.base("open_meteo")))
    if error is None:
        assert any(words in why for why in source.forecast(now=NOW).refused)
        return
    with pytest.raises(error, match=words):
        source.forecast(now=NOW)


@pytest.mark.parametrize(
    ("latitude", "weight"), [(91.0, 1.0), (float("nan"), 1.0), (50.0, 0.0), (50.0, float("inf"))]
)
def test_what_is_no_place_is_refused(latitude: float, weight: float) -> None:
    """Before anything is sent."""
    with pytest.raises(InputInvalid):
        Place(latitude=latitude, longitude=9.0, weight=weight)
