"""What the demo asks of the daemon can be planned, and its folder is one that it may replace."""

from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest

from examples.demo.plan import DemoPlan
from examples.demo.run import prepare
from tests.builders.observations import NOW, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.controller.planner.asking import why_none
from wattmesh.controller.settings.model import PolicySection
from wattmesh.errors import InputInvalid
from wattmesh.policies.decision import CarbonView
from wattmesh.policies.planner.mpc import question

HALF_HOUR_S = 1800.0


def test_the_planner_plans_the_compressed_day_in_its_own_intervals(tmp_path: Path) -> None:
    """Half an hour plays in about two seconds, and a plan may change with each of them."""
    plan = DemoPlan(folder=tmp_path)
    limits = PolicySection(**asdict(plan.policy)).limits()
    interval_s = HALF_HOUR_S / plan.compress
    points = (point("A", 4, 600.0, 2800.0), point("B", 2, 330.0, 1400.0))
    known = catalogue(*points)
    training = run(
        catalogue=replace(known, switch=replace(known.switch, layout_s=1.5)),
        boundary_every=plan.boundary_every,
        tokens=0,
        tokens_total=int(plan.day_s / plan.deadline_factor * 600),
        deadline=NOW + timedelta(seconds=plan.day_s),
    )
    grid = slots([200.0] * 24 + [100.0] * 24, seconds=interval_s)
    carbon = CarbonView(
        signal="csv:GB:average:direct:CO2", slots=grid, age_s=0.1, interval_s=interval_s
    )
    seen = observation(training, carbon=carbon, policy=limits, cycle_s=plan.cycle_s)
    assert why_none(seen, training) == ""
    asked = question(seen, training)
    assert asked is not None
    assert len(asked.problem.seconds) > 40
    assert set(asked.problem.seconds[:-1]) == {interval_s}


def test_what_no_demo_made_is_not_touched(tmp_path: Path) -> None:
    """Neither a folder with something in it, nor, even by force, a file or what a link leads to."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years")
    (tmp_path / "link").symlink_to(tmp_path / "full")
    file = tmp_path / "full" / "thesis.txt"
    for out, force in ((tmp_path / "full", False), (file, True), (tmp_path / "link", True)):
        with pytest.raises(InputInvalid, match="name another"):
            prepare(DemoPlan.lasting(90.0, folder=out), force=force)
    assert file.read_text() == "years"
    for _ in range(2):  # the second replaces what the first made
        prepare(DemoPlan.lasting(90.0, folder=tmp_path / "new"), force=False)
