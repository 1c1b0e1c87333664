"""Who may be put to sleep, and until when: nobody sleeps whom nobody wakes in time."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.observations import NOW, A, B, observation, run
from tests.builders.points import catalogue
from tests.policies.deciding.test_follow import ABLE, decided, hours, plan
from wattmesh.policies.decision import Action, Observation, PolicySettings, Sleep
from wattmesh.policies.menu import why_not_sleep
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.run_context import examine
from wattmesh.policies.switch_time import SwitchKind, SwitchRecord
from wattmesh.reconfig.catalogue import PAUSED, Evidence, PairCost, Release, SwitchCost

MEASURED = PolicySettings(sleep=Sleep.MEASURED)
TO_SLEEP = PairCost(origin="A", target=PAUSED, seconds=5.0, energy_j=1e4)
TO_WAKE = PairCost(origin=PAUSED, target="A", seconds=40.0, energy_j=1e5)


def sleepy(**changes: Any) -> Observation:
    """A run whose plan wants it to sleep for ten hours, in a cycle every five seconds."""
    facts: dict[str, Any] = {"plan": plan("", "A", each_h=10.0), "capabilities": ABLE}
    policy = changes.pop("policy", PolicySettings())
    return observation(run(**facts | changes), policy=policy, cycle_s=5.0)


def slept(origin: str, target: str, **changes: Any) -> SwitchRecord:
    """What was measured of going to sleep, or of waking."""
    facts: dict[str, Any] = {"told_s": 20.0, "at_pace_s": 30.0, "ago_s": 9e4}
    return SwitchRecord(origin=origin, target=target, kind=SwitchKind.RESTART, **facts | changes)


def test_the_alarm_leaves_the_time_of_every_attempt_to_wake() -> None:
    """Not the plan's end, if that is later: the run wakes in time whoever is dead by then."""
    seen = sleepy()
    made, guard = decided(seen), examine(seen, seen.runs[0]).guard
    assert guard is not None
    assert made.action is Action.SUSPEND
    assert made.wakes_at is not None
    assert made.wakes_at == NOW + timedelta(seconds=guard.slack_asleep_s(A))
    assert made.wakes_at < hours(10)
    asleep = replace(seen.runs[0], suspended_s=0.0, wakes_at=made.wakes_at)
    there = replace(seen, now=made.wakes_at, runs=(asleep,))
    later = examine(there, asleep).guard
    assert later is not None
    assert later.asleep_slack_s() >= 0.0  # and one attempt after the other may fail
    assert "at the latest" in made.reason


def test_no_order_lets_a_run_sleep_longer_than_the_operator_allows() -> None:
    """Whatever the plan says."""
    made = decided(sleepy(policy=PolicySettings(longest_sleep_s=1800.0)))
    assert made.wakes_at == hours(0.5)


def test_a_sleep_that_ends_before_it_begins_is_not_ordered() -> None:
    """The plan's step ends before the next boundary can have come."""
    made = decided(sleepy(plan=plan("", "A", each_h=0.01)))
    assert (made.action, made.kind) == (Action.HOLD, "no_slack")


@pytest.mark.parametrize(
    ("changes", "policy", "why"),
    [
        ({}, PolicySettings(), ""),
        ({}, PolicySettings(sleep=Sleep.NEVER), "policy.sleep"),
        ({"capabilities": ABLE[:-1]}, PolicySettings(), "holds its next launch"),
        ({"trouble": "the disk is full"}, PolicySettings(), "no checkpoint"),
        ({"current": None}, PolicySettings(), "no point of its catalogue"),
        ({}, MEASURED, "nobody measured how long it takes from A to paused"),
        ({"switches": (slept("A", PAUSED),)}, MEASURED, "from paused to A"),
        (
            {"switches": (slept(PAUSED, "A", at_pace_s=None), slept("A", PAUSED))},
            MEASURED,
            "from paused to A",
        ),
        ({"switches": (slept(PAUSED, "A"), slept("A", PAUSED))}, MEASURED, ""),
        (
            {"catalogue": catalogue(A, B, switch=SwitchCost(pairs=(TO_SLEEP, TO_WAKE)))},
            MEASURED,
            "",
        ),
        (
            {"catalogue": catalogue(A, B, release=Release.RELEASED)},
            PolicySettings(),
            "switch.reacquire_s",
        ),
        (
            {"refused_s": 60.0, "refused": "no answer"},
            PolicySettings(),
            "its launcher would not hold its next launch 1 min ago (no answer)",
        ),
        ({"refused_s": 900.0, "refused": "no answer"}, PolicySettings(), ""),
        (
            {"current": replace(A, evidence=Evidence.MEASURED)},
            PolicySettings(),
            "not validated",
        ),
    ],
)
def test_a_run_is_put_to_sleep_only_where_it_surely_wakes(
    changes: dict[str, Any], policy: PolicySettings, why: str
) -> None:
    """Else neither the plan asks for it, nor is an older plan that does followed."""
    seen = sleepy(policy=policy, **changes)
    said = why_not_sleep(seen.runs[0], policy)
    assert (why in said) if why else said == ""
    if changes.get("current", A) == A:
        asked = question(seen, seen.runs[0])
        assert asked is not None
        assert ("" in asked.ids) == (why == "")
        made = decided(seen)
        assert (made.action is Action.SUSPEND) == (why == "")


def test_an_operator_puts_a_run_to_sleep_whatever_the_plan_says() -> None:
    """And whatever `policy.sleep` says; it sleeps on until its alarm, or the deadline, wakes it."""
    never = PolicySettings(sleep=Sleep.NEVER)
    made = decided(sleepy(ordered_point=PAUSED, plan=None, policy=never))
    assert (made.action, made.kind) == (Action.SUSPEND, "operator")
    asleep = {"ordered_point": PAUSED, "plan": None, "suspended_s": 60.0, "wakes_at": hours(3)}
    sleeping = decided(sleepy(**asleep))
    assert (sleeping.action, sleeping.kind) == (Action.HOLD, "operator")
    assert "at the latest" in sleeping.reason
    assert decided(sleepy(**asleep, deadline=hours(10.05))).kind == "deadline"
    assert decided(sleepy(**asleep, frozen="by hand")).kind == "frozen"


def test_an_order_to_sleep_that_nobody_could_end_is_refused() -> None:
    """With a sentence that says what to do."""
    made = decided(sleepy(ordered_point=PAUSED, capabilities=ABLE[:-1]))
    assert (made.action, made.kind) == (Action.HOLD, "order_refused")
    assert "wattmesh.integrations.torchrun" in made.reason
    late = decided(sleepy(ordered_point=PAUSED, deadline=hours(10.2)))
    assert late.kind in ("order_refused", "deadline")
    assert late.action is not Action.SUSPEND


def test_a_sleeping_run_whose_signal_is_lost_wakes_and_a_training_one_does_not_sleep() -> None:
    """Stale signals never suspend, and never keep anybody asleep."""
    seen = sleepy()
    blind = replace(seen, carbon=replace(seen.carbon, trouble="the provider is down"))
    assert decided(blind).action is not Action.SUSPEND
    run_asleep = replace(seen.runs[0], suspended_s=60.0)
    assert decided(replace(blind, runs=(run_asleep,))).action is Action.RESUME
