"""A signal's past as forecasts read it: whole once, and then only what was stored since."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tests.builders.carbon import intensities
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.signals.history import history_of
from wattmesh.controller.signals.past import WHOLE_AGAIN, KnownPast
from wattmesh.telemetry.carbon import CarbonPoint, Series, Signal
from wattmesh.telemetry.readings import Quality

T0 = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
LENGTH = timedelta(hours=40)
SIGNAL = Signal(provider="neso", zone="GB")
OTHER = Signal(provider="neso", zone="FR")
SERIES = Series(interval_s=3600.0, origin=T0, cadence_s=3600.0)

QUALITIES = (Quality.MEASURED, Quality.ESTIMATED, Quality.PROVISIONAL, Quality.STATIC)


def point(
    hour: int,
    value: float,
    quality: Quality = Quality.MEASURED,
    signal: Signal = SIGNAL,
    length: timedelta = HOUR,
) -> CarbonPoint:
    """Tell of one hour."""
    start = T0 + hour * HOUR
    (made,) = intensities(signal, [value], start, length, quality=quality)
    return made


points = st.builds(
    point,
    st.integers(-60, 60),
    st.integers(1, 900).map(float),
    st.sampled_from(QUALITIES),
    st.sampled_from((SIGNAL, SIGNAL, OTHER)),
    st.sampled_from((HOUR, HOUR, HOUR, HOUR / 2)),
)
turns = st.lists(st.tuples(st.lists(points, max_size=12), st.integers(-3, 30)), max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=turns)
def test_what_is_kept_is_what_reading_all_would_give(journal: Journal, turns: Any) -> None:
    """Rows of any quality, of other signals, revised, cut otherwise; a clock that goes anyhow."""
    past, now = KnownPast(journal, SIGNAL, SERIES, LENGTH), T0
    for told, hours in turns:
        now += hours * HOUR
        journal.carbon.store([*told, point(int((now - T0) / HOUR) - 1, 1000.0 + hours)])
        found = past.until(now)
        assert found == history_of(journal.carbon.observed(SIGNAL, now - LENGTH, now), SERIES)


def test_a_poll_reads_what_it_brought(journal: Journal) -> None:
    """The point of it: the days before are not read again, until a day has passed."""
    journal.carbon.store(point(hour, 100.0 + hour) for hour in range(-40, 0))
    past = KnownPast(journal, SIGNAL, SERIES, LENGTH)
    with asked(journal) as statements:
        first = past.until(T0)
        assert len(statements) == 2
        journal.carbon.store([point(0, 5.0)])
        statements.clear()
        second = past.until(T0 + HOUR)
        assert past.until(T0 + HOUR) == second
    assert all("carbon_points.id >" in each for each in statements)
    assert first is not None
    assert second is not None
    assert second.values[-2:] == (99.0, 5.0)
    assert second.start == first.start + HOUR


def test_rows_that_were_stored_out_of_turn_are_seen_within_a_day(journal: Journal) -> None:
    """Another process took a number before ours and committed after us: the next whole look."""
    journal.carbon.store([point(0, 1.0), point(1, 2.0)])
    past = KnownPast(journal, SIGNAL, SERIES, LENGTH)
    past.until(T0 + 2 * HOUR)
    with journal.database.writing() as connection:
        connection.exec_driver_sql(
            "INSERT INTO carbon_points SELECT -1, signal, start_at - 3600000000, start_at, 7000, "
            "quality, issued_at, fetched_at, model FROM carbon_points WHERE id = 1"
        )
    missed = past.until(T0 + 3 * HOUR)
    assert missed is not None
    assert missed.values == (1.0, 2.0)
    seen = past.until(T0 + 2 * HOUR + WHOLE_AGAIN)
    assert seen is not None
    assert seen.values == (7.0, 1.0, 2.0)


@contextmanager
def asked(journal: Journal) -> Iterator[list[str]]:
    """Collect the statements that read points."""
    found: list[str] = []

    def hear(_c: Any, _k: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT") and "carbon_points" in statement:
            found.append(statement)

    event.listen(journal.database.engine, "before_cursor_execute", hear)
    try:
        yield found
    finally:
        event.remove(journal.database.engine, "before_cursor_execute", hear)
