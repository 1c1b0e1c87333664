"""Power caps that are announced: plans and deadlines count on them before they begin."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.observations import NOW, A, measured, slots
from tests.policies.planning.test_constraints import SLOW, THREE, asked, at, hours, planned, seen
from wattmesh.controller.planner.asking import moment, terms
from wattmesh.policies.decision import CapAhead, CapView, Observation, PlanView, RunView
from wattmesh.policies.planner.planning import answered
from wattmesh.policies.powercap.capped import announced, loads
from wattmesh.policies.powercap.powercap import GpuPowerLimits, cap
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.policies.slowing import needs_w
from wattmesh.reconfig.catalogue import Evidence


def ahead(start_h: float, until_h: float, room_w: float = 1000.0, held: str = "S") -> CapAhead:
    """A cap from one hour to another that leaves the run so much."""
    return CapAhead(
        start=hours(start_h), until=hours(until_h), cap_w=5000.0, room_w=room_w, point=held
    )


def capped_s(view: Observation) -> float:
    """Seconds that the guard takes off for announced caps."""
    guard = examine(view, view.runs[0]).guard
    assert guard is not None
    return guard.capped_s


def test_a_plan_trains_more_before_an_announced_cap_and_nothing_above_it_meanwhile() -> None:
    """What it cannot train under the cap it trains before, though those hours are dirtier."""
    facts: dict[str, Any] = {"grid": slots([300.0] * 7 + [50.0] * 4 + [300.0] * 9)}
    facts["deadline"] = hours(12.5)
    view = seen(caps_ahead=(ahead(7.0, 10.5),), **facts)
    plan, free = planned(view), planned(seen(**facts))
    assert (at(free, 3.0), at(free, 8.0)) == ("S", "A")
    assert at(plan, 3.0) == "A"
    assert {at(plan, hour) for hour in (7.1, 8.0, 10.4)} <= {"S", "B", ""}
    assert at(plan, 10.6) == "A"
    assert hours(10.5) in [each.start for each in plan.steps]
    deaf = replace(asked(view), problem=replace(asked(view).problem, power_cap_w=()))
    wild = answered(deaf)
    assert isinstance(wild, PlanView)
    assert at(wild, 8.0) == "A", "the sabotaged twin: a question without its cap"


def test_a_plan_exists_where_limits_alone_will_hold_the_run() -> None:
    """No point has room under the cap; the one that needs least stays open."""
    plan = planned(seen(caps_ahead=(ahead(2.0, 4.0, room_w=1.0, held=""),), deadline=hours(14)))
    least = min(THREE.points, key=needs_w)
    assert at(plan, 3.0) == least.id


def test_an_announced_cap_asks_for_a_new_plan_under_the_same_terms() -> None:
    """And so does another time, and its withdrawal."""
    views = [seen(), seen(caps_ahead=(ahead(2, 4),)), seen(caps_ahead=(ahead(2, 5),))]
    assert len({moment(each, each.runs[0]) for each in views}) == 3
    first, *others = [terms(each, each.runs[0]) for each in views]
    assert others == [first, first]


@pytest.mark.parametrize(
    ("caps", "lost_h"),
    [
        ((), 0.0),
        ((ahead(2, 4),), 2 * 0.3),
        ((ahead(2, 4, held=""),), 2.0),
        ((ahead(2, 4, held="gone"),), 2.0),
        ((ahead(18, 40),), 2 * 0.3),
        ((ahead(21, 40),), 0.0),
        ((ahead(2, 4), ahead(3, 5, held="")), 1 * 0.3 + 2.0),
        ((ahead(2, 8), ahead(3, 5)), 6 * 0.3),
        ((ahead(2, 4, held="A"),), 0.0),
    ],
)
def test_the_guard_takes_off_what_caps_take_until_the_deadline(
    caps: tuple[CapAhead, ...], lost_h: float
) -> None:
    """The part of each that the fastest point must train again; once where two hold."""
    known = (measured(A), measured(SLOW))
    view, before = seen(caps_ahead=caps, speeds=known), seen(speeds=known)
    assert capped_s(view) == pytest.approx(3600 * lost_h)
    slack = examine(view, view.runs[0]).slack_s
    free = examine(before, before.runs[0]).slack_s
    assert slack is not None
    assert free is not None
    assert slack == pytest.approx(free - 3600 * lost_h)


def lived(caps: tuple[CapAhead, ...], *, told: bool, grid: Any, deadline_h: float) -> float:
    """Hours that a run of 10 h at A takes if decisions are followed at once; looks every 3 min."""
    step, now, tokens, here = timedelta(minutes=3), NOW, 0.0, A
    points = {each.id: each for each in THREE.points}
    changed: datetime | None = None
    total = seen().runs[0].tokens_total - seen().runs[0].tokens
    while now < hours(deadline_h + 12):
        holds = next((each for each in caps if each.start <= now < each.until), None)
        place = points[holds.point] if holds and needs_w(here) > holds.room_w else here
        since_s = None if changed is None else (now - changed).total_seconds()
        facts: dict[str, Any] = {
            "current": place,
            "layout": place.layout,
            "tokens": seen().runs[0].tokens + round(tokens),
            "deadline": hours(deadline_h),
            "room_w": holds.room_w if holds else None,
            "caps_ahead": tuple(each for each in caps if each.start > now) if told else (),
            "since_switch_s": since_s,
            "speeds": tuple(map(measured, THREE.points)),
        }
        view = seen(grid=grid, **facts)
        in_force = CapView(cap_w=5000.0, until=holds.until) if holds else None
        view = replace(view, now=now, cap=in_force, cycle_s=180.0)
        target = decide(view)[0].target
        if target and points[target].layout != here.layout:
            changed = now
        if target and not (holds and target == place.id):
            here = points[target]
        trains = points[holds.point] if holds and needs_w(here) > holds.room_w else here
        tokens += trains.tokens_per_s * step.total_seconds()
        now += step
        if tokens >= total:
            # It is done within the step, not at its end.
            early_s = (tokens - total) / trains.tokens_per_s
            return ((now - NOW).total_seconds() - early_s) / 3600
    return float("inf")


def test_a_run_that_was_told_of_a_cap_is_in_time_and_one_that_was_not_is_late() -> None:
    """The grid invites it to be slow first and fast in the very hours of the cap."""
    grid = slots([600.0] * 8 + [50.0] * 8 + [600.0] * 8)
    caps = (ahead(8.0, 14.0),)
    assert lived(caps, told=True, grid=grid, deadline_h=12.8) <= 12.8
    assert lived(caps, told=False, grid=grid, deadline_h=12.8) > 12.8


@settings(deadline=None, max_examples=12)
@given(
    begin_h=st.floats(0.5, 12.0),
    lasts_h=st.floats(0.2, 8.0),
    spare_h=st.floats(0.8, 4.0),
    values=st.lists(st.sampled_from([50.0, 300.0, 600.0]), min_size=24, max_size=24),
)
def test_a_run_that_was_told_is_in_time_on_any_grid(
    begin_h: float, lasts_h: float, spare_h: float, values: list[float]
) -> None:
    """Wherever the time suffices once the cap is taken off it."""
    lost_h = 0.3 * lasts_h
    deadline_h = 10.0 / 0.98 + lost_h + spare_h
    caps = (ahead(begin_h, begin_h + lasts_h),)
    assert lived(caps, told=True, grid=slots(values), deadline_h=deadline_h) <= deadline_h


def test_what_an_announced_cap_leaves_is_planned_over_the_boards_as_they_are() -> None:
    """The run that is slowed hears its point; one on a board that obeys nobody keeps its own."""
    one, slow = replace(A, evidence=Evidence.MEASURED), replace(SLOW, evidence=Evidence.MEASURED)
    both = replace(THREE, points=(one, slow))
    run: RunView = seen(catalogue=both, current=one).runs[0]
    view = replace(seen(), runs=(run,))
    boards = [GpuPowerLimits(gpu_uuid=f"g{n}", limit_w=700.0, floor_w=100.0) for n in range(4)]
    found = loads(view, {run.run: ("g0", "g1", "g2", "g3")})
    span = (hours(2), hours(4))
    tight = cap(needs_w(slow), boards, found)
    (told,) = announced(view, [(tight, *span)]).runs[0].caps_ahead
    assert (told.point, told.start, told.until) == ("S", *span)
    assert told.room_w >= needs_w(slow) - 1e-3
    wide = cap(1e6, boards, found)
    assert announced(view, [(wide, *span)]).runs[0].caps_ahead[0].point == "A"
    crushed = cap(500.0, boards, found)
    assert announced(view, [(crushed, *span)]).runs[0].caps_ahead[0].point == ""
    idle = replace(view, runs=(replace(run, run="other"),))
    assert announced(idle, [(tight, *span)]).runs[0].caps_ahead == ()
