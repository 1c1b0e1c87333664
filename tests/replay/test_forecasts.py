"""What policies are told of the grid ahead holds nothing that was not known."""

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.builders.replays import HOUR, START, days, grid
from wattmesh.controller.replay.forecasts import (
    OwnForecast,
    PerfectForecast,
    PersistenceForecast,
    ReplayForecast,
    from_file,
    maker,
)
from wattmesh.controller.replay.grid import GridSeries, read, starts
from wattmesh.errors import InputInvalid

NOW = START + timedelta(days=30, minutes=20)
END = NOW + timedelta(days=6)


def altered(on: GridSeries, after: int) -> GridSeries:
    """The same grid with another future."""
    return grid([*on.values[:after], *(999.0 for _ in on.values[after:])])


@pytest.mark.parametrize(
    ("make", "causal"),
    [(OwnForecast, True), (maker("persist"), True), (lambda on: PerfectForecast(grid=on), False)],
)
def test_a_forecast_does_not_change_with_the_future(
    make: Callable[[GridSeries], ReplayForecast], causal: bool
) -> None:
    """But for the perfect one, which is the sabotaged twin."""
    on = days(40)
    known = on.index(NOW) + 1
    told = make(on).slots(NOW, END)
    assert (told == make(altered(on, known)).slots(NOW, END)) is causal
    assert told[0].g_per_kwh == on.values[known - 1]
    assert all(a.end == b.start for a, b in pairwise(told))
    assert told[-1].end >= END


def test_sight_ends_after_its_hours() -> None:
    """The truth for a day, then what our own forecast says, without a gap; other futures agree."""
    on = days(40)
    told = maker("perfect-24h")(on).slots(NOW, END)
    own, index = OwnForecast(on).slots(NOW, END), on.index(NOW)
    assert [slot.g_per_kwh for slot in told[:25]] == list(on.values[index : index + 25])
    assert told[26:] == own[26:]
    assert all(a.end == b.start for a, b in pairwise(told))
    assert told == maker("perfect-24h")(altered(on, index + 25)).slots(NOW, END)
    assert told != maker("perfect-24h")(altered(on, index + 20)).slots(NOW, END)


def test_our_own_forecast_may_be_followed_by_the_truth() -> None:
    """What we say for a day, without a gap before what was recorded; that alone is the truth."""
    on = days(40)
    told = maker("own-24h")(on).slots(NOW, END)
    own, index = OwnForecast(on).slots(NOW, END), on.index(NOW)
    assert told[:25] == own[:25]
    assert [each.g_per_kwh for each in told[25:]] == list(on.values[index + 25 :][: len(told) - 25])
    assert told[-1].end >= END
    assert all(a.end == b.start for a, b in pairwise(told))
    assert told[:25] == maker("own-24h")(altered(on, index + 1)).slots(NOW, END)[:25]
    assert told != maker("own-24h")(altered(on, index + 40)).slots(NOW, END)


def test_persistence_is_the_same_hour_of_the_day_before() -> None:
    """Also two days ahead."""
    on = days(40)
    told = PersistenceForecast(grid=on).slots(NOW, END)
    index = on.index(NOW)
    assert [slot.g_per_kwh for slot in told[1:25]] == list(on.values[index - 23 : index + 1])
    assert told[26].g_per_kwh == told[2].g_per_kwh


def test_forecasts_of_a_file_are_used_from_when_they_were_issued(tmp_path: Path) -> None:
    """The newest that was out by now; before the first there is only the running interval."""
    path = tmp_path / "issued.csv"
    rows = ["generated_at_utc,timestamp_utc,carbon_intensity_gco2eq_per_kwh"]
    for issued, value in ((0, 10), (2, 20)):
        for ahead in range(1, 4):
            at = START + timedelta(hours=issued)
            rows.append(f"{at.isoformat()},{(at + ahead * HOUR).isoformat()},{value + ahead}")
    path.write_text("\n".join(rows), encoding="utf-8")
    on = grid([100, 101, 102, 103, 104, 105])
    told = from_file(path, on)
    assert [each.g_per_kwh for each in told.slots(START + HOUR, END)] == [101, 12, 13]
    assert [each.g_per_kwh for each in told.slots(START + 2 * HOUR, END)] == [102, 21, 22, 23]
    assert len(told.slots(START - HOUR, END)) == 1


@pytest.mark.parametrize("text", ["", "generated_at_utc,timestamp_utc\n1,2", "a,b\n1,2"])
def test_a_file_without_forecasts_is_refused(tmp_path: Path, text: str) -> None:
    """With what it would need."""
    path = tmp_path / "no.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputInvalid):
        from_file(path, grid([1, 2]))


def test_a_trace_is_read_with_its_gaps_filled_and_counted(tmp_path: Path) -> None:
    """A missing hour and a false zero take the value before."""
    path = tmp_path / "trace.csv"
    header = "zone,timestamp_utc,carbon_intensity_gco2eq_per_kwh,kind,emission_factor_type"
    values = ["100", "", "0", "130"]
    rows = [
        f"XX,2026-03-02T{hour:02}:00:00Z,{value},average,direct"
        for hour, value in enumerate(values)
    ]
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    found = read(path)
    assert (found.values, found.filled, found.name) == ((100.0, 100.0, 100.0, 130.0), 2, "trace")


def test_starts_leave_room_for_the_history_and_the_window() -> None:
    """Spread evenly, on whole hours; none where nothing fits."""
    on = days(20)
    found = starts(on, window=timedelta(days=5), history=timedelta(days=8), count=3)
    assert [(each - START) / timedelta(days=1) for each in found] == [8, 11.5, 15]
    assert not starts(on, window=timedelta(days=15), history=timedelta(days=8), count=3)
