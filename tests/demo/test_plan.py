"""What the demo asks of the daemon is something that the planner can plan."""

from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

from tests.builders.observations import NOW, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.controller.demo.plan import DemoPlan
from wattmesh.controller.planner.asking import why_none
from wattmesh.controller.settings.model import PolicySection
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
