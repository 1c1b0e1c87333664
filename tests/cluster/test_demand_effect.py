"""What demand response does to a week: the hours that it caps, and the deadlines that it costs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.builders.replays import days
from tests.cluster.test_stream import job_text, written
from wattmesh.controller.replay import stream_file
from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.stream_bench import bench_stream, with_demand
from wattmesh.controller.replay.stream_file import CapSpan, JobStream
from wattmesh.controller.replay.stream_rows import FIRST_COME, JOINT, StreamResult
from wattmesh.errors import SettingsInvalid

WEEK, SHORT = days(9), days(6)
CLUSTER = "[cluster]\ngpus = 64\nidle_power_w_per_gpu = 100\nstart_h = 24\n"
DEMAND = "[demand_response]\nworst_hours = 4\ncap_w = 30000\n"
JOBS = job_text("a", 0, 24, 7) + job_text("b", 4, 48, 7) + job_text("c", 36, 72, 7)


def stream(folder: Path, demand: str = DEMAND) -> JobStream:
    """Three jobs of three days on 64 GPUs."""
    return stream_file.load(written(folder, CLUSTER + demand + JOBS))


def hours_of(caps: tuple[CapSpan, ...], begin: datetime) -> set[datetime]:
    """The capped hours."""
    return {
        begin + timedelta(seconds=each.from_s + n * 3600)
        for each in caps
        for n in range(round((each.until_s - each.from_s) / 3600))
    }


def dirtier(grid: GridSeries, capped: set[datetime]) -> None:
    """Compare the capped hours of each day with those that are not, and with the worst four."""
    by_day: dict[object, list[tuple[float, bool]]] = {}
    for slot in grid.slots:
        by_day.setdefault(slot.start.date(), []).append((slot.g_per_kwh, slot.start in capped))
    whole = 0
    for told in by_day.values():
        on = [value for value, chosen in told if chosen]
        if not on:
            continue
        off = [value for value, chosen in told if not chosen]
        worst = sorted((value for value, _ in told), reverse=True)[:4]
        assert len(on) <= 4
        assert set(on) <= set(worst)
        assert sum(on) / len(on) > sum(off) / len(off)
        whole += 1
    assert whole >= 7


def test_the_capped_hours_are_the_dirty_ones_of_each_day(tmp_path: Path) -> None:
    """At most so many a day, all of them among its worst. Moved by six hours they are not."""
    made = with_demand(stream(tmp_path), WEEK)
    capped = hours_of(made.caps, WEEK.start + timedelta(hours=24))
    dirtier(WEEK, capped)
    with pytest.raises(AssertionError):
        dirtier(WEEK, {each + timedelta(hours=6) for each in capped})


def met(found: StreamResult, rule: str) -> set[str]:
    """The jobs that a rule has done in time."""
    (row,) = [each for each in found.rows if each.policy == rule]
    assert row.cap_exceeded_s == 0
    return {each.job for each in row.jobs if each.deadline_met}


def test_no_deadline_is_lost_that_the_cap_alone_does_not_take(tmp_path: Path) -> None:
    """Planned jointly, every job that is in time without caps is so with them."""
    asked = stream(tmp_path)
    free = bench_stream(replace(asked, demand=None), SHORT)
    capped = bench_stream(asked, SHORT)
    assert met(free, JOINT) == {"a", "b", "c"}
    assert met(capped, JOINT) == met(free, JOINT)
    assert met(capped, FIRST_COME) <= met(free, FIRST_COME)


def test_a_cap_that_leaves_no_time_costs_a_deadline_and_is_seen(tmp_path: Path) -> None:
    """The twin: twenty hours of each day at next to nothing, even where all wait for none."""
    text = "[demand_response]\nworst_hours = 20\ncap_w = 9000\n"
    text += "longest_hours = 24\npause_hours = 0\n"
    capped = bench_stream(stream(tmp_path, text), days(12))
    assert met(capped, JOINT) < {"a", "b", "c"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[demand_response]\ncap_w = 1000\n", "name worst_hours, above, or both"),
        ("[demand_response]\nworst_hours = 4\n", "cap_w"),
        ("[demand_response]\nworst_hours = 99\ncap_w = 1\n", "99 must be at most 23"),
        ("[demand_response]\nworst_hours = 0\ncap_w = 1\n", "at least 1"),
        ("[demand_response]\nabove = 1\ncap_w = 1\nlongest_hours = 99\n", "at most 24"),
        ("[demand_response]\nabove = 1\ncap_w = 1\nworst = 1\n", "worst"),
    ],
)
def test_mistakes_of_the_table_are_named(tmp_path: Path, text: str, words: str) -> None:
    """With its key."""
    with pytest.raises(SettingsInvalid, match=words):
        stream(tmp_path, text)


def test_days_are_those_of_utc(tmp_path: Path) -> None:
    """As a trace has no zone of a site."""
    demand = stream(tmp_path).demand
    assert demand is not None
    assert demand.timezone is UTC
