"""From a provider's rows to points, against what a plain look at the rows says."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.integrations.carbon.reading.believed import fault
from wattmesh.integrations.carbon.reading.rows import (
    CarbonRow,
    DecodedRows,
    batch,
    floor,
    joined,
    moment,
    number,
    stamp,
)
from wattmesh.telemetry.carbon import Signal
from wattmesh.telemetry.readings import Quality

T0 = datetime(2026, 11, 20, tzinfo=UTC)
NOW = T0 + timedelta(hours=2)
STEP = timedelta(minutes=5)
MARGINAL = Signal(provider="p", zone="Z", kind="marginal")
AVERAGE = Signal(provider="p", zone="Z")


def row(minute: int, value: float | None) -> CarbonRow:
    """Make a row that begins so many minutes after T0."""
    start = T0 + timedelta(minutes=minute)
    return CarbonRow(start=start, g_per_kwh=value, quality=Quality.MEASURED, issued_at=start)


values = st.one_of(st.none(), st.floats(allow_nan=True), st.floats(min_value=0, max_value=900))


@given(st.lists(st.tuples(st.sampled_from([0, 3, 5, 10, 60]), values)))
def test_each_interval_comes_once_as_it_was_told_last(told: list[tuple[int, float | None]]) -> None:
    """Points are the last usable telling of each interval on the grid, oldest first."""
    reading = DecodedRows(rows=tuple(row(minute, value) for minute, value in told))
    points = batch(reading, signal=MARGINAL, step=STEP, now=NOW).points
    expected: list[tuple[datetime, float]] = []
    for minute in range(0, 61, 5):
        last = [value for at, value in told if at == minute][-1:]
        if last and last[0] is not None and not fault(last[0], kind="marginal"):
            expected.append((T0 + timedelta(minutes=minute), last[0]))
    assert [(point.start, point.g_per_kwh) for point in points] == expected
    assert all(point.end == point.start + STEP for point in points)


def test_every_row_that_becomes_no_point_is_one_sentence() -> None:
    """Off the grid, missing and absurd: three rows, three sentences."""
    rows = (row(0, 100.0), row(3, 100.0), row(5, None), row(10, 1e9), row(15, 120.0))
    told = batch(DecodedRows(rows=rows, refused=("x",)), signal=AVERAGE, step=STEP, now=NOW)
    assert len(told.points) == 2
    assert len(told.refused) == 4
    assert "does not begin an interval of 0:05:00" in told.refused[1]


def test_a_fall_is_judged_in_what_was_and_not_in_a_forecast() -> None:
    """One deep fall of an average is refused as an observation and believed as a forecast."""
    rows = DecodedRows(rows=(*(row(5 * i, 400.0) for i in range(6)), row(30, 50.0)))
    assert len(batch(rows, signal=AVERAGE, step=STEP, now=NOW).points) == 6
    assert len(batch(rows, signal=AVERAGE, step=STEP, now=NOW, judged=False).points) == 7
    assert len(batch(rows, signal=MARGINAL, step=STEP, now=NOW).points) == 7


def test_nothing_is_issued_after_it_was_heard() -> None:
    """A provider's clock ahead of ours does not make a point from the future."""
    (point,) = batch(
        DecodedRows(rows=(row(115, 1.0),)),
        signal=MARGINAL,
        step=STEP,
        now=T0 + timedelta(minutes=1),
    ).points
    assert point.issued_at == point.fetched_at == T0 + timedelta(minutes=1)


def test_sentences_of_several_answers_are_said_once() -> None:
    """Two spans with the same warning have one."""
    told = joined(
        [DecodedRows(rows=(row(0, 1.0),), refused=("a",)), DecodedRows(refused=("a", "b"))]
    )
    assert (len(told.rows), told.refused) == (1, ("a", "b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T14:00:00.000Z", datetime(2026, 11, 20, 14, tzinfo=UTC)),
        ("2026-11-20T14:00:00+05:30", datetime(2026, 11, 20, 8, 30, tzinfo=UTC)),
        ("2026-11-20T14:00:00", None),
        ("yesterday", None),
        (1763647200, None),
        (None, None),
    ],
)
def test_a_time_says_its_zone_or_is_none(text: object, expected: datetime | None) -> None:
    """ISO 8601 with Z or an offset; anything else is no time."""
    assert moment(text) == expected


def test_numbers_are_numbers() -> None:
    """Null and a missing one are no value; texts and truths are refused; giants are infinite."""
    assert number({"v": 7}, "v") == (7.0, "")
    assert number({"v": None}, "v") == number({}, "v") == (None, "")
    assert number({"v": 10**400}, "v") == (math.inf, "")
    for bad in ("7", True, [7]):
        value, why = number({"v": bad}, "v")
        assert value is None
        assert "is not a number" in why


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(2000, 1, 1)))
def test_an_interval_holds_its_moment(at: datetime) -> None:
    """The begin of an interval lies at or before its moments, less than a step away."""
    for step in (STEP, timedelta(minutes=15), timedelta(hours=1)):
        begin = floor(at, step)
        assert begin <= at < begin + step
        assert (begin.minute % (step.total_seconds() / 60), begin.second) == (0, 0)


def test_times_are_written_in_utc() -> None:
    """Offsets are resolved before a time is sent."""
    kolkata = datetime.fromisoformat("2026-11-20T05:30:00+05:30")
    assert stamp(kolkata) == "2026-11-20T00:00:00Z"
