"""A run measures its fastest point before it leaves it for a long way back."""

from datetime import timedelta
from typing import Any

import pytest

from tests.builders.observations import NOW, A, B, measured, observation, run
from tests.builders.replays import CYCLE_S, grid, job, means, perfect, scene
from tests.policies.test_follow import ABLE, decided, plan
from wattmesh.controller.replay.drivers import LivePolicy, PlansNow
from wattmesh.controller.replay.world import run as replayed
from wattmesh.policies.decision import Action, Decision
from wattmesh.policies.rules import follow

LATE = NOW + timedelta(hours=16)
"""Six hours more than A takes for the rest; B takes 16.7 h."""


def wants(point: str, **changes: Any) -> Decision:
    """What is decided about a run at A whose plan wants it elsewhere; nothing was measured there."""
    facts: dict[str, Any] = {
        "plan": plan(point, "A", each_h=8.0),
        "capabilities": ABLE,
        "deadline": LATE,
        "speeds": (),
    }
    return decided(observation(run(**facts | changes), cycle_s=5.0))


@pytest.mark.parametrize("point", ["", "B"])
def test_a_run_stays_at_its_fastest_point_until_that_is_measured(point: str) -> None:
    """A boundary interval of ten steps is enough; the sentence says what it is for."""
    held = wants(point)
    assert (held.action, held.kind) == (Action.HOLD, "measuring")
    assert "25 % of the speed here is in reserve" in held.reason
    assert f"wants {point or 'sleep'} now" in held.reason
    assert wants(point, speeds=(measured(A, steps=4),)).kind == "measuring"
    assert wants(point, speeds=(measured(A, steps=10),)).kind == "plan"


def test_nobody_waits_for_a_way_back_that_is_not_needed() -> None:
    """B alone is in time, so the run goes there at once."""
    assert wants("B", deadline=NOW + timedelta(hours=24)).kind == "plan"


def test_nobody_waits_where_measuring_takes_longer_than_it_frees() -> None:
    """Boundaries are an hour apart: two intervals are more than 17 % of the rest."""
    assert wants("", boundary_every=60).kind == "measuring"
    assert wants("", boundary_every=3600).kind != "measuring"


def test_nobody_waits_for_time_that_the_plan_leaves_free() -> None:
    """It ends eight hours before the deadline, and the reserve is an hour and a half."""
    assert wants("", deadline=NOW + timedelta(hours=24)).kind == "plan"
    assert wants("", deadline=NOW + timedelta(hours=17)).kind == "measuring"


def test_only_the_fastest_point_is_measured_so() -> None:
    """At B nothing is waited for: it is not the way back."""
    found = wants("", current=B, layout=B.layout, deadline=NOW + timedelta(hours=17))
    assert found.kind == "plan"


def test_a_hold_for_another_reason_keeps_its_reason() -> None:
    """Who may not sleep at all is told that, not that something is measured."""
    assert wants("", capabilities=("in_place", "parking")).kind == "no_sleep"
    assert wants("", since_switch_s=60.0).kind == "dwell"


def test_a_run_that_measured_sleeps_through_what_its_sabotaged_twin_is_called_back_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dirty hours, then clean ones; the twin leaves at once, and the guard counts on 75 %."""
    on = grid([400.0] * 8 + [100.0] * 40)
    setting = scene(on, hours=24, slack=1.5, catalogue=job())

    def grams() -> float:
        state = replayed(setting, LivePolicy(means(perfect(on)), PlansNow()), cycle_s=CYCLE_S)
        assert state.at_s <= 36 * 3600.0
        return state.carbon_g

    ours = grams()
    monkeypatch.setattr(follow, "measure_first", lambda *_: None)
    assert ours < 0.95 * grams()
