"""The deadline guard: whatever the grid, the noise and failed switches do, the run is in time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.policies.build import NOW, A, B, catalogue, point, slots
from tests.policies.simulator import Decide, Simulation, World
from wattmesh.policies.decision import (
    Action,
    Decision,
    IntensitySlot,
    Observation,
    PolicySettings,
)
from wattmesh.policies.guard import FAILED_SWITCH, Guard
from wattmesh.policies.rules.decide import decide
from wattmesh.policies.run_context import examine
from wattmesh.policies.switch_time import SwitchTimes
from wattmesh.reconfig.catalogue import Release, SwitchCost

C = point("C", 1, 250.0, 350.0)
Z = 0.05


def guard(**changes: Any) -> Guard:
    """A run with 10,000 s of work at A, boundaries every 100 s there, switches of 60 s."""
    facts: dict[str, Any] = {
        "tokens_left": 1e7,
        "time_left_s": 14_000.0,
        "counted_on": 1.0,
        "times": SwitchTimes(switch=SwitchCost(layout_s=60.0)),
        "interval_tokens": 1e5,
        "cycle_s": 5.0,
    }
    facts.update(changes)
    return Guard(fastest=A, attempts=2, attempts_after=2, **facts)


def test_at_the_fastest_point_the_slack_is_the_time_to_spare() -> None:
    """Nothing has to be reached."""
    assert guard().slack_s(A) == pytest.approx(4000.0)
    assert guard(counted_on=0.8).slack_s(A) == pytest.approx(1500.0)


def test_at_a_slow_point_the_way_back_is_reserved() -> None:
    """Two waits for a boundary, a failed switch and a good one."""
    lag_s = 5.0 + 1e5 / 600.0
    way = 2 * lag_s * (1 - 0.6) + (1 + FAILED_SWITCH) * 60.0
    assert guard().slack_s(B) == pytest.approx(4000.0 - way)
    assert guard().reserve_s(B) == pytest.approx(way)
    assert guard().reserve_s(A) == 0.0


def test_a_run_that_can_end_where_it_is_needs_no_way_back() -> None:
    """Near the end the slow point is in time by itself."""
    near = guard(tokens_left=6e4, time_left_s=101.0)
    assert near.may_stay(B)
    assert not near.may_stay(C)


def test_with_one_attempt_left_only_a_point_to_end_at_may_be_left() -> None:
    """A second failure freezes the run where it is, and it must be in time there too."""
    last = replace(guard(), attempts=1)
    assert guard().may_go(B, A)
    assert not last.may_go(B, C)
    assert replace(last, time_left_s=17_000.0).may_go(B, A)


def world(
    values: Sequence[float],
    *,
    slack: float,
    speed: Callable[[float], float],
    fails: Callable[[int], bool],
    trouble: Callable[[float], str] = lambda _: "",
    scale_s: float = 1.0,
    honest: bool = False,
    timeout: float = 0.0,
    lost: float = float("inf"),
) -> World:
    """A run of 4000 x `scale_s` seconds of work at A, with `slack` times that to its deadline.

    Its forecast is the day backwards, unless it is `honest`. A failed switch takes `timeout` times
    a switch, if that is more than twice; half of its nodes are lost after the share `lost` of the
    time to the deadline.
    """
    work_s, switch_s = 4000.0 * scale_s, 30.0 * scale_s
    step = slack * work_s / len(values)
    grid = slots(values, seconds=step)
    return World(
        catalogue=catalogue(
            A,
            B,
            C,
            switch=SwitchCost(layout_s=switch_s, layout_energy_j=300.0 * switch_s),
            global_batch=1,
            seq_len=1,
        ),
        start=NOW,
        tokens_total=int(work_s * A.tokens_per_s),
        deadline=NOW + timedelta(seconds=slack * work_s),
        grid=grid,
        forecast=grid if honest else backwards(grid),
        policy=PolicySettings(
            dwell_s=2 * switch_s,
            gain_factor=1.0,
            guard_margin=Z,
            failed_switch_s=timeout * switch_s,
        ),
        failed_s=max(FAILED_SWITCH, timeout) * switch_s,
        lost_s=lost * slack * work_s,
        outage_s=3 * switch_s,
        left="B",
        interval_tokens=int(50 * scale_s * A.tokens_per_s),
        cycle_s=7.0 * scale_s,
        first="A",
        switch_s=switch_s,
        speed=speed,
        fails=fails,
        signal_trouble=trouble,
    )


def backwards(grid: Sequence[IntensitySlot]) -> tuple[IntensitySlot, ...]:
    """The same slots with the values in the opposite order."""
    values = [slot.g_per_kwh for slot in grid][::-1]
    return tuple(replace(slot, g_per_kwh=value) for slot, value in zip(grid, values, strict=True))


@st.composite
def adversaries(draw: st.DrawFn) -> World:
    """Any grid, any speed within the margin, any failures that are not two in a row."""
    values = draw(st.lists(st.floats(1.0, 900.0), min_size=1, max_size=24))
    noise = draw(st.lists(st.floats(1.0 - Z, 1.3), min_size=1, max_size=20))
    failing = draw(st.lists(st.booleans(), min_size=1, max_size=12))
    stale = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    scale_s = draw(st.sampled_from([0.01, 1.0, 60.0]))
    single = [now and not before for before, now in zip([False, *failing], failing, strict=False)]
    return world(
        values,
        slack=draw(st.floats(1.0 / (1.0 - Z), 4.5)),
        speed=lambda at_s: noise[int(at_s / (90.0 * scale_s)) % len(noise)],
        fails=lambda n: single[n] if n < len(single) else False,
        trouble=lambda at_s: "gone." if stale[int(at_s / (700 * scale_s)) % len(stale)] else "",
        scale_s=scale_s,
        timeout=draw(st.sampled_from([0.0, 5.0, 20.0])),
    )


@settings(max_examples=30)
@given(adversaries())
def test_the_deadline_is_met_whatever_happens(adversary: World) -> None:
    """The theorem, acted out: feasible at the start means in time at the end."""
    sim = Simulation(adversary)
    assume(feasible(sim))
    day = sim.go()
    assert not day.frozen
    assert day.in_time, (day.finished_s, day.path)


def feasible(sim: Simulation) -> bool:
    """Whether the guard holds at the first look."""
    seen = sim.observation()
    case = examine(seen, replace(seen.runs[0], step=1))
    return case.guard is not None and case.guard.may_stay(A)


def carelessly(seen: Observation) -> tuple[Decision, ...]:
    """The sabotaged twin: the same policy, told that there is twice the time."""
    late = tuple(
        replace(each, deadline=seen.now + 2 * (each.deadline - seen.now))
        for each in seen.runs
        if each.deadline
    )
    return decide(replace(seen, runs=late))


@pytest.mark.parametrize(("choose", "in_time"), [(decide, True), (carelessly, False)])
def test_a_policy_that_ignores_the_guard_is_late(choose: Decide, in_time: bool) -> None:
    """The adversary is strong enough to tell the two apart."""
    sim = Simulation(
        world(
            [500.0] * 12 + [100.0] * 12,
            slack=1.3,
            speed=lambda _: 1.0 - Z,
            fails=lambda n: n == 1,
            honest=True,
        ),
        choose,
    )
    day = sim.go()
    assert len(day.path) > 1
    assert day.in_time is in_time


def test_a_second_failure_in_a_row_freezes_and_is_no_more_touched() -> None:
    """Frozen runs train on unswitched, and a human was called."""
    sim = Simulation(
        world([500.0] * 12 + [100.0] * 12, slack=1.5, speed=lambda _: 1.0, fails=lambda _: True)
    )
    day = sim.go()
    assert day.frozen
    assert [name for _, name in day.path] == ["A", "A", "A"]
    assert sum(each.action is Action.SWITCH for each in day.decisions) == 2
    assert day.in_time


def trusting(seen: Observation) -> tuple[Decision, ...]:
    """The sabotaged twin: the same policy, told that a failed switch costs nothing more."""
    return decide(replace(seen, policy=replace(seen.policy, failed_switch_s=0.0)))


@pytest.mark.parametrize(("choose", "in_time"), [(decide, True), (trusting, False)])
def test_a_failed_switch_that_takes_its_whole_timeout_is_reckoned_with(
    choose: Decide, in_time: bool
) -> None:
    """Rollback and restart included: who reckons with twice a switch is late."""
    values = [500.0] * 12 + [100.0] * 12
    hard = world(
        values, slack=1.35, speed=lambda _: 1.0 - Z, fails=lambda n: n == 1, honest=True, timeout=40
    )
    assert Simulation(hard, choose).go().in_time is in_time


@settings(max_examples=15)
@given(adversaries(), st.floats(0.05, 0.95))
def test_after_a_loss_of_nodes_the_guard_holds_for_what_is_left_or_says_that_it_does_not(
    adversary: World, lost: float
) -> None:
    """The fastest point is gone with its nodes: the promise is made anew, or openly not made."""
    length_s = (adversary.deadline - adversary.start).total_seconds()
    sim = Simulation(replace(adversary, lost_s=lost * length_s))
    assume(feasible(sim))
    word: list[bool] = []

    def choose(seen: Observation) -> tuple[Decision, ...]:
        case = examine(seen, seen.runs[0])
        if sim.gpus < sim.world.gpus and sim.out_s is None and not word and case.guard:
            assert case.guard.fastest.id == "B"
            word.append(case.guard.may_stay(sim.point))
        return decide(seen)

    sim.choose = choose
    day = sim.go()
    if word and word[0]:
        assert day.in_time, (day.finished_s, day.path)
    elif word:
        said = {each.kind for each in day.decisions}
        assert said & {
            "deadline",
            "static_fastest",
            "speed_unmeasured",
            "failed_switches",
            "frozen",
        }


def test_too_little_slack_for_a_promise_is_said_and_nothing_is_done_for_grams() -> None:
    """Below 1 / (1 - z) of the fastest: it keeps to the fastest point, and nobody promises."""
    tight = world(
        [500.0] * 12 + [100.0] * 12, slack=1.02, speed=lambda _: 1.0, fails=lambda _: False
    )
    day = Simulation(tight).go()
    assert {name for _, name in day.path} == {"A"}
    said = next(each for each in day.decisions if each.kind == "static_fastest")
    assert "counting on 95 % of the speed (5 % for errors of speed in reserve)" in said.reason
    assert "nothing is promised" in said.reason


def test_outages_so_far_come_off_the_speed_that_is_counted_on() -> None:
    """A run that stood a tenth of its time is expected to stand a tenth of the rest."""
    seen = Simulation(
        world([300.0], slack=1.5, speed=lambda _: 1.0, fails=lambda _: False)
    ).observation()
    calm = examine(seen, replace(seen.runs[0], step=1))
    shaky = examine(seen, replace(seen.runs[0], step=1, outage_share=0.1))
    assert calm.guard is not None
    assert shaky.guard is not None
    assert shaky.guard.counted_on == pytest.approx(0.9 * calm.guard.counted_on)
    assert "10 % for outages and pauses like those so far" in shaky.promise
    assert shaky.guard.slack_s(A) < calm.guard.slack_s(A)


def test_gpus_given_back_count_only_with_a_measured_time_to_get_them_again() -> None:
    """Unknown is never zero: without it a smaller point must be in time by itself."""
    kept = guard()
    unknown = guard(reacquire_s=float("inf"))
    measured = guard(reacquire_s=600.0)
    assert kept.may_go(A, B)
    assert unknown.returns_from(A)
    assert not unknown.returns_from(B)
    assert not unknown.may_go(A, B)
    assert replace(unknown, time_left_s=20_000.0).may_go(A, B)
    assert measured.slack_s(B) == pytest.approx(kept.slack_s(B) - 2 * 600.0)
    assert unknown.reserve_s(B) == kept.reserve_s(B)


def test_a_switch_whose_way_back_rests_on_gpus_given_back_says_so() -> None:
    """The guarantee holds only if they are there in the measured time, and the sentence tells."""
    seen = Simulation(
        world([900.0] * 2, slack=3.0, speed=lambda _: 1.0, fails=lambda _: False)
    ).observation()
    one = seen.runs[0]
    assert one.catalogue is not None
    for back_s, told in ((120.0, True), (None, False)):
        switch = replace(one.catalogue.switch, reacquire_s=back_s)
        job = replace(one.catalogue, switch=switch, release=Release.RELEASED)
        case = examine(seen, replace(one, step=1, catalogue=job))
        decision = case.go("carbon", B, "it is dirty")
        assert ("GPUs given back being there 2 min after" in decision.reason) is told
