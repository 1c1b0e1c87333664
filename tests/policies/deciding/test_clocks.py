"""Points that differ by their clock only: reached without a switch, when clocks can be set."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.observations import NOW, A, B, measured, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import Action, Decision
from wattmesh.policies.guard import Guard
from wattmesh.policies.menu import unheld
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.reconfig.layout import Layout

FAST = point("A", 4, 1000.0, 1600.0, clock_mhz=1980)
SLOW = point("S", 4, 850.0, 1050.0, clock_mhz=1305)
CLOCKS = catalogue(FAST, SLOW)


def one(**changes: Any) -> Decision:
    """The decision about a run whose catalogue is two clocks of one layout."""
    facts = {"catalogue": CLOCKS, "clock_trouble": "", **changes}
    (decision,) = decide(observation(run(**facts)))
    return decision


def test_a_better_clock_is_set_without_a_switch() -> None:
    """No boundary, no cost of a switch; the sentence says clock."""
    decision = one()
    assert (decision.action, decision.target) == (Action.CLOCK, "S")
    assert decision.reason.startswith(
        "changing the clock from A (dp4 @1980 MHz on 4 GPUs) to S (dp4 @1305 MHz on 4 GPUs): "
    )
    assert "the change costs 0 g" in decision.reason
    assert decision.switch_cost_g == 0.0


def test_without_an_actuator_no_clock_is_chosen_and_the_reason_says_so() -> None:
    """The twin of the test above: the same grid, but nobody who could set it."""
    decision = one(clock_trouble="the power of only 56 of 64 GPUs is seen")
    assert (decision.action, decision.kind) == (Action.HOLD, "no_choice")
    assert (
        "S needs another GPU clock and the power of only 56 of 64 GPUs is seen" in decision.reason
    )


def test_a_clock_that_was_just_changed_stays() -> None:
    """Its own, shorter dwell: the one between layouts does not hold it."""
    held = one(since_clock_s=60.0)
    assert (held.action, held.kind) == (Action.HOLD, "clock_dwell")
    assert (
        "the last change of the clock was 1 min ago and policy.clock_dwell_s is 15 min"
        in held.reason
    )
    assert one(since_clock_s=901.0).action is Action.CLOCK
    assert one(since_switch_s=60.0).action is Action.CLOCK


def test_an_operator_may_order_a_clock() -> None:
    """The same way as a layout, and refused for the same kind of reason."""
    assert one(ordered_point="S").action is Action.CLOCK
    refused = one(ordered_point="S", clock_trouble="no agent reports an actuator")
    assert (refused.action, refused.kind) == (Action.HOLD, "order_refused")


def test_a_deadline_takes_the_clock_back() -> None:
    """The guard outranks grams, for clocks too, whatever the dwell."""
    late = one(
        current=SLOW, layout=SLOW.layout, tokens_total=1_000_000 + 50_000_000, since_clock_s=1.0
    )
    assert (late.action, late.kind, late.target) == (Action.CLOCK, "deadline", "A")


def test_the_deadline_counts_on_clocks_that_cannot_be_set_but_can_be_let_go() -> None:
    """At the slower clock the fastest is not on the menu, and is gone to all the same."""
    facts: dict[str, Any] = {
        "current": SLOW,
        "layout": SLOW.layout,
        "clock_trouble": "the power of only 56 of 64 GPUs is seen",
    }
    assert one(**facts).action is Action.HOLD
    late = one(tokens_total=1_000_000 + 50_000_000, **facts)
    assert (late.action, late.kind, late.target) == (Action.CLOCK, "deadline", "A")


def test_another_layout_with_another_clock_is_a_switch() -> None:
    """The layout goes first; the clock follows when the run has confirmed it."""
    small = point("B", 2, 600.0, 800.0, clock_mhz=1305)
    decision = one(catalogue=catalogue(FAST, small), ordered_point="B")
    assert (decision.action, decision.target) == (Action.SWITCH, "B")


@pytest.mark.parametrize("trouble", ["", "no agent reports an actuator"])
def test_points_without_clocks_need_no_actuator(trouble: str) -> None:
    """A catalogue of layouts alone is what it was."""
    (decision,) = decide(observation(run(catalogue=catalogue(A, B), clock_trouble=trouble)))
    assert (decision.action, decision.target) == (Action.SWITCH, "B")


def test_a_flat_grid_still_prefers_the_clock_that_needs_fewer_joules() -> None:
    """And calls it energy, not carbon."""
    view = run(catalogue=CLOCKS, clock_trouble="")
    (decision,) = decide(observation(view, grid=slots([200.0] * 14)))
    assert (decision.action, decision.kind) == (Action.CLOCK, "energy")


def guarded(**changes: Any) -> Guard:
    """The guard of a run at the slower clock; boundaries are 2000 s apart, looks 5 s."""
    facts: dict[str, Any] = {
        "catalogue": CLOCKS,
        "clock_trouble": "",
        "current": SLOW,
        "layout": SLOW.layout,
        "boundary_every": 2000,
        "speeds": (measured(FAST), measured(SLOW)),
        **changes,
    }
    seen = replace(observation(run(**facts)), clock_lag_s=120.0)
    found = examine(seen, seen.runs[0]).guard
    assert found is not None
    return found


def test_the_way_back_by_the_clock_is_a_look_and_the_time_until_it_is_in_force() -> None:
    """No boundary is waited for, no switch can fail."""
    guard = guarded()
    assert guard.reserve_s(SLOW) == pytest.approx(5.0 * 0.15 + 120.0)
    spare_s = guard.slack_s(FAST) - guard.slack_s(SLOW)
    assert spare_s == pytest.approx(5.0 * 0.15 + 120.0)
    needed_s = guard.tokens_left / guard.rho(FAST)
    tight = replace(guard, time_left_s=needed_s + 300.0)
    assert tight.may_go(FAST, SLOW)
    as_switch = replace(SLOW, layout=B.layout)
    assert not tight.may_go(FAST, as_switch)


def test_a_clock_that_may_not_be_in_force_yet_counts_as_standing() -> None:
    """Just after the wish all of it is missing, later what is left of it."""
    calm, young = guarded(), guarded(since_clock_s=20.0)
    assert young.slack_s(SLOW) == pytest.approx(calm.slack_s(SLOW) - 100.0)
    assert guarded(since_clock_s=120.0).slack_s(SLOW) == calm.slack_s(SLOW)


def settling(since_clock_s: float | None) -> float:
    """The share counted on by a run that was slowed and came back: its interval straddles that."""
    view = run(catalogue=CLOCKS, clock_trouble="", tokens_per_s=880.0, since_clock_s=since_clock_s)
    seen = replace(observation(view), clock_lag_s=120.0)
    found = examine(seen, view).guard
    assert found is not None
    return found.counted_on


def test_a_speed_measured_across_a_change_of_clock_is_no_drift() -> None:
    """As the hook reports it: the mean of an interval that was begun at the other clock.

    Once two intervals have gone by since the clock had to be in force, what is measured counts. A
    run whose clock nobody ever changed is the twin: there the same speed is drift at once.
    """
    assert settling(60.0) == settling(319.0) == 0.98
    assert settling(321.0) == pytest.approx(0.88)
    assert settling(None) == pytest.approx(0.88)


def test_a_clock_that_could_not_be_raised_in_time_is_barred_and_no_switch_is_blamed() -> None:
    """The sentence speaks of the way back, for a clock does not fail like a switch."""
    view = run(catalogue=CLOCKS, clock_trouble="", deadline=NOW + timedelta(seconds=36_950))
    seen = observation(view, grid=slots([400.0] + [300.0] * 400, seconds=120.0))
    (decision,) = decide(replace(seen, clock_lag_s=120.0))
    assert (decision.action, decision.kind) == (Action.HOLD, "deadline_guard")
    assert "S is better at 400 g/kWh, but from there the run could end" in decision.reason
    assert decide(replace(seen, clock_lag_s=60.0))[0].action is Action.CLOCK


def test_points_without_a_lock_are_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of points do not stall a turn: none is compared with every other one."""
    several = [
        replace(each, id=f"{each.id}{number}", layout=Layout(tp=4, micro_batch=number + 1))
        for number in range(100)
        for each in (SLOW, FAST)
    ]
    many = catalogue(FAST, SLOW, *several)
    found = many.unlocked()
    assert found == {each.layout: many.find(each.layout) for each in many.points}
    compared = []
    equal = Layout.__eq__

    def counted(one: Layout, other: object) -> bool:
        compared.append(one)
        return equal(one, other)

    monkeypatch.setattr(Layout, "__eq__", counted)
    seen = run(catalogue=many, current=FAST)
    told = unheld(seen, observation().policy)
    assert [each.id for each in told] == ["A", *(f"A{number}" for number in range(100))]
    assert len(compared) < 10 * len(many.points)
