"""A recorded trace played again: only what would have been known, on one grid with the ledger."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.carbon.asking import asked
from wattmesh.errors import InputInvalid, NoData, SourceUnavailable
from wattmesh.integrations.carbon.csv_replay import CsvReplay
from wattmesh.integrations.carbon.sources import SourceSettings, provider
from wattmesh.telemetry.carbon import CarbonBatch, Provider
from wattmesh.telemetry.energy.ledger import SlotGrid
from wattmesh.telemetry.readings import Quality

START = datetime(2023, 2, 1, tzinfo=UTC)
PLAYS = datetime(2026, 11, 20, 12, tzinfo=UTC)
HEADER = (
    "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type,"
    "forecast_gco2_per_kwh"
)


def write(
    path: Path, count: int, changes: dict[int, str] | None = None, *, ahead: str = ""
) -> Path:
    """Write a half-hourly trace: value 100 + i, forecast 200 + i; `changes` replace values.

    Args:
        path: where to.
        count: intervals.
        changes: values by index; "skip" leaves the line out.
        ahead: instead of every forecast.
    """
    lines = [HEADER]
    for index in range(count):
        value = (changes or {}).get(index, str(100 + index))
        at = START + index * timedelta(minutes=30)
        forecast = ahead or str(200 + index)
        line = f"GB,{at:%Y-%m-%dT%H:%M:%SZ},{value},average,direct,{forecast.strip()}"
        lines += [] if value == "skip" else [line]
    path.write_text("\n".join(lines))
    return path


def replay(path: Path, compress: float = 1440.0, **rest: datetime) -> CsvReplay:
    """Open a replay at PLAYS: by default a recorded half hour lasts 1.25 s."""
    return CsvReplay(path, zone="GB", plays_at=PLAYS, compress=compress, **rest)


def at(seconds: float) -> datetime:
    """Give the moment so long after the replay begins."""
    return PLAYS + timedelta(seconds=seconds)


def test_only_what_was_known_is_told(tmp_path: Path) -> None:
    """Over: measured; running: provisional from the forecast; later: forecast."""
    source: Provider = replay(write(tmp_path / "t.csv", 8))
    batch = asked(source, at(1.25 * 3.5))
    told = [(point.quality, point.g_per_kwh) for point in batch.points]
    assert told == [
        *[(Quality.MEASURED, 100.0 + i) for i in range(3)],
        (Quality.PROVISIONAL, 203.0),
        *[(Quality.FORECAST, 204.0 + i) for i in range(4)],
    ]
    assert [point.start for point in batch.points] == [at(1.25 * i) for i in range(8)]
    assert all(point.issued_at <= point.fetched_at == at(4.375) for point in batch.points)


def test_a_running_interval_is_replaced_when_it_is_over(tmp_path: Path) -> None:
    """The provisional value of an interval becomes the measured one at its end, to the instant."""
    source = replay(write(tmp_path / "t.csv", 8))
    before = asked(source, at(1.25) - timedelta(microseconds=1)).points[0]
    after = asked(source, at(1.25)).points[0]
    assert (before.quality, before.g_per_kwh) == (Quality.PROVISIONAL, 200.0)
    assert (after.quality, after.g_per_kwh) == (Quality.MEASURED, 100.0)
    assert (before.start, before.end) == (after.start, after.end)


def test_polls_within_one_interval_say_the_same(tmp_path: Path) -> None:
    """But for the time of asking, a repeated poll adds nothing new to a journal."""
    source = replay(write(tmp_path / "t.csv", 8))
    first, second = asked(source, at(2.6)).points, asked(source, at(3.7)).points
    assert [(p.start, p.quality, p.g_per_kwh, p.issued_at) for p in first] == [
        (p.start, p.quality, p.g_per_kwh, p.issued_at) for p in second
    ]


def test_a_replay_may_begin_in_the_middle_of_an_interval(tmp_path: Path) -> None:
    """Recorded 01:10 plays at PLAYS: its half hour began ten recorded minutes before."""
    path = write(tmp_path / "t.csv", 8)
    source = replay(path, compress=600, starts_at=START + timedelta(minutes=70))
    assert source.series.origin == at(-1)
    first = asked(source, at(0)).points[0]
    assert (first.start, first.end, first.g_per_kwh) == (at(-1), at(2), 202.0)
    with pytest.raises(SourceUnavailable, match="begins to play"):
        asked(source, at(-1.001))


def test_real_time_is_a_compression_of_one(tmp_path: Path) -> None:
    """Uncompressed, a recorded half hour lasts half an hour."""
    source = replay(write(tmp_path / "t.csv", 8), compress=1.0)
    points = asked(source, at(45 * 60)).points
    assert [point.quality for point in points[:2]] == [Quality.MEASURED, Quality.PROVISIONAL]
    assert points[1].end == at(3600)


def test_refused_values_become_sentences_and_the_forecast_stands_in(tmp_path: Path) -> None:
    """Zero, empty, negative, absurd, fallen: each is named once, none becomes measured."""
    changes = {4: "0.0", 6: "", 8: "-5", 10: "9000", 12: "20"}
    source = replay(write(tmp_path / "t.csv", 20, changes))
    batch = asked(source, at(1.25 * 15))
    assert len(batch.refused) == 5
    assert batch.refused[0].startswith("The value of 2023-02-01 02:00 UTC is 0 g/kWh")
    provisional = {p.start: p.g_per_kwh for p in batch.points if p.quality is Quality.PROVISIONAL}
    assert provisional == {at(1.25 * i): 200.0 + i for i in (*changes, 15)}


def test_a_false_zero_is_not_told_before_its_time(tmp_path: Path) -> None:
    """A refusal is told when its interval is over, not while it runs or lies ahead."""
    source = replay(write(tmp_path / "t.csv", 20, {4: "0.0"}))
    assert asked(source, at(1.25 * 4.5)).refused == ()
    assert len(asked(source, at(1.25 * 5)).refused) == 1


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    """An interval that the recording lacks has no point, before, while and after it plays."""
    source = replay(write(tmp_path / "t.csv", 8, {3: "skip"}))
    for moment in (1.0, 1.25 * 3.5, 8.0):
        starts = [point.start for point in asked(source, at(moment)).points]
        assert starts == [at(1.25 * i) for i in (0, 1, 2, 4, 5, 6, 7)]


def test_without_forecasts_the_running_interval_goes_on_as_the_one_before(tmp_path: Path) -> None:
    """A recording without forecasts tells no future; now is the last measured value, marked."""
    source = replay(write(tmp_path / "t.csv", 8, ahead=" "))
    points = asked(source, at(1.25 * 3.5)).points
    assert [point.quality for point in points] == [Quality.MEASURED] * 3 + [Quality.PROVISIONAL]
    assert (points[-1].g_per_kwh, points[-1].model) == (102.0, "persistence")


@given(st.sampled_from([1.0, 7.0, 600.0, 1200.0, 1440.0, 1999.0, 86400.0]), st.integers(0, 199))
def test_intervals_are_the_ledgers_slots(compress: float, index: int) -> None:
    """However time is compressed, a point's interval is a ledger slot to the microsecond."""
    source = replay(_long_trace(), compress)
    grid = SlotGrid(origin=source.series.origin, interval_s=source.series.interval_s)
    moment = PLAYS + timedelta(seconds=(index + 0.5) * source.series.interval_s)
    for point in asked(source, moment).points:
        assert grid.slot(point.start) == (point.start, point.end)


def told(batch: CarbonBatch) -> list[tuple[Quality, float]]:
    """Give quality and value of every point."""
    return [(point.quality, point.g_per_kwh) for point in batch.points]


def test_history_tells_what_begins_in_the_span_and_was_known(tmp_path: Path) -> None:
    """Half-open at both ends; the running interval is provisional, later ones are not told."""
    source: Provider = replay(write(tmp_path / "t.csv", 8))
    now = at(1.25 * 3.5)
    assert told(source.history(at(1.25), at(1.25 * 3), now=now)) == [
        (Quality.MEASURED, 101.0),
        (Quality.MEASURED, 102.0),
    ]
    assert told(source.history(at(-99), at(99), now=now))[-1] == (Quality.PROVISIONAL, 203.0)
    assert source.history(at(5), at(9), now=now).points == ()
    assert told(source.latest(at(1.25 * 3)))[-1] == (Quality.PROVISIONAL, 203.0)


def test_history_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    """Asked twice, it tells the same, its refusals too."""
    source = replay(write(tmp_path / "t.csv", 20, {4: "0.0"}))
    first = source.history(at(0), at(20), now=at(20))
    assert source.history(at(0), at(20), now=at(20)) == first
    assert len(first.refused) == 1


def test_a_forecast_is_one_issue_from_the_running_interval_on(tmp_path: Path) -> None:
    """Every point of one answer has the same time of issue, the border behind `now`."""
    source = replay(write(tmp_path / "t.csv", 300))
    batch = source.forecast(source.series.forecast_s / 3600, now=at(1.25 * 3.5))
    assert {point.issued_at for point in batch.points} == {at(1.25 * 3)}
    assert {point.quality for point in batch.points} == {Quality.FORECAST}
    assert told(batch)[0] == (Quality.FORECAST, 203.0)
    assert len(batch.points) == 97  # 48 recorded hours beyond `now`
    assert len(source.forecast(2 * 1.25 / 3600, now=at(0)).points) == 3


def test_the_series_says_its_times_in_real_seconds(tmp_path: Path) -> None:
    """Compression shortens all of them alike; a recording without forecasts says so."""
    series = replay(write(tmp_path / "t.csv", 8)).series
    assert (series.interval_s, series.cadence_s, series.origin) == (1.25, 1.25, PLAYS)
    assert series.forecast_s == 120.0
    assert series.trailing == timedelta(seconds=120)
    assert series.deep_trailing == timedelta(seconds=600)
    assert replay(write(tmp_path / "u.csv", 8, ahead=" ")).series.forecast_s == 0


def test_before_and_after_the_recording_there_is_no_data(tmp_path: Path) -> None:
    """Both ends are said with what to do; what was measured can still be asked for."""
    source = replay(write(tmp_path / "t.csv", 8))
    assert source.capabilities(at(1)).forecast
    for ask in (source.latest, source.capabilities, lambda now: source.forecast(1, now=now)):
        with pytest.raises(NoData, match="begins to play"):
            ask(at(-1))
        with pytest.raises(NoData, match=r"t\.csv ended at 2026-11-20 12:00:10 UTC"):
            ask(at(11))
    assert len(source.history(at(0), at(60), now=at(60)).points) == 8
    with pytest.raises(NoData, match="ended"):
        source.history(at(30), at(60), now=at(60))


_LONG: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def _long(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write the long trace once."""
    _LONG[:] = [write(tmp_path_factory.mktemp("traces") / "long.csv", 200)]


def _long_trace() -> Path:
    """Give the long trace."""
    return _LONG[0]


def choice(**changes: object) -> SourceSettings:
    """Make the settings of one source."""
    values: dict[str, object] = {"provider": "csv", "zone": "GB", "compress": 1440.0}
    return SourceSettings(**(values | changes))  # type: ignore[arg-type]


def test_settings_open_a_replay_that_begins_now(tmp_path: Path) -> None:
    """Without starts_at and plays_at the recording's beginning plays now."""
    path = write(tmp_path / "t.csv", 8)
    source = provider(choice(file=path), PLAYS)
    assert asked(source, PLAYS).points[0].start == PLAYS
    assert str(source.signal) == "csv:GB:average:direct:CO2"


def test_settings_open_neso_for_great_britain() -> None:
    """The live provider is opened without asking it anything."""
    source = provider(choice(provider="neso"), PLAYS)
    assert str(source.signal) == "neso:GB:average:direct:CO2"
    assert source.series.interval_s == 1800.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"provider": "wind"}, "'wind' is not a carbon provider; there are neso, electricity_maps"),
        ({"file": None}, "provider csv needs `file`"),
        ({"provider": "neso", "zone": "DE"}, "zone 'DE' is not served by neso; it serves GB"),
        ({"zone": "FR"}, "is a trace of zone 'GB', not 'FR'"),
        ({"compress": 0.0}, "compress = 0.0 must be > 0"),
        ({"starts_at": PLAYS}, "runs from 2023-02-01 00:00Z to 2023-02-01 04:00Z; starts_at"),
    ],
)
def test_settings_that_cannot_be_say_what_is_allowed(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    """Every wrong choice is refused with what would be right."""
    path = write(tmp_path / "t.csv", 8)
    with pytest.raises(InputInvalid) as caught:
        provider(choice(**({"file": path} | changes)), PLAYS)
    assert words in str(caught.value)
