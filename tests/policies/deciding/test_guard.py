"""The deadline guard: whatever the grid, the noise and failed switches do, the run is in time."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders.observations import A, B, observation
from tests.builders.points import point
from wattmesh.policies.guard import FAILED_SWITCH, Guard
from wattmesh.policies.run_context import examine
from wattmesh.policies.switch_time import SwitchTimes
from wattmesh.reconfig.catalogue import Release, SwitchCost

C = point("C", 1, 250.0, 350.0)


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


def test_outages_so_far_come_off_the_speed_that_is_counted_on() -> None:
    """A run that stood a tenth of its time is expected to stand a tenth of the rest."""
    seen = observation()
    calm = examine(seen, seen.runs[0])
    shaky = examine(seen, replace(seen.runs[0], outage_share=0.1))
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
    seen = observation()
    one = seen.runs[0]
    assert one.catalogue is not None
    for back_s, told in ((120.0, True), (None, False)):
        switch = replace(one.catalogue.switch, reacquire_s=back_s)
        job = replace(one.catalogue, switch=switch, release=Release.RELEASED)
        case = examine(seen, replace(one, catalogue=job))
        decision = case.go("carbon", B, "it is dirty")
        assert ("GPUs given back being there 2 min after" in decision.reason) is told
