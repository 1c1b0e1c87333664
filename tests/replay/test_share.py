"""The benchmark that says where the planner loses: what is off makes nothing worse than it is."""

from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.share import OFF, goals, lost, variants
from tests.builders.replays import days, job
from tests.replay.test_bench import asked, trace
from wattmesh.controller.replay.bench import Cell
from wattmesh.controller.replay.forecasts import PersistenceForecast


def test_every_guard_is_off_once_with_the_truth_and_once_without(tmp_path: Path) -> None:
    """With the guard off that binds, the truth comes near the oracle; nobody is late."""
    on = days(4, seed=1)
    cell = Cell(trace=trace(tmp_path / "made-up.csv", on), start=on.start + timedelta(days=1))
    policies = ("static-efficient", "mpc", "oracle")
    request = asked(policies=policies, catalogue=job(), hours=8.0, slacks=(2.0,))
    found = list(lost(request, cell, PersistenceForecast(grid=on)))
    assert [(each["told"], each["off"]) for each in found] == [each[:2] for each in variants()]
    assert len(found) == 4 + 2 * (len(OFF) + 1)
    shares = {(each["told"], each["off"]): each["share"] for each in found}
    assert all(share <= found[0]["ideal_share"] + 1e-6 for share in shares.values())
    for told in ("ours", "the truth"):  # the run is short, so the dwell is what binds it
        assert shares[told, "dwell"] > shares[told, ""] + 20.0
        assert shares[told, "switches a day"] == shares[told, ""]
    assert shares["the truth", "dwell"] > 90.0
    assert all(each["deadline_met"] for each in found)


def test_goals_count_what_is_worth_a_share_behind_all_guards() -> None:
    """A late run, a lost cell and a cell of a point and a half."""
    row = {"told": "ours", "off": "", "deadline_met": True}
    found = [
        {**row, "share": 92.0, "adds_points": 5.0},
        {**row, "share": 60.0, "adds_points": 2.5, "deadline_met": False},
        {**row, "share": -9.0, "adds_points": 1.5},
        {**row, "share": 10.0, "adds_points": 9.0, "off": "dwell"},
    ]
    mean, worst, met = goals(found)
    assert (mean.value, worst.value) == (76.0, 60.0)
    assert met.value == pytest.approx(2 / 3)
    assert not any(each.ok for each in (mean, worst, met))
    assert not any(each.ok for each in goals([]))
