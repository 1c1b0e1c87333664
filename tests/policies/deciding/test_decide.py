"""One decision per live run, by the first rule that has something to say, in one sentence."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.builders.observations import NOW, PAIR, A, B, measured, observation, run, slots
from tests.builders.points import catalogue, point
from wattmesh.policies.decision import (
    Action,
    CarbonView,
    Decision,
    Mode,
    Observation,
    PolicySettings,
    SwitchView,
)
from wattmesh.policies.rules.decide import decide
from wattmesh.reconfig.catalogue import Equivalence, Evidence
from wattmesh.reconfig.layout import Layout

STALE = CarbonView(
    signal="neso", slots=(), age_s=7200.0, trouble="neso was last heard 7200 s ago (HTTP 503)."
)
LAYOUT_C = point("C", 4, 700.0, 1590.0, layout=Layout(dp_shard=2, tp=2), evidence=Evidence.MEASURED)


def one(seen: Observation | None = None, **changes: Any) -> Decision:
    """The decision about a single run."""
    (decision,) = decide(seen or observation(run(**changes)))
    return decision


def test_a_dirty_morning_moves_the_run_to_the_small_layout() -> None:
    """The reference case: the numbers that speak for it are in the sentence and in the fields."""
    decision = one()
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "carbon", "B")
    assert decision.reason == (
        "switching from A (dp4 on 4 GPUs) to B (dp2 on 2 GPUs): the grid at 300 g/kWh is above mu "
        "= 100 g/kWh; saves 926 g by 21:00 UTC, the switch costs 1.67 g, deadline slack 3.8 h to "
        "at least 3.6 h."
    )
    assert decision.predicted_g == pytest.approx(926, rel=0.01)
    assert decision.switch_cost_g is not None
    assert decision.slack_s is not None
    assert decision.price_mu is not None
    assert 0 < (decision.plan_bound_g or 0) < 10 * 1.6 * 300


def test_a_run_at_its_target_says_when_the_plan_changes() -> None:
    """What people ask next is when."""
    grid = slots([300.0] * 6 + [90.0] + [100.0] * 7)
    decision = one(observation(run(current=B, layout=B.layout), grid=grid))
    assert (decision.action, decision.kind) == (Action.HOLD, "at_target")
    assert decision.reason == (
        "staying at B (dp2 on 2 GPUs): the grid is at 300 g/kWh and falls below mu = 100 g/kWh at "
        "20:00 UTC."
    )
    settled = one(observation(run(current=B, layout=B.layout), grid=slots([300.0] * 14)))
    assert "until the work is done, by " in settled.reason


@pytest.mark.parametrize("changes", [{"live": False}, {"tokens": 37_000_000}])
def test_runs_that_are_gone_or_done_get_no_decision(changes: dict[str, Any]) -> None:
    """There is nothing to decide."""
    assert decide(observation(run(**changes))) == ()


def test_frozen_runs_are_left_alone_and_say_who_ends_it() -> None:
    """Frozen stands above everything, orders and deadlines included."""
    decision = one(frozen="maintenance", ordered_point="B", deadline=NOW)
    assert (decision.action, decision.kind) == (Action.HOLD, "frozen")
    assert "it is frozen (maintenance) and trains on unswitched" in decision.reason
    assert "`wattmesh thaw llama`" in decision.reason
    everything = one(observation(run(), frozen="storage upgrade"))
    assert everything.kind == "frozen"
    assert "all runs are frozen (storage upgrade)" in everything.reason


def test_two_failed_switches_freeze_the_run_and_call_a_human() -> None:
    """The sentence names the command that undoes it."""
    decision = one(failed_switches=2)
    assert (decision.action, decision.kind) == (Action.FREEZE, "failed_switches")
    assert "2 switches failed in a row" in decision.reason
    assert "`wattmesh thaw llama`" in decision.reason
    assert one(failed_switches=1).action is Action.SWITCH


def test_an_open_switch_is_waited_for() -> None:
    """One switch at a time; its state and age are said."""
    decision = one(open_switch=SwitchView(target="B", state="loaded", age_s=42.0))
    assert decision.kind == "switching"
    assert "the switch to B was ordered 42 s ago and is loaded" in decision.reason


def test_an_operator_s_order_is_carried_out_even_when_the_signal_is_stale() -> None:
    """Orders need no carbon data, and no gain."""
    decision = one(observation(run(ordered_point="B"), carbon=STALE))
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "operator", "B")
    assert "an operator ordered it; deadline slack is at least 3.6 h after it" in decision.reason


def test_an_order_works_without_a_deadline_and_from_an_unknown_layout() -> None:
    """What is not known about the deadline cannot be broken."""
    assert one(ordered_point="B", deadline=None).kind == "operator"
    lost = one(ordered_point="A", current=None, layout=LAYOUT_C.layout)
    assert (lost.action, lost.target) == (Action.SWITCH, "A")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"catalogue": catalogue(A, B, LAYOUT_C), "ordered_point": "C"}, "measured, not validated"),
        ({"ordered_point": "Z"}, "no such point, only A, B"),
        ({"ordered_point": "B", "capabilities": ()}, "cannot park ranks"),
        ({"ordered_point": "B", "trouble": "no room"}, "can make no checkpoint (no room)"),
        (
            {"ordered_point": "B", "capabilities": ("in_place", "parking", "fixed_data_parallel")},
            "data parallel degree 2 and the run's loader, which cannot seek by global sample, "
            "keeps 4",
        ),
        ({"ordered_point": "B", "deadline": NOW + timedelta(hours=10.25)}, "late there"),
        (
            {
                "catalogue": catalogue(A, replace(B, equivalence=Equivalence.STATISTICAL)),
                "ordered_point": "B",
            },
            "the settings allow exact, numerical",
        ),
        (
            {"catalogue": catalogue(A, point("D", 8, 2000.0, 3000.0)), "ordered_point": "D"},
            "needs 8 GPUs and the run holds 4",
        ),
        (
            {"catalogue": catalogue(A, replace(B, clock_mhz=1305)), "ordered_point": "B"},
            "needs another GPU clock and no agent reports an actuator",
        ),
    ],
)
def test_orders_that_safety_or_the_deadline_outrank_are_refused(
    changes: dict[str, Any], why: str
) -> None:
    """Refused with the reason, in every cycle, until withdrawn."""
    decision = one(**changes)
    assert (decision.action, decision.kind) == (Action.HOLD, "order_refused")
    assert why in decision.reason


def test_a_statistical_point_is_switched_to_where_the_operator_allows_its_class() -> None:
    """By an order, and for the grid's sake alone; nowhere without `policy.equivalence`."""
    alike = run(catalogue=catalogue(A, replace(B, equivalence=Equivalence.STATISTICAL)))
    allowed = PolicySettings(
        dwell_s=1800.0,
        equivalence=(Equivalence.EXACT, Equivalence.NUMERICAL, Equivalence.STATISTICAL),
    )
    for each, kind in ((alike, "carbon"), (replace(alike, ordered_point="B"), "operator")):
        decision = one(observation(each, policy=allowed))
        assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, kind, "B")
        assert one(observation(each)).action is Action.HOLD


def test_an_order_to_go_faster_is_never_refused_for_the_deadline() -> None:
    """When the run is late already, faster is what is left."""
    decision = one(current=B, layout=B.layout, ordered_point="A", deadline=NOW + timedelta(hours=5))
    assert (decision.action, decision.kind) == (Action.SWITCH, "operator")
    assert "may still be missed" in decision.reason


def test_a_refused_order_does_not_stop_the_deadline_guard() -> None:
    """The guard outranks the wait for the operator."""
    decision = one(
        current=B, layout=B.layout, ordered_point="Z", deadline=NOW + timedelta(hours=10.25)
    )
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "deadline", "A")


def test_an_order_that_is_fulfilled_keeps_the_run_there() -> None:
    """Until it is withdrawn the policy does not move the run away again."""
    assert one(ordered_point="A").kind == "operator"


@pytest.mark.parametrize(
    ("changes", "kind", "advice"),
    [
        ({"catalogue": None}, "no_catalogue", "runs.llama.catalogue"),
        ({"catalogue": None, "capabilities": ("observed",)}, "observed", "`wattmesh.attach`"),
        ({"current": None, "layout": LAYOUT_C.layout}, "unknown_point", "wattmesh switch llama"),
        ({"tokens_total": 0}, "no_target", "tokens_total"),
        ({"deadline": None}, "no_deadline", "runs.llama.deadline"),
        (
            {"catalogue": catalogue(A, B, global_batch=0), "step": 0, "tokens": 0},
            "no_progress",
            "first step",
        ),
        ({"catalogue": catalogue(A)}, "no_choice", "no other point"),
        ({"capabilities": ()}, "no_choice", "cannot park ranks"),
        (
            {"catalogue": catalogue(A, point("C", 2, 400.0, 1590.0))},
            "no_choice",
            "never worth running",
        ),
    ],
)
def test_what_is_not_known_is_held_and_named(
    changes: dict[str, Any], kind: str, advice: str
) -> None:
    """Each hold says what a person can do about it."""
    decision = one(**changes)
    assert (decision.action, decision.kind) == (Action.HOLD, kind)
    assert advice in decision.reason


def test_a_stale_signal_is_held_with_its_age() -> None:
    """Nothing is done for carbon's sake on old news."""
    decision = one(observation(run(), carbon=STALE))
    assert (decision.action, decision.kind) == (Action.HOLD, "stale_signal")
    assert "last heard 2 h ago (neso was last heard 7200 s ago (HTTP 503))" in decision.reason
    assert "`wattmesh doctor`" in decision.reason


@pytest.mark.parametrize(
    "carbon",
    [
        CarbonView(signal="neso", slots=(), age_s=None),
        CarbonView(signal="neso", slots=slots([1.0], start=NOW + timedelta(1)), age_s=1.0),
        CarbonView(signal="neso", slots=slots([300.0, float("nan")]), age_s=1.0),
        CarbonView(signal="neso", slots=slots([300.0, -1.0]), age_s=1.0),
        CarbonView(signal="neso", slots=slots([0.0, 200.0]), age_s=1.0),
    ],
)
def test_a_signal_that_makes_no_sense_counts_as_stale(carbon: CarbonView) -> None:
    """Even when nobody noticed before."""
    assert one(observation(run(), carbon=carbon)).kind == "stale_signal"


def test_the_deadline_guard_works_without_carbon_data() -> None:
    """Law 7: losing the signal never costs a deadline."""
    late = run(current=B, layout=B.layout, deadline=NOW + timedelta(hours=10.25))
    decision = one(observation(late, carbon=STALE))
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "deadline", "A")
    assert "needs the fastest point from now on, which ends the run about" in decision.reason


def test_too_little_slack_from_the_start_is_said() -> None:
    """At the fastest point there is nothing to do but to tell."""
    decision = one(deadline=NOW + timedelta(hours=9))
    assert (decision.action, decision.kind) == (Action.HOLD, "deadline")
    assert "likely to be missed by 1.2 h; move runs.llama.deadline" in decision.reason


def test_power_that_is_not_seen_stops_acts_for_carbon_only() -> None:
    """Coverage below nine tenths holds; the deadline guard still works."""
    assert one(observation(run(coverage=(3, 4)))).kind == "coverage"
    assert one(observation(run(coverage=(4, 4)))).kind == "carbon"
    late = run(current=B, layout=B.layout, deadline=NOW + timedelta(hours=10.25), coverage=(0, 4))
    assert one(observation(late)).kind == "deadline"


def test_the_dwell_and_the_day_limit_are_the_operator_s() -> None:
    """Both name their numbers."""
    dwell = one(since_switch_s=600.0)
    assert dwell.kind == "dwell"
    assert "the last switch was 10 min ago and policy.dwell_s is 30 min" in dwell.reason
    limit = one(switches_today=6)
    assert limit.kind == "day_limit"
    assert (
        "it switched 6 times in the last 24 h and policy.max_switches_per_day is 6" in limit.reason
    )


def test_a_gain_below_its_cost_is_not_worth_a_switch() -> None:
    """The factor is the operator's."""
    dear = replace(PAIR.switch, layout_energy_j=6e6)
    decision = one(catalogue=catalogue(A, B, switch=dear))
    assert decision.kind == "gain_too_small"
    assert "it must save 2 times its cost" in decision.reason


def test_a_point_that_needs_fewer_joules_is_not_called_carbon_aware() -> None:
    """On a grid that never changes too, it is a better point and nothing more."""
    decision = one(deadline=NOW + timedelta(hours=30))
    assert (decision.action, decision.kind, decision.target) == (Action.SWITCH, "energy", "B")
    assert "fewer joules per token, on a grid that never changes too" in decision.reason


def test_the_guard_bars_a_point_that_could_not_be_left_in_time() -> None:
    """What would be better for the grid is said, and why it is not done."""
    decision = one(
        observation(
            run(
                deadline=NOW + timedelta(hours=10.72),
                catalogue=catalogue(A, B, switch=replace(PAIR.switch, layout_s=300.0)),
                boundary_every=600,
                speeds=(measured(A), measured(B)),
            ),
            grid=slots([400.0] + [300.0] * 400, seconds=120.0),
        )
    )
    assert (decision.action, decision.kind) == (Action.HOLD, "deadline_guard")
    assert "B is better at 400 g/kWh, but if switches fail on the way" in decision.reason


def test_near_the_end_nothing_is_changed_any_more() -> None:
    """With no time for a switch the run ends where it is."""
    decision = one(tokens=36_900_000, deadline=NOW + timedelta(seconds=110))
    assert decision.kind == "no_slack"
    assert "the rest takes 1.7 min and the deadline is in 1.8 min" in decision.reason


def test_every_mode_decides_the_same() -> None:
    """Acting is the cycle's business."""
    decisions = {decide(observation(run(), mode=mode)) for mode in Mode}
    assert len(decisions) == 1


def test_a_run_slower_than_its_catalogue_keeps_more_in_reserve() -> None:
    """What was measured over whole intervals counts against the deadline."""
    catalogue_speed = one().slack_s
    slow = one(tokens_per_s=900.0).slack_s
    assert catalogue_speed is not None
    assert slow is not None
    assert slow < catalogue_speed - 2000.0
    assert one(tokens_per_s=900.0, since_switch_s=10.0).slack_s == catalogue_speed
