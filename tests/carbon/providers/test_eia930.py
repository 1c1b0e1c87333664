"""EIA-930 over real HTTP: intensities derived from the mix, and what each of its faults becomes."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.carbon.asking import PATIENT
from tests.carbon.providers.one_answer import answering
from wattmesh.errors import AuthFailed, InputInvalid, NoData, Transient, ZoneMismatch
from wattmesh.integrations.carbon.eia930 import Eia930
from wattmesh.integrations.carbon.grid_server import Fault, GridServer
from wattmesh.integrations.carbon.reading.fuel_mix import (
    DIRECT_G_PER_KWH,
    HIGHEST_FACTOR_G_PER_KWH,
    MATTERS,
    STORAGE,
    Mix,
    derived,
)
from wattmesh.integrations.carbon.reading.http import JsonHttp
from wattmesh.telemetry.carbon import Provider
from wattmesh.telemetry.readings import Quality

NOW = datetime(2026, 11, 20, 12, 10, tzinfo=UTC)
NOON = NOW.replace(minute=0)
HOUR = timedelta(hours=1)
KEY = "eia-key-0123456789"
DAY = (NOON - 24 * HOUR, NOON)


@pytest.fixture
def grid() -> Iterator[GridServer]:
    """Give a running grid server that knows one key; hours are out six hours after their end."""
    with GridServer(clock=lambda: NOW, keys=frozenset({KEY})).serving() as server:
        yield server


def eia(base: str, *, key: str = KEY, zone: str = "CISO", **more: Any) -> Eia930:
    """Give a provider that asks `base`, impatiently."""
    http = JsonHttp(base, patience=PATIENT, pause=lambda _: None)
    return Eia930(zone=zone, key=key, http=http, **more)


def test_hours_are_of_the_mix_and_stand_where_their_label_ends(grid: GridServer) -> None:
    """An hour labelled 14 is the one from 13 to 14; its intensity is that of its fuels."""
    source: Provider = eia(grid.base("eia930"))
    batch = source.history(*DAY, now=NOW)
    assert batch.refused == ()
    assert [point.start for point in batch.points] == [DAY[0] + i * HOUR for i in range(18)]
    for point in batch.points:
        assert point.quality is Quality.MEASURED
        assert point.end - point.start == HOUR
        # The server's mix is rounded to a megawatt-hour and, while young, off by up to 4 %.
        assert abs(point.g_per_kwh - grid.grid.truth("CISO", point.start)) < 0.05 * point.g_per_kwh
    assert str(batch.points[0].signal) == "eia930:CISO:average:direct:CO2"
    assert (source.series.lag_s, source.series.forecast_s) == (86_400, 0)


def test_another_label_moves_the_series_by_an_hour(grid: GridServer) -> None:
    """`starting` takes the label as the beginning: the same values, an hour later."""
    ending = eia(grid.base("eia930")).history(DAY[0], DAY[0] + 6 * HOUR, now=NOW).points
    starting = eia(grid.base("eia930"), label="starting")
    moved = starting.history(DAY[0] + HOUR, DAY[0] + 7 * HOUR, now=NOW).points
    assert [point.g_per_kwh for point in moved] == [point.g_per_kwh for point in ending]
    assert [point.start - HOUR for point in moved] == [point.start for point in ending]
    wrong = [abs(p.g_per_kwh - grid.grid.truth("CISO", p.start)) for p in moved]
    assert max(wrong) > 5  # the right label is the one whose values agree with the truth


@pytest.mark.parametrize(
    "day", [datetime(2026, 3, 8, tzinfo=UTC), datetime(2026, 11, 1, tzinfo=UTC)]
)
def test_days_on_which_clocks_change_have_24_hours(grid: GridServer, day: datetime) -> None:
    """Labels are UTC: no hour is missing or told twice when California changes its clocks."""
    points = eia(grid.base("eia930")).history(day, day + 24 * HOUR, now=NOW).points
    assert [point.start for point in points] == [day + i * HOUR for i in range(24)]


def test_older_answers_with_numbers_are_read_alike(grid: GridServer) -> None:
    """A value may be text or a number."""
    as_text = eia(grid.base("eia930")).history(*DAY, now=NOW)
    grid.fail(Fault.NUMBERS, provider="eia930")
    assert eia(grid.base("eia930")).history(*DAY, now=NOW) == as_text


def test_a_null_that_matters_refuses_its_hour(grid: GridServer) -> None:
    """Gas without a value is not gas of nothing: the hour is named and has no point."""
    hour = DAY[0] + 3 * HOUR
    grid.fail(Fault.NULL, provider="eia930", about=(hour, hour + HOUR))
    batch = eia(grid.base("eia930")).history(*DAY, now=NOW)
    assert hour not in {point.start for point in batch.points}
    assert len(batch.points) == 17
    assert batch.refused == (
        "The value of 2026-11-19 15:00 UTC cannot be derived: fuel NG has no value.",
    )


def test_a_fuel_nobody_has_heard_of_refuses_its_hours(grid: GridServer) -> None:
    """A code that EIA adds one day is named in each hour, never reckoned as clean."""
    grid.fail(Fault.NEW_FUEL, provider="eia930")
    batch = eia(grid.base("eia930")).history(*DAY, now=NOW)
    assert batch.points == ()
    assert "fuel XXX (900 MWh) has no factor" in batch.refused[0]
    clean = eia(grid.base("eia930"), factors_g_per_kwh={"XXX": 0.0})
    assert len(clean.history(*DAY, now=NOW).points) == 18


def test_a_fuel_that_stops_being_told_is_missed(grid: GridServer) -> None:
    """Once gas was seen, hours without its row are refused, not reckoned without gas."""
    source = eia(grid.base("eia930"))
    source.history(*DAY, now=NOW)
    grid.fail(Fault.MISSING_FUEL, provider="eia930")
    batch = source.history(*DAY, now=NOW)
    assert batch.points == ()
    assert "fuel NG is missing" in batch.refused[0]


def test_a_fuel_is_not_missed_for_ever(grid: GridServer) -> None:
    """Ten days after its last row a fuel counts as gone: a plant that closed blocks nothing."""
    source = eia(grid.base("eia930"))
    old = NOON - 30 * 24 * HOUR
    source.history(old, old + 24 * HOUR, now=NOW)
    grid.fail(Fault.MISSING_FUEL, provider="eia930")
    soon, late = old + 5 * 24 * HOUR, old + 20 * 24 * HOUR
    assert source.history(soon, soon + 6 * HOUR, now=NOW).points == ()
    assert len(source.history(late, late + 6 * HOUR, now=NOW).points) == 6


def test_hours_of_zeros_have_no_intensity(grid: GridServer) -> None:
    """An outage in which every fuel is 0 tells nothing."""
    hour = DAY[0] + 3 * HOUR
    grid.fail(Fault.ZERO, provider="eia930", about=(hour, hour + HOUR))
    batch = eia(grid.base("eia930")).history(*DAY, now=NOW)
    assert hour not in {point.start for point in batch.points}
    assert "no fuel generated anything" in batch.refused[0]


def test_a_hole_stays_a_hole_and_a_revision_is_told_as_it_is_now(grid: GridServer) -> None:
    """Hours that EIA left out are not invented; a later answer says the newest mix."""
    hour = DAY[0] + 3 * HOUR
    source = eia(grid.base("eia930"))
    before = {p.start: p.g_per_kwh for p in source.history(*DAY, now=NOW).points}
    grid.fail(Fault.REVISED, provider="eia930", about=(hour, hour + HOUR))
    after = {p.start: p.g_per_kwh for p in source.history(*DAY, now=NOW).points}
    assert [start for start in before if before[start] != after[start]] == [hour]
    grid.fail(Fault.GAP, provider="eia930", about=(hour, hour + HOUR))
    assert hour not in {p.start for p in source.history(*DAY, now=NOW).points}


def test_long_spans_come_in_pages(grid: GridServer) -> None:
    """Forty days of eight fuels are 7680 rows: two pages, each hour once."""
    start = NOON - 45 * 24 * HOUR
    points = eia(grid.base("eia930")).history(start, start + 40 * 24 * HOUR, now=NOW).points
    assert [point.start for point in points] == [start + i * HOUR for i in range(960)]
    offsets = [parse_qs(urlsplit(each.path).query)["offset"] for each in grid.asked]
    assert offsets == [["0"], ["5000"]]


def test_a_wrong_key_is_refused_and_never_shown(grid: GridServer) -> None:
    """The sentence says what to check; the key, a query parameter, is in none of it."""
    wrong = eia(grid.base("eia930"), key="eia-wrong-987654321")
    with pytest.raises(AuthFailed, match="key_file") as caught:
        wrong.latest(NOW)
    grid.fail(Fault.CLOSED, provider="eia930")
    with pytest.raises(Transient) as lost:
        eia(grid.base("eia930")).latest(NOW)
    for text in (str(caught.value), repr(caught.value), repr(wrong)):
        assert "eia-wrong" not in text
    for error in (lost.value, lost.value.__context__, lost.value.__cause__):
        assert KEY not in f"{error} {error!r}"


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault.EMPTY, NoData, "about a day late"),
        (Fault.NOT_OBJECT, Transient, "has no response.data"),
        (Fault.SERVER_ERROR, Transient, "500"),
        (Fault.TRUNCATED, Transient, "IncompleteRead"),
        (Fault.NO_DATA, NoData, "404"),
    ],
)
def test_what_is_no_answer_says_what_came(
    grid: GridServer, fault: Fault, error: type[Exception], words: str
) -> None:
    """Each failure has its place in the tree of errors and its own sentence."""
    grid.fail(fault, provider="eia930")
    with pytest.raises(error, match=words):
        eia(grid.base("eia930")).latest(NOW)


def test_an_unknown_authority_has_no_data(grid: GridServer) -> None:
    """EIA answers an empty list; the sentence says that this looks like an unknown zone."""
    with pytest.raises(NoData, match="unknown authority looks the same"):
        eia(grid.base("eia930"), zone="NOWHERE").capabilities(NOW)
    assert eia(grid.base("eia930")).capabilities(NOW).detail.startswith("The newest hour ends at")
    assert eia(grid.base("eia930")).forecast(24, now=NOW).points == ()


def row(fuel: str, value: Any, **more: Any) -> dict[str, Any]:
    """Write one row of the hour from 09 to 10."""
    named = {"period": "2026-11-20T10", "respondent": "CISO", "fueltype": fuel, "value": value}
    return {**named, "value-units": "megawatthours", **more}


def one_hour(rows: list[Any], **more: Any) -> tuple[list[tuple[Quality, float]], tuple[str, ...]]:
    """Read the hour from 09 to 10 from these rows: (points, refusals)."""
    with answering({"response": {"total": str(len(rows)), "data": rows}}) as told:
        batch = eia(told.url, **more).history(NOON - 4 * HOUR, NOON, now=NOW)
    return [(p.quality, round(p.g_per_kwh, 3)) for p in batch.points], batch.refused


def test_storage_and_negative_output_count_as_nothing_generated() -> None:
    """A battery that charges or discharges and a solar park at night change no intensity."""
    rows = [row("NG", "5000"), row("WND", "5000")]
    stored = [row("BAT", "-900"), row("PS", "700"), row("UES", None), row("SUN", "-20")]
    assert one_hour(rows + stored) == one_hour(rows) == ([(Quality.MEASURED, 185.0)], ())


def test_a_new_code_is_named_and_never_reckoned_as_nothing() -> None:
    """A fuel nobody knows refuses the hour; where it is too small to matter it is named still."""
    base = [row("NG", "5000"), row("WND", "5000")]
    points, refused = one_hour([*base, row("XYZ", "900")])
    assert points == []
    assert "fuel XYZ (900 MWh) has no factor" in refused[0]
    points, refused = one_hour([*base, row("XYZ", "10")])
    assert points == [(Quality.ESTIMATED, 185.0)]
    assert "fuel XYZ (10 MWh) has no factor, which matters little" in refused[0]
    own, refused = one_hour([*base, row("XYZ", "900")], factors_g_per_kwh={"XYZ": 500.0})
    assert (own, refused) == ([(Quality.MEASURED, round((5000 * 370 + 900 * 500) / 10900, 3))], ())


def test_own_factors_are_told_apart_by_the_model() -> None:
    """A point says with which factors it was made, so that a change of them is seen."""
    with answering({"response": {"data": [row("NG", "5000")]}}) as told:
        usual = eia(told.url).history(NOON - 4 * HOUR, NOON, now=NOW).points[0]
        own = eia(told.url, factors_g_per_kwh={"NG": 410.0})
        mine = own.history(NOON - 4 * HOUR, NOON, now=NOW).points[0]
    assert (usual.model, usual.g_per_kwh) == ("EIA-930 mix", 370.0)
    assert (mine.model, mine.g_per_kwh) == ("EIA-930 mix (NG=410)", 410.0)


def test_nonsense_rows_are_named() -> None:
    """Text for a number, another unit, another form: each is one sentence and no zero."""
    points, refused = one_hour(
        [
            row("NG", "much"),
            row("COL", "5", **{"value-units": "barrels"}),
            "a row",
            row("WND", "9000", period="yesterday"),
            row("WND", "9000"),
        ]
    )
    assert points == []
    assert [words[:24] for words in refused[:4]] == [
        "EIA sent 'much' for NG, ",
        "EIA sent COL in barrels,",
        "EIA sent 'a row': not a ",
        "EIA sent \"{'period': 'ye",
    ]


def test_rows_of_another_authority_stop_everything() -> None:
    """An answer for another zone is never stored."""
    with pytest.raises(ZoneMismatch, match="'PJM', asked for 'CISO'"):
        one_hour([row("NG", "1", respondent="PJM")])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"label": "middle"}, "not one of ending, starting"),
        ({"zone": "US:CISO"}, "no code of an authority"),
        ({"factors_g_per_kwh": {"NG": -1.0}}, "factor of NG is -1"),
        ({"key": "  "}, "a key of 0 characters"),
    ],
)
def test_choices_that_cannot_be_are_refused(more: dict[str, Any], words: str) -> None:
    """Before anything is asked, and with what is allowed."""
    with pytest.raises(InputInvalid, match=words):
        eia("http://127.0.0.1:1", **more)


energies = st.dictionaries(
    st.sampled_from([*DIRECT_G_PER_KWH, *STORAGE, "XYZ"]),
    st.one_of(st.none(), st.floats(-500, 20_000)),
    max_size=8,
)


def whole(mix: Mix, open_mwh: Mapping[str, float], xyz_g_per_kwh: float) -> float | None:
    """Reckon the plain way with every unknown filled in."""
    factors = {**DIRECT_G_PER_KWH, "XYZ": xyz_g_per_kwh}
    told = {f: v for f, v in {**mix.energy_mwh, **open_mwh}.items() if f not in STORAGE}
    total = sum(max(0.0, v) for v in told.values() if v is not None)
    grams = sum(max(0.0, v) * factors[f] for f, v in told.items() if v is not None)
    return grams / total if total > 0 else None


@given(energies, st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=9, max_size=9))
def test_what_is_given_is_right_whatever_the_unknown_is(
    energy_mwh: dict[str, float | None], shares: list[float]
) -> None:
    """However the gaps are filled within what was seen, the truth is in the range that is told."""
    most_mwh = {"COL": 300.0, **{f: 400.0 for f, v in energy_mwh.items() if v is None}}
    mix = Mix(energy_mwh=energy_mwh, most_mwh=most_mwh)
    made = derived(mix, DIRECT_G_PER_KWH)
    open_fuels = [f for f in most_mwh if energy_mwh.get(f) is None]
    filled = {f: s * most_mwh[f] for f, s in zip(open_fuels, shares, strict=False)}
    for factor in (0.0, HIGHEST_FACTOR_G_PER_KWH):
        truth = whole(mix, filled, factor)
        if made.g_per_kwh is not None:
            assert truth is not None
            assert made.low_g_per_kwh - 1e-6 <= truth <= made.high_g_per_kwh + 1e-6
            assert abs(truth - made.g_per_kwh) <= MATTERS * made.g_per_kwh + 1e-6


def test_taking_the_unknown_as_nothing_would_be_caught() -> None:
    """The check above has teeth: a mix without its missing coal is off by more than it allows."""
    mix = Mix(energy_mwh={"WND": 1000.0, "NG": 100.0}, most_mwh={"COL": 300.0})
    sabotaged = whole(mix, {}, 0.0)
    truth = whole(mix, {"COL": 300.0}, 0.0)
    assert sabotaged is not None
    assert truth is not None
    assert abs(truth - sabotaged) > MATTERS * sabotaged
    assert derived(mix, DIRECT_G_PER_KWH).g_per_kwh is None
