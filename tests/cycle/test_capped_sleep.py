"""Power caps and runs that sleep: what a cap will take of their time is counted while they do."""

from datetime import datetime, timedelta

import pytest

from tests.builders import cycles
from tests.builders.cycles import CATALOGUE, report, store_day
from tests.builders.runs import T0, register
from tests.cycle.test_caps import announce, node, order
from tests.cycle.test_clocks import CONTROLS, GPUS, read
from tests.cycle.test_sleep import ABLE, Wants, fall_asleep, later, plans
from wattmesh.controller.cycle.cycle import CycleReport
from wattmesh.controller.cycle.fleet import Fleet
from wattmesh.controller.journal.journal import Journal
from wattmesh.controller.journal.runs.run_store import RunPlan
from wattmesh.policies.decision import Action

__all__ = ["plans"]
DEADLINE = T0 + timedelta(hours=9)
TOKENS = 10_000_000


def turn(journal: Journal, at: datetime) -> CycleReport:
    """Run one cycle that hears the node."""
    fleet = Fleet(gpus=read(*GPUS), controls=CONTROLS, nodes=(node(at=at),))
    return cycles.turn(journal, at=at, fleet=fleet)


@pytest.fixture
def asleep(journal: Journal, plans: Wants) -> Journal:
    """A journal with a run that sleeps, has hours to spare, and had four GPUs."""
    plan = RunPlan(catalogue=CATALOGUE, deadline=DEADLINE)
    register(
        journal, plan=plan, gpus=GPUS, tokens_total=TOKENS, boundary_every=20, capabilities=ABLE
    )
    report(journal, step=1)
    store_day(journal, high_first=True)
    fall_asleep(journal)
    return journal


def decided(journal: Journal, at: datetime) -> tuple[Action, str]:
    """Give what one cycle decides about the run."""
    (decision,) = turn(journal, at).decisions
    return decision.action, decision.kind


@pytest.mark.parametrize(
    ("hours", "decision"), [(4, (Action.HOLD, "at_target")), (6, (Action.RESUME, "deadline"))]
)
def test_a_cap_that_is_announced_while_a_run_sleeps_wakes_it_for_its_deadline(
    asleep: Journal, hours: int, decision: tuple[Action, str]
) -> None:
    """Its alarm knew nothing of it; a cap that leaves time enough lets it sleep on."""
    assert decided(asleep, later(20)) == (Action.HOLD, "at_target")
    announce(asleep, 1200.0, later(30), later(30) + timedelta(hours=hours))
    assert decided(asleep, later(21)) == decision


@pytest.mark.parametrize(
    ("hours", "decision"), [(4, (Action.HOLD, "at_target")), (6, (Action.RESUME, "deadline"))]
)
def test_a_cap_in_force_is_still_to_come_for_a_run_that_sleeps(
    asleep: Journal, hours: int, decision: tuple[Action, str]
) -> None:
    """What is over of it is not counted twice, and it is woken where the rest takes too much."""
    order(asleep, 1200.0, until=later(30) + timedelta(hours=hours), now=later(20))
    report = turn(asleep, later(30))
    (decided_now,) = report.decisions
    assert (decided_now.action, decided_now.kind) == decision
    assert report.cap is not None
    assert report.cap.plan.room_w == {}  # it takes no watts of those that train


def test_gpus_that_another_run_has_meanwhile_are_not_counted_for_one_that_sleeps(
    asleep: Journal,
) -> None:
    """Nobody knows then where it will be."""
    plan = RunPlan(catalogue=CATALOGUE, deadline=DEADLINE)
    register(asleep, run="s", name="other", incarnation="j1", plan=plan, gpus=GPUS, now=later(20))
    announce(asleep, 1200.0, later(30), later(30) + timedelta(hours=6))
    seen = turn(asleep, later(20)).observation
    assert seen is not None
    assert [(each.run, len(each.caps_ahead)) for each in seen.runs] == [("r", 0), ("s", 1)]
