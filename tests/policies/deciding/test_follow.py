"""A plan is followed behind the gates, and a run that sleeps is woken whenever in doubt."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.observations import NOW, A, B, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import (
    SUSPENDS,
    Action,
    CarbonView,
    Decision,
    Observation,
    PlanStep,
    PlanView,
    Rung,
    RunView,
    SwitchView,
)
from wattmesh.policies.guard import FAILED_SWITCH
from wattmesh.policies.planner.mpc import question
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.planner.problem import NoPlan
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.reconfig.catalogue import PAUSED, PairCost, SwitchCost
from wattmesh.reconfig.layout import Layout

CLOCKED = point("A-slow", 4, 900.0, 1300.0, clock_mhz=1300, layout=A.layout)
TWO_CLOCKS = catalogue(A, CLOCKED, B)
ABLE = ("in_place", "parking", SUSPENDS)


def hours(count: float) -> datetime:
    """So long after now."""
    return NOW + timedelta(hours=count)


def plan(*points: str, made_at: datetime = NOW, each_h: float = 2.0) -> PlanView:
    """A plan of steps of two hours."""
    steps = tuple(
        PlanStep(
            start=made_at + n * timedelta(hours=each_h),
            end=made_at + (n + 1) * timedelta(hours=each_h),
            point=name,
        )
        for n, name in enumerate(points)
    )
    return PlanView(
        made_at=made_at,
        digest="d",
        origin="A",
        steps=steps,
        price_mu=1e-4,
        grams=1000.0,
        bound_g=990.0,
        gap=0.01,
    )


def decided(seen: Observation) -> Decision:
    """The one decision."""
    return decide(seen)[0]


def planned(*points: str, **changes: Any) -> Observation:
    """A run at A with a plan."""
    return observation(run(plan=plan(*points), **changes))


def test_the_plans_point_for_now_is_gone_to() -> None:
    """With the plan's price and bound, and what the step saves."""
    made = decided(planned("B", "A"))
    assert (made.action, made.target, made.kind) == (Action.SWITCH, "B", "plan")
    assert (made.price_mu, made.plan_bound_g) == (1e-4, 990.0)
    assert made.predicted_g is not None
    assert made.switch_cost_g is not None
    assert "the plan keeps it there until" in made.reason


def test_a_switch_whose_joules_nobody_measured_is_not_free() -> None:
    """It draws as if the run trained on at A; else what was measured, of its own pair first."""
    bare = catalogue(A, B, switch=SwitchCost(layout_s=60.0))
    seen = observation(run(plan=replace(plan("B"), price_mu=0.0), catalogue=bare))
    g_per_j = seen.carbon.slots[0].g_per_kwh / 3.6e6
    assert decided(seen).switch_cost_g == pytest.approx(60.0 * A.power_w * g_per_j)
    known = replace(seen, runs=(replace(seen.runs[0], switch_energy_j=5e5),))
    assert decided(known).switch_cost_g == pytest.approx(5e5 * g_per_j)
    pair = PairCost(origin="A", target="B", seconds=60.0, energy_j=7e5)
    paired = replace(bare, switch=replace(bare.switch, pairs=(pair,)))
    own = replace(known, runs=(replace(known.runs[0], catalogue=paired),))
    assert decided(own).switch_cost_g == pytest.approx(7e5 * g_per_j)


def test_only_the_step_that_holds_now_counts() -> None:
    """What comes later is said, not done."""
    made = decided(planned("A", "B"))
    assert (made.action, made.kind) == (Action.HOLD, "at_target")
    assert "the plan goes to B" in made.reason
    assert "until the work is done" in decided(planned("A")).reason


@pytest.mark.parametrize(
    ("changes", "carbon"),
    [
        ({"plan": None}, {}),
        ({"plan": plan("B", made_at=hours(-3), each_h=9)}, {}),
        ({"plan": plan("B", made_at=hours(1))}, {}),
        ({"plan": plan("nowhere")}, {}),
        ({"plan": plan("B")}, {"rung": Rung.PROFILE}),
    ],
)
def test_without_a_fresh_plan_on_an_issued_forecast_the_price_rule_decides(
    changes: dict[str, Any], carbon: dict[str, Any]
) -> None:
    """None, too old, from the future, of a point nobody knows, or on the second rung."""
    seen = observation(run(**changes))
    seen = replace(seen, carbon=replace(seen.carbon, **carbon))
    bare = observation(run())
    bare = replace(bare, carbon=replace(bare.carbon, **carbon))
    assert decided(seen) == decided(bare)


def test_a_clock_needs_no_switch_and_has_its_own_dwell() -> None:
    """The layout's dwell does not hold it."""
    facts: dict[str, Any] = {"catalogue": TWO_CLOCKS, "clock_trouble": "", "since_switch_s": 60.0}
    assert decided(planned("A-slow", **facts)).action is Action.CLOCK
    held = decided(planned("A-slow", since_clock_s=60.0, **facts))
    assert (held.action, held.kind) == (Action.HOLD, "clock_dwell")


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"since_switch_s": 600.0}, "dwell"),
        ({"switches_today": 6}, "day_limit"),
        ({"deadline": hours(10.25)}, "deadline_guard"),
        ({"frozen": "by hand"}, "frozen"),
        (
            {"open_switch": SwitchView(target="B", state="ordered", age_s=1.0)},
            "switching",
        ),
    ],
)
@pytest.mark.parametrize("wanted", ["B", ""])
def test_every_gate_stands_before_the_plan(changes: dict[str, Any], kind: str, wanted: str) -> None:
    """For a point as for sleep."""
    made = decided(planned(wanted, "A", capabilities=ABLE, **changes))
    assert (made.action, made.kind) == (Action.HOLD, kind)


def test_sleep_is_ordered_where_the_plan_wants_it() -> None:
    """And says until when."""
    made = decided(planned("", "A", capabilities=ABLE))
    assert made.action is Action.SUSPEND
    assert made.target == PAUSED
    assert "trains on from" in made.reason
    assert made.wakes_at == hours(2)


def asleep(view: PlanView | None = None, **changes: Any) -> Observation:
    """A run that sleeps for five hours by now."""
    facts: dict[str, Any] = {"suspended_s": 5 * 3600.0, "capabilities": ABLE, "plan": view}
    return observation(run(**(facts | changes)))


def test_a_sleeping_run_sleeps_on_while_the_plan_says_so() -> None:
    """And says when it wakes."""
    made = decided(asleep(plan("", "A")))
    assert (made.action, made.kind) == (Action.HOLD, "at_target")
    assert "staying suspended" in made.reason


@pytest.mark.parametrize(
    ("seen", "kind", "target"),
    [
        (asleep(plan("B")), "plan", "B"),
        (asleep(), "no_plan", "A"),
        (asleep(plan("", made_at=hours(-3), each_h=9)), "no_plan", "A"),
        (asleep(plan(""), deadline=hours(10.05)), "deadline", "A"),
        (asleep(plan(""), frozen="by hand"), "frozen", "A"),
        (asleep(plan(""), ordered_point="B"), "operator", "B"),
        (asleep(plan(""), deadline=None), "no_deadline", "A"),
        (
            replace(
                asleep(plan("")),
                carbon=CarbonView(signal="x", slots=(), age_s=None, trouble="lost"),
            ),
            "stale_signal",
            "A",
        ),
        (asleep(plan(""), coverage=(1, 4)), "coverage", "A"),
    ],
)
def test_a_sleeping_run_is_woken_in_every_other_case(
    seen: Observation, kind: str, target: str
) -> None:
    """A lost signal, no plan, the deadline, a person: law 7."""
    made = decided(seen)
    assert (made.action, made.kind, made.target) == (Action.RESUME, kind, target)


def test_a_run_that_just_went_to_sleep_is_not_woken_for_grams() -> None:
    """But for the deadline it is."""
    assert decided(asleep(plan("A"), suspended_s=60.0)).kind == "dwell"
    made = decided(asleep(plan("A"), suspended_s=60.0, deadline=hours(10.05)))
    assert made.action is Action.RESUME


@given(
    left_h=st.floats(0.5, 40.0),
    tokens=st.integers(1_000, 40_000_000),
    cycle_s=st.floats(0.0, 3600.0),
    fails=st.integers(0, 1),
)
@settings(max_examples=100, deadline=None)
def test_a_run_that_may_sleep_can_still_be_in_time_after_every_failure_allowed(
    left_h: float, tokens: int, cycle_s: float, fails: int
) -> None:
    """Slept until the next look, every wake-up but the last fails: the rest fits at the fastest."""
    view = run(
        suspended_s=0.0,
        deadline=hours(left_h),
        tokens=0,
        tokens_total=tokens,
        failed_switches=fails,
    )
    guard = examine(replace(observation(view), cycle_s=cycle_s), view).guard
    assert guard is not None
    if guard.asleep_slack_s() < 0:
        return
    attempts = 2 - fails
    lost_s = attempts * cycle_s + (FAILED_SWITCH * (attempts - 1) + 1) * 60.0
    assert lost_s + tokens / (A.tokens_per_s * guard.counted_on) <= left_h * 3600 + 1e-6


def test_the_question_is_what_the_cycle_saw_and_the_answer_follows_it() -> None:
    """Dirty for seven hours, clean for seven: B first, and A at the end."""
    view = run(capabilities=("in_place", "parking"))
    asked = question(observation(view), view)
    assert asked is not None
    assert asked.ids == ("A", "B")
    assert asked.origin == "A"
    assert asked == question(observation(view), view)
    found = answered(asked)
    assert isinstance(found, PlanView)
    assert found.digest == asked.digest
    assert found.steps[0].start == NOW
    assert found.finish_at <= hours(14)
    assert all(a.end == b.start for a, b in zip(found.steps, found.steps[1:], strict=False))
    assert found.bound_g <= found.grams


def test_sleep_is_an_option_only_of_runs_that_can() -> None:
    """And a run that sleeps is asked about from there."""
    able = run(capabilities=ABLE)
    asked = question(observation(able), able)
    assert asked is not None
    assert asked.ids == ("A", "B", "")
    tired = replace(able, suspended_s=10.0)
    asked = question(observation(tired), tired)
    assert asked is not None
    assert asked.origin == ""


@pytest.mark.parametrize(
    "view",
    [
        run(catalogue=None, current=None, layout=Layout(dp_shard=4)),
        run(deadline=None),
        run(tokens_total=0),
    ],
)
def test_nothing_is_asked_while_something_is_missing(view: RunView) -> None:
    """No catalogue, no deadline, no work."""
    assert question(observation(view), view) is None


def test_work_that_does_not_fit_has_no_plan() -> None:
    """The guard is left to decide alone."""
    view = run(deadline=hours(9.0))
    asked = question(observation(view), view)
    assert asked is not None
    assert isinstance(answered(asked), NoPlan)


def test_a_far_deadline_is_asked_about_in_longer_slots() -> None:
    """As they are for three days, two hours after."""
    view = run(deadline=hours(200), tokens_total=400_000_000)
    asked = question(observation(view, grid=slots([200.0] * 200)), view)
    assert asked is not None
    assert set(asked.problem.seconds[:72]) == {3600.0}
    assert set(asked.problem.seconds[72:-1]) == {7200.0}


def test_the_plan_of_before_is_kept_to_unless_the_new_one_is_worth_it() -> None:
    """A forecast that moves by a gram moves no run."""
    view = run(capabilities=("in_place", "parking"))
    asked = question(observation(view, grid=slots([200.0] * 14)), view)
    assert asked is not None
    before = answered(asked)
    noisy = question(observation(view, grid=slots([200.0, *[199.5] * 6, *[200.5] * 7])), view)
    assert noisy is not None
    assert isinstance(before, PlanView)
    after = answered(noisy, before)
    assert isinstance(after, PlanView)
    assert after.steps[0].point == before.steps[0].point
