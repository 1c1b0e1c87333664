"""Plans keep the power cap, the service level and the budget, in the order of priorities."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.observations import HOUR, NOW, A, B, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.controller.planner.asking import moment, terms
from wattmesh.controller.planner.wire import SolveRequest, read_request, to_line
from wattmesh.policies.decision import (
    SUSPENDS,
    Action,
    BudgetLeft,
    CapView,
    Decision,
    Observation,
    PlanView,
    PolicySettings,
    Rung,
    RunView,
)
from wattmesh.policies.menu import menu
from wattmesh.policies.planner.constraints import least_tokens_per_s
from wattmesh.policies.planner.evaluate import low_windows
from wattmesh.policies.planner.mpc import Question, question
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.planner.problem import NoPlan, Sla
from wattmesh.policies.rules.automatic import automatic
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.policies.slowing import needs_w

SLOW = point("S", 4, 700.0, 900.0, clock_mhz=1200, layout=A.layout)
THREE = catalogue(A, SLOW, B)
ABLE = ("in_place", "parking", SUSPENDS)


def hours(count: float) -> datetime:
    """So long after now."""
    return NOW + timedelta(hours=count)


def seen(
    *, cap_h: float | None = None, level: float = 0.0, window_h: float = 6.0, **changes: Any
) -> Observation:
    """A run of 10 h at A with 20 h to go, on a grid that is dirty, clean and dirty again."""
    facts: dict[str, Any] = {
        "catalogue": THREE,
        "clock_trouble": "",
        "deadline": hours(20),
        "gpus_held": 4,
    }
    grid = changes.pop("grid", slots([300.0] * 7 + [100.0] * 7 + [250.0] * 10))
    made = observation(
        run(**facts | changes),
        grid=grid,
        policy=PolicySettings(
            dwell_s=1800.0, sla_throughput_share=level, sla_window_s=window_h * HOUR
        ),
    )
    if cap_h is None:
        return made
    return replace(made, cap=CapView(cap_w=5000.0, until=hours(cap_h)))


def asked(view: Observation) -> Question:
    """The question."""
    made = question(view, view.runs[0])
    assert made is not None
    return made


def planned(view: Observation) -> PlanView:
    """The plan."""
    made = answered(asked(view))
    assert isinstance(made, PlanView), made
    return made


def at(plan: PlanView, hour: float) -> str:
    """Point of the plan at an hour from now."""
    step = plan.at(hours(hour))
    return "none" if step is None else step.point


def above(plan: PlanView, view: Observation) -> list[str]:
    """Points of the plan that need more than the cap leaves while it holds.

    The point that the run stands at when the plan begins is none until it is left.
    """
    room_w, cap = view.runs[0].room_w, view.cap
    assert room_w is not None
    assert cap is not None
    known = {each.id: each for each in THREE.points}
    steps = plan.steps[1:] if plan.steps[0].point == plan.origin else plan.steps
    return [
        each.point
        for each in steps
        if each.start < cap.until and each.point and needs_w(known[each.point]) > room_w
    ]


def test_what_a_cap_bars_now_is_planned_with_after_its_end() -> None:
    """A needs more than the room until 21:30, and is where the plan goes right after."""
    clean = slots([300.0] * 7 + [50.0] * 2 + [300.0] * 11)
    view = seen(cap_h=7.5, room_w=1000.0, current=SLOW, deadline=hours(14), grid=clean)
    assert [each.id for each in menu(view.runs[0], view.policy)] == ["S", "B"]
    plan = planned(view)
    assert above(plan, view) == []
    assert (at(plan, 7.4), at(plan, 7.6)) == ("S", "A")
    assert hours(7.5) in [each.start for each in plan.steps]
    endless = replace(view, cap=None)
    none = answered(asked(endless))
    assert isinstance(none, NoPlan)
    assert none.reason.startswith("under the power cap at most ")


@pytest.mark.parametrize(
    ("cap_h", "deadline_h", "said"),
    [
        (1.0, 12.0, "but A from 15:00 UTC on, when the power cap ends, leaves 1."),
        (4.0, 11.0, "when the power cap ends, misses it by 24 min"),
        (13.0, 12.0, ""),
    ],
)
def test_a_deadline_missed_under_a_cap_is_told_with_what_its_end_gives(
    cap_h: float, deadline_h: float, said: str
) -> None:
    """Nothing is faster now; when the cap is over A is, in time or not; or the cap is too long."""
    view = seen(cap_h=cap_h, room_w=1000.0, current=SLOW, deadline=hours(deadline_h))
    decision = decide(view)[0]
    assert (decision.action, decision.kind) == (Action.HOLD, "deadline")
    assert "likely to be missed by" in decision.reason
    assert ("at this speed, but" in decision.reason) == bool(said)
    assert said in decision.reason


def test_the_plan_and_the_menu_count_a_cap_the_same_way() -> None:
    """What idle GPUs draw is charged to a point, and not part of what it needs room for."""
    room_w = needs_w(B) + 1.0
    assert room_w < THREE.held_power_w(B, 4)
    view = seen(cap_h=9.0, room_w=room_w, current=B)
    problem, ids = asked(view).problem, asked(view).ids
    open_now = {ids[n] for n in range(len(ids)) if problem.available(0, n)}
    assert open_now == {each.id for each in menu(view.runs[0], view.policy)} == {"B"}


@settings(deadline=None, max_examples=60)
@given(
    room_w=st.floats(100.0, 2000.0),
    cap_h=st.floats(0.1, 18.0),
    here=st.sampled_from(THREE.points),
    values=st.lists(st.sampled_from([50.0, 100.0, 300.0, 600.0]), min_size=20, max_size=20),
    able=st.booleans(),
)
def test_no_plan_uses_a_point_above_the_cap_while_it_holds(
    room_w: float, cap_h: float, here: Any, values: list[float], able: bool
) -> None:
    """Whatever the grid, the room, the end and the point that the run is at."""
    facts: dict[str, Any] = {"capabilities": ABLE} if able else {}
    view = seen(cap_h=cap_h, room_w=room_w, current=here, grid=slots(values), **facts)
    made = answered(asked(view))
    assert isinstance(made, NoPlan) or above(made, view) == []


def test_a_plan_that_does_not_hear_of_the_cap_is_caught() -> None:
    """The sabotaged twin: the same question without its cap goes to A in the clean hours."""
    view = seen(cap_h=15.0, room_w=1000.0, current=SLOW, deadline=hours(14))
    made = asked(view)
    deaf = replace(made, problem=replace(made.problem, power_cap_w=()))
    wild = answered(deaf)
    assert isinstance(wild, PlanView)
    assert "A" in above(wild, view)


def test_a_run_that_limits_hold_may_stay_where_it_is_and_not_come_back() -> None:
    """Its boards keep the cap at A; once it is elsewhere A is barred until the cap has ended."""
    view = seen(cap_h=30.0, room_w=1000.0, current=A)
    made = asked(view)
    assert made.origin == "A"
    into = [row[made.problem.start] for row in made.problem.transitions]
    assert into == [None] * len(made.ids)
    tight = seen(cap_h=30.0, room_w=100.0, current=A, deadline=hours(12))
    plan = planned(tight)
    assert {each.point for each in plan.steps} == {"A"}


def test_the_plan_before_goes_on_where_the_run_is_held() -> None:
    """Its rest begins at the option that the run is at, not at the one nothing may go to."""
    view = seen(cap_h=30.0, room_w=100.0, current=A, deadline=hours(12))
    before = planned(view)
    again = answered(asked(view), before)
    assert isinstance(again, PlanView)
    assert (again.steps, again.grams) == (before.steps, before.grams)


def test_a_level_is_kept_in_every_window_and_costs_grams() -> None:
    """The free plan sleeps for hours on end."""
    free = planned(seen(capabilities=ABLE))
    view = seen(level=0.5, window_h=4.0, capabilities=ABLE)
    problem = asked(view).problem
    assert problem.sla is not None
    assert problem.sla.tokens_per_s == 500.0
    kept = planned(view)
    assert slowest(free, view) < 500.0 - 1.0
    assert slowest(kept, view) >= 500.0 - 1e-6
    assert kept.grams > free.grams
    assert kept.level == ""


def slowest(
    plan: PlanView,
    view: Observation,
    *,
    trained: Callable[[float], float] = lambda _: 0.0,
    first_h: float = 0.0,
) -> float:
    """The lowest mean of any window that begins on a minute; switches count 60 s without a token.

    Args:
        plan: followed to the letter.
        view: says the window.
        trained: tokens so many hours before now, counted down from now.
        first_h: begin of the first window that counts.
    """
    window_h = view.policy.sla_window_s / HOUR
    speeds = {each.id: each.tokens_per_s for each in THREE.points} | {"": 0.0}
    layouts = {each.id: str(each.layout) for each in THREE.points} | {"": ""}
    end_h = (plan.finish_at - NOW) / timedelta(hours=1)
    sums, at_point = [0.0], plan.origin
    for minute in range(int(end_h * 60)):
        step = plan.at(NOW + timedelta(minutes=minute + 0.5))
        assert step is not None
        moved, at_point = layouts[step.point] != layouts[at_point], step.point
        sums.append(sums[-1] + (0.0 if moved else speeds[step.point] * 60.0))

    def by(minute: int) -> float:
        return trained(minute / 60) if minute < 0 else sums[minute]

    length = round(window_h * 60)
    begins = range(round(first_h * 60), len(sums) - length)
    means = [(by(n + length) - by(n)) / (length * 60.0) for n in begins]
    return min(means, default=inf)


@settings(deadline=None, max_examples=40)
@given(
    share=st.floats(0.1, 0.9),
    window_h=st.floats(1.0, 12.0),
    here=st.sampled_from(THREE.points),
    values=st.lists(st.sampled_from([50.0, 100.0, 300.0, 600.0]), min_size=20, max_size=20),
)
def test_a_plan_keeps_the_level_or_says_that_it_does_not(
    share: float, window_h: float, here: Any, values: list[float]
) -> None:
    """By the judge of the planner, and by minutes counted here."""
    view = seen(level=share, window_h=window_h, current=here, grid=slots(values), capabilities=ABLE)
    made, plan = asked(view), planned(view)
    if not plan.level:
        assert slowest(plan, view) >= share * 1000.0 - 60.0 / window_h
    elif made.problem.sla is not None:
        assert "windows that begin before" in plan.level or "does without" in plan.level


def test_hours_that_were_slow_count() -> None:
    """Four hours of a window of six at 100 tokens/s: only A makes up for it, dirty grid or not."""
    slow = tuple((ago * 900.0, 1_000_000 - int(ago * 90_000)) for ago in range(16, 0, -1))
    fresh = planned(seen(level=0.4, current=SLOW))
    behind = seen(level=0.4, current=SLOW, trained=slow)
    plan = planned(behind)
    assert at(fresh, 0.1) != "A"
    assert at(plan, 0.1) == "A"
    assert plan.level == ""
    mean = slowest(plan, behind, trained=lambda hour: 360_000 * hour, first_h=-4.0)
    assert mean >= 400.0 - 1.0


def test_windows_that_nothing_can_save_are_said_and_do_not_void_the_others() -> None:
    """Five hours without a token in a window of six: the level is kept from later on."""
    stood = tuple((ago * 900.0, 1_000_000) for ago in range(20, 0, -1))
    view = seen(level=0.5, current=SLOW, trained=stood)
    made, plan = asked(view), planned(view)
    assert made.problem.sla is not None
    assert made.problem.sla.from_s < 0.0
    assert "is missed by windows that begin before 11:00 UTC" in plan.level
    assert not low_windows(made.problem, path(made, plan))
    assert at(plan, 0.1) == "A"


def path(made: Question, plan: PlanView) -> tuple[int, ...]:
    """The plan as a path of its question."""
    steps = [plan.at(each) for each in made.starts]
    return tuple(made.ids.index(each.point) for each in steps if each is not None)


def test_what_a_restart_lost_counts_as_not_trained() -> None:
    """An hour ago it had more tokens than now."""
    view = seen(level=0.4, trained=((7200.0, 0), (3600.0, 1_200_000)))
    sla = asked(view).problem.sla
    assert sla is not None
    assert sla.before == ((-7200.0, -1_000_000.0), (-3600.0, 0.0))


def test_a_cap_that_keeps_the_level_from_being_kept_is_named() -> None:
    """And the level counts from where it can be kept again."""
    view = seen(cap_h=5.0, room_w=needs_w(B), current=B, level=0.8, window_h=2.0)
    plan = planned(view)
    assert "800 tokens/s over every 2 h is missed by windows that begin before " in plan.level
    assert plan.level.endswith("for the power cap leaves no room for more speed")
    assert above(plan, view) == []
    free = planned(replace(view, cap=None, runs=(replace(view.runs[0], room_w=None),)))
    assert "power cap" not in free.level


def test_a_window_longer_than_what_is_left_binds_nothing_and_says_so() -> None:
    """A week."""
    view = seen(level=0.5, window_h=168.0)
    assert asked(view).problem.sla is None
    assert "binds nothing" in planned(view).level
    assert planned(view).grams == planned(seen()).grams


def test_a_level_that_leaves_no_plan_is_given_up_before_the_deadline_is() -> None:
    """A level nobody reaches; and a run that is late anyway has no plan for that reason."""
    made = asked(seen())
    hopeless = Sla(window_s=HOUR, tokens_per_s=5000.0)
    mad = replace(made, problem=replace(made.problem, sla=hopeless))
    plan = answered(mad)
    assert isinstance(plan, PlanView)
    assert plan.level == (
        "no path was found that keeps 5 k tokens/s on average over every 1 h and the deadline, "
        "so the plan does without that level"
    )
    late = answered(replace(mad, problem=replace(mad.problem, tokens=1e9)))
    assert isinstance(late, NoPlan)
    assert late.reason.startswith("at most ")


def test_without_a_plan_the_price_rule_goes_to_no_point_below_the_level() -> None:
    """B is where it goes without a level; with one the reason names both speeds."""

    def chosen(share: float) -> Decision:
        view = seen(level=share, deadline=hours(40), catalogue=catalogue(A, B))
        view = replace(view, carbon=replace(view.carbon, rung=Rung.PROFILE))
        case = examine(view, view.runs[0])
        assert least_tokens_per_s(case) == share * 1000.0
        return automatic(case)

    assert chosen(0.0).target == "B"
    held = chosen(0.65)
    assert (held.target, held.kind) == ("A", "no_choice")
    assert "B trains 600 tokens/s and the service level is 650" in held.reason


def budget(left_g: float, *, until_h: float = 24.0, unpriced_j: float = 0.0) -> BudgetLeft:
    """A budget of the run's own."""
    return BudgetLeft(left_g=left_g, unpriced_j=unpriced_j, until=hours(until_h))


def test_a_budget_that_cannot_be_kept_says_the_least_and_changes_no_step() -> None:
    """The same plan, and a clause with the minimum in the sentence of the decision."""
    free = planned(seen())
    short = planned(seen(budget=budget(0.5 * free.grams)))
    assert short.steps == free.steps
    assert "cannot be kept: the rest of the work takes at least" in short.budget
    assert planned(seen(budget=budget(2 * free.grams))).budget == ""
    view = seen(budget=budget(-1.0), plan=planned(seen(budget=budget(-1.0))))
    (decision,) = decide(view)
    assert "the budget is used up, and the rest of the work takes " in decision.reason
    (calm,) = decide(seen(plan=free))
    assert (decision.action, decision.target) == (calm.action, calm.target)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (None, None),
        (budget(1000.0), 1000.0),
        (budget(1000.0, until_h=19.0), None),
        (budget(1000.0, unpriced_j=3.6e6), 700.0),
    ],
)
def test_a_budget_counts_where_it_covers_the_rest_of_the_run(
    held: BudgetLeft | None, expected: float | None
) -> None:
    """One that ends before the deadline says nothing of it; a kilowatt-hour counts at 300 g."""
    made = asked(seen(budget=held)).problem.budget_g
    assert made == (None if expected is None else pytest.approx(expected))


def test_the_order_is_cap_deadline_level_budget_grams() -> None:
    """Each is kept though what is below it suffers."""
    view = seen(
        cap_h=6.0,
        room_w=needs_w(SLOW),
        current=SLOW,
        level=0.65,
        window_h=3.0,
        budget=budget(1.0),
        deadline=hours(14),
    )
    plan = planned(view)
    assert above(plan, view) == []
    assert plan.finish_at <= hours(14)
    assert slowest(plan, view) >= 650.0 - 1.0
    assert "cannot be kept" in plan.budget
    grams = planned(seen(deadline=hours(14))).grams
    assert plan.grams >= grams


BASE = seen()


@pytest.mark.parametrize(
    "other",
    [
        seen(cap_h=6.0, room_w=1000.0),
        seen(cap_h=6.5, room_w=1000.0),
        seen(level=0.5),
        seen(level=0.5, trained=((900.0, 900_000),)),
        seen(budget=budget(1000.0)),
    ],
)
def test_the_digest_is_another_with_each_constraint(other: Observation) -> None:
    """And the question survives the way to the planning process."""
    made = asked(other)
    digests = {asked(BASE).digest, made.digest}
    assert len(digests) == 2
    assert read_request(to_line(SolveRequest(question=made))).question == made


def test_a_cap_asks_anew_and_another_level_voids_the_plan() -> None:
    """A cap that begins, or ends at another time, is a new moment under the same terms."""
    views = [seen(), seen(cap_h=6.0, room_w=5000.0), seen(cap_h=7.0, room_w=5000.0)]
    assert len({moment(each, each.runs[0]) for each in views}) == 3
    first, *others, level = [terms(each, each.runs[0]) for each in (*views, seen(level=0.5))]
    assert others == [first, first]
    assert level != first


def test_gpus_that_the_run_does_not_hold_are_never_planned_with() -> None:
    """Nothing is known of any that come back, so none do."""
    view = seen(world_size=2, gpus_held=2, current=B)
    lost: RunView = view.runs[0]
    assert lost.current is B
    made = asked(view)
    assert {each for each in made.ids if each} == {"B"}
