"""What our plan lost against the bound, in two parts: the forecast's is nothing without errors."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.builders.replays import days, grid, job
from tests.replay.test_bench import asked, trace
from wattmesh.controller.replay.bench import PERFECT, Cell, Row, rows
from wattmesh.controller.replay.forecasts import PerfectForecast
from wattmesh.controller.replay.grid import GridSeries
from wattmesh.controller.replay.regret import regret

POLICIES = ("static-efficient", "mpc", "oracle")
TOLERANCE = 1e-9


def fickle() -> GridSeries:
    """Six days, each the mirror of the one before: yesterday tells the opposite."""
    values = enumerate(days(6, seed=1).values)
    return grid([500 - each if at // 24 % 2 else each for at, each in values])


def split(folder: Path, **changes: object) -> Row:
    """Replay one start, and give the row of `mpc`."""
    on = fickle()
    cell = Cell(trace=trace(folder / "made-up.csv", on), start=on.start + timedelta(days=2))
    facts: dict[str, object] = {"slacks": (2.0,), "hours": 16.0, "policies": POLICIES}
    still, ours, oracle = rows(asked(regret=True, **facts, **changes), cell)
    for other in (still, oracle):
        assert (other.regret_planning, other.regret_forecast) == (None, None)
    return ours


@pytest.mark.parametrize("forecast", ["persist", "own", PERFECT])
def test_the_parts_sum_to_what_was_lost_and_planning_beats_no_bound(
    forecast: str, tmp_path: Path
) -> None:
    """Whatever was told of the grid."""
    ours = split(tmp_path, forecast=forecast)
    assert ours.regret_planning is not None
    assert ours.regret_forecast is not None
    lost = ours.bound_saving - ours.saving
    assert ours.regret_planning + ours.regret_forecast == pytest.approx(lost, abs=TOLERANCE)
    assert ours.regret_planning >= -TOLERANCE


def test_a_forecast_without_errors_costs_nothing(tmp_path: Path) -> None:
    """All that is lost then is planning: boundaries, dwell, the guard."""
    assert split(tmp_path, forecast=PERFECT).regret_forecast == 0.0


def test_a_wrong_forecast_is_blamed_and_planning_is_not(tmp_path: Path) -> None:
    """The planning part is that of the perfect forecast, however wrong the other was."""
    wrong, right = split(tmp_path, forecast="persist"), split(tmp_path, forecast=PERFECT)
    assert wrong.regret_planning == pytest.approx(right.regret_planning, abs=TOLERANCE)
    assert wrong.regret_forecast is not None
    assert wrong.regret_forecast > 0.001


def test_the_sabotaged_twin_whose_truth_is_another_grid_beats_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the tests above mean something: with a false truth, the split is another one."""
    honest = split(tmp_path, forecast="persist")
    told = PerfectForecast.slots

    def turned(self: PerfectForecast, *span: object) -> object:
        """Tell the opposite of what will be."""
        first, *rest = told(self, *span)  # type: ignore[arg-type]
        return (first, *(replace(each, g_per_kwh=500 - each.g_per_kwh) for each in rest))

    monkeypatch.setattr(PerfectForecast, "slots", turned)
    false = split(tmp_path, forecast="persist")
    assert false.regret_planning is not None
    assert honest.regret_planning is not None
    assert false.regret_planning > honest.regret_planning + 0.001


def test_without_being_asked_nothing_is_split(tmp_path: Path) -> None:
    """It would take twice as long."""
    on = days(4)
    cell = Cell(trace=trace(tmp_path / "made-up.csv", on), start=on.start + timedelta(days=1))
    (ours,) = rows(asked(policies=("mpc",), catalogue=job()), cell)
    assert (ours.regret_planning, ours.regret_forecast) == (None, None)


def test_the_split_is_what_its_definition_says() -> None:
    """Shares of what the fastest point emits; errors may cancel."""
    found = regret(900.0, foreseen_g=800.0, bound_g=750.0, base_g=1000.0)
    assert found.planning == pytest.approx(0.05)
    assert found.forecast == pytest.approx(0.1)
    assert regret(790.0, foreseen_g=800.0, bound_g=750.0, base_g=1000.0).forecast < 0
