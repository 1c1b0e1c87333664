"""Runs that can be resized: a joint plan counts on no GPU that the run does not have."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.capped_runs import sharing
from tests.builders.observations import NOW, measured
from tests.builders.points import catalogue, point
from wattmesh.policies.cluster import joint_question as module
from wattmesh.policies.cluster.joint_question import joint_question
from wattmesh.policies.cluster.many_runs import answered_together
from wattmesh.policies.decision import RESIZES, Observation
from wattmesh.policies.planner.problem import NoPlan
from wattmesh.reconfig.catalogue import Release, SwitchCost

TWO, FOUR = point("two", 2, 600.0, 800.0), point("four", 4, 1000.0, 1600.0)
EIGHT = point("eight", 8, 1800.0, 3000.0)
SIZED = catalogue(
    TWO,
    FOUR,
    EIGHT,
    release=Release.RELEASED,
    switch=SwitchCost(layout_s=60.0, layout_energy_j=1e5, reacquire_s=120.0),
)
RUNS_W = 7000.0


def resizable(**changes: Any) -> Observation:
    """Three runs on four GPUs each, under a cap that has room for eight GPUs of one of them."""
    facts: dict[str, Any] = {
        "catalogue": SIZED,
        "current": FOUR,
        "layout": FOUR.layout,
        "capabilities": ("in_place", RESIZES),
        "speeds": (measured(FOUR),),
    }
    return sharing(3, RUNS_W, **(facts | changes))


def most_needed_w(seen: Observation) -> float:
    """Give the most that a joint plan gives one run."""
    asked = joint_question(seen)
    assert asked is not None
    answer = answered_together(asked)
    assert not isinstance(answer, NoPlan)
    return max(room_w for steps in answer.rooms.values() for _, _, room_w in steps)


def test_fewer_gpus_are_planned_and_never_more() -> None:
    """More of them are in a queue: two runs would be planned on the same."""
    asked = joint_question(resizable())
    assert asked is not None
    (menu,) = asked.menus
    assert [each.name for each in menu.options] == ["two", "four"]
    assert [len(row) for row in menu.transitions] == [2, 2]
    assert [menu.options[run.start].name for run in asked.runs] == ["four"] * 3
    assert most_needed_w(resizable()) == pytest.approx(FOUR.power_w * 1.05)


def test_a_plan_on_gpus_that_nobody_has_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sabotaged twin: one run is planned on eight of twelve GPUs, beside two on four each."""
    monkeypatch.setattr(module, "_with_its_gpus", lambda _, asked: asked)
    assert most_needed_w(resizable()) == pytest.approx(EIGHT.power_w * 1.05)


def test_a_run_that_needs_more_gpus_is_left_out_and_keeps_its_room() -> None:
    """It plans alone, as ever; the others share what it cannot take."""
    seen = resizable()
    busy = resizable(tokens_total=50_000_000, deadline=NOW + timedelta(hours=12)).runs[0]
    asked = joint_question(seen)
    mixed = joint_question(replace(seen, runs=(busy, *seen.runs[1:])))
    assert asked is not None
    assert mixed is not None
    assert [run.run for run in mixed.runs] == ["r-1", "r-2"]
    assert mixed.limit_w[0] == pytest.approx(RUNS_W * 2 / 3)
    assert asked.limit_w[0] == RUNS_W


def test_a_run_that_keeps_its_gpus_is_asked_about_as_before() -> None:
    """Without a launcher that starts other sizes its menu has none."""
    asked = joint_question(resizable(capabilities=("in_place", "parking")))
    assert asked is not None
    assert [each.name for each in asked.menus[0].options] == ["two", "four"]
