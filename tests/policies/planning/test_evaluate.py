"""The judge of plans: what a path comes to, by hand, and which rules it breaks."""

from dataclasses import replace
from typing import Any

import pytest

from wattmesh.errors import InputInvalid
from wattmesh.policies.planner.evaluate import evaluate, kept_from_s, low_windows
from wattmesh.policies.planner.problem import Option, OptionTransition, PlanningProblem, Sla, merged
from wattmesh.telemetry.readings import J_PER_KWH

FAST = Option(
    name="fast", layout="X", tokens_per_s=10.0, power_w=1000.0, gpus=4, embodied_g_per_s=0.004
)
LOW = Option(
    name="low", layout="X", tokens_per_s=8.0, power_w=600.0, gpus=4, embodied_g_per_s=0.004
)
SMALL = Option(
    name="small", layout="Y", tokens_per_s=4.0, power_w=300.0, gpus=2, embodied_g_per_s=0.002
)
SWITCH = OptionTransition(seconds=150.0, energy_j=30_000.0)
CLOCK = OptionTransition(seconds=0.0, energy_j=500.0)

# Four slots of 100 s; watt-seconds are counted at 1, 2, 3 and 4 g per J_PER_KWH joules.
PROBLEM = PlanningProblem(
    tokens=2000.0,
    seconds=(100.0,) * 4,
    g_per_kwh=(1.0, 2.0, 3.0, 4.0),
    options=(FAST, LOW, SMALL),
    start=0,
    transitions=((None, CLOCK, SWITCH), (CLOCK, None, SWITCH), (SWITCH, SWITCH, None)),
)


def test_the_run_ends_the_moment_its_work_is_done() -> None:
    """2000 tokens at 10 a second take two slots; nothing is charged after."""
    found = evaluate(PROBLEM, (0, 0, 0, 0))
    assert found.ends_s == pytest.approx(200.0)
    assert found.operational_g == pytest.approx((1 + 2) * 100_000 / J_PER_KWH)
    assert found.embodied_g == pytest.approx(0.8)
    assert found.grams == found.operational_g + found.embodied_g
    assert found.legal


def test_a_switch_longer_than_its_slot_goes_on_in_the_next() -> None:
    """150 s without a token at 200 W, 50 s of them in the second slot; the rest at the target."""
    found = evaluate(PROBLEM, (2, 2, 2, 2))
    joules = (20_000, 10_000 + 50 * 300, 30_000, 30_000)
    grams = sum(j * g for j, g in zip(joules, PROBLEM.g_per_kwh, strict=True)) / J_PER_KWH
    assert found.operational_g == pytest.approx(grams)
    assert found.tokens == pytest.approx(250 * 4.0)
    assert found.embodied_g == pytest.approx(150 * 0.004 + 250 * 0.002)
    assert found.ends_s is None
    assert not found.legal
    assert (found.layout_switches, found.clock_changes) == (1, 0)


def test_a_clock_costs_its_joules_at_once() -> None:
    """No second is lost."""
    found = evaluate(PROBLEM, (1, 1, 1, 1))
    assert found.energy_j == pytest.approx(500 + 250 * 600)
    assert (found.layout_switches, found.clock_changes) == (0, 1)


def test_each_broken_rule_is_named() -> None:
    """Caps, missing ways, dwell and the time before the first layout change."""
    capped = replace(PROBLEM, power_cap_w=(700.0, 1e6, 1e6, 1e6))
    assert evaluate(capped, (0, 1, 1, 1)).broken == ("fast is not available in slot 0",)
    assert evaluate(PROBLEM, (2, 0, 0, 0)).broken == (
        "small to fast in slot 1: too soon after the change before",
    )
    early = replace(PROBLEM, dwell_left_s=150.0)
    assert evaluate(early, (0, 2, 2, 2)).broken == (
        "fast to small in slot 1: the layout may not change yet",
    )
    assert evaluate(early, (1, 1, 2, 2)).broken == ()
    nowhere = replace(PROBLEM, transitions=((None,) * 3,) * 3)
    assert evaluate(nowhere, (1, 1, 1, 1)).broken == ("there is no way from fast to low in slot 0",)


def test_a_layout_that_is_not_available_may_be_left_before_its_time() -> None:
    """An operator's cap goes before the dwell."""
    driven = replace(PROBLEM, dwell_left_s=350.0, power_cap_w=(1e6, 500.0, 500.0, 500.0))
    assert evaluate(driven, (2, 2, 2, 2)).broken == ()
    kept = replace(driven, power_cap_w=())
    assert evaluate(kept, (2, 2, 2, 2)).broken != ()


def test_a_window_below_the_service_level_is_found_wherever_it_lies() -> None:
    """The worst 200 s begin in the middle of a slot, with the switch."""
    path = (0, 2, 2, 2)
    slow = replace(PROBLEM, tokens=5000.0, sla=Sla(window_s=200.0, tokens_per_s=2.0))
    tokens, start = low_windows(slow, path)[0]
    assert [tokens, start] == pytest.approx([200.0, 100.0])
    assert "1 tokens/s, below 2" in evaluate(slow, path).broken[0]
    assert evaluate(replace(slow, sla=Sla(window_s=200.0, tokens_per_s=1.0)), path).broken == ()
    assert low_windows(replace(slow, sla=None), path) == []


def test_a_window_that_began_before_now_counts_what_was_trained_in_it() -> None:
    """300 tokens in the 100 s before; then nothing for 150 s. From 50 s on there are 400 in 200."""
    path = (2, 2, 2, 2)
    sla = Sla(window_s=200.0, tokens_per_s=2.0, before=((-100.0, -300.0),), from_s=-200.0)
    late = replace(PROBLEM, tokens=5000.0, sla=sla)
    tokens, start = low_windows(late, path)[0]
    assert [tokens, start] == pytest.approx([150.0, -50.0])
    assert kept_from_s(late, path) == pytest.approx(50.0)
    assert low_windows(replace(late, sla=replace(sla, from_s=50.0)), path) == []
    assert low_windows(replace(late, sla=replace(sla, from_s=49.0)), path) != []
    easy = replace(sla, tokens_per_s=0.7)
    assert kept_from_s(replace(late, sla=easy), path) == -200.0
    assert kept_from_s(replace(late, sla=replace(sla, tokens_per_s=9.0)), path) is None
    assert kept_from_s(PROBLEM, path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"window_s": 0.0},
        {"tokens_per_s": float("nan")},
        {"from_s": float("-inf")},
        {"before": ((-10.0, -5.0), (-20.0, -4.0))},
        {"before": ((-10.0, 5.0),)},
        {"before": ((float("nan"), -5.0),)},
    ],
)
def test_a_level_without_a_meaning_is_refused(changes: dict[str, Any]) -> None:
    """No window, no number, or a past that does not rise to now."""
    with pytest.raises(InputInvalid, match="service level"):
        Sla(**{"window_s": 100.0, "tokens_per_s": 1.0} | changes)


def test_a_window_that_is_over_is_nobodys_to_keep() -> None:
    """After an hour without a token windows count that can still have 100: from 40 s ago on."""
    sla = Sla(window_s=50.0, tokens_per_s=2.0, before=((-3600.0, 0.0),), from_s=-3600.0)
    late = replace(PROBLEM, sla=sla)
    assert low_windows(late, (0, 0)) == [(0.0, -50.0)]
    assert kept_from_s(late, (0, 0)) == pytest.approx(-40.0)


def test_a_cap_leaves_room_for_what_an_option_may_draw_at_most() -> None:
    """Not for what is charged: idle GPUs are in that, a margin is not."""
    thrifty = replace(FAST, bound_w=650.0)
    capped = replace(PROBLEM, options=(thrifty, LOW, SMALL), power_cap_w=(700.0,) * 4)
    assert evaluate(capped, (0, 0)).legal
    wary = replace(capped, options=(thrifty, replace(LOW, bound_w=701.0), SMALL))
    assert evaluate(wary, (1, 1, 1)).broken[0] == "low is not available in slot 0"


def test_slots_are_merged_with_their_means_and_their_tighter_caps() -> None:
    """The rough problem lasts as long, and the last slot takes what is left."""
    rough = merged(replace(PROBLEM, power_cap_w=(5.0, 4.0, 3.0, 6.0)), by=3)
    assert rough.seconds == (300.0, 100.0)
    assert rough.g_per_kwh == (2.0, 4.0)
    assert rough.power_cap_w == (3.0, 6.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 0.0}, "no work"),
        ({"seconds": (100.0, 100.0, 100.0, 0.0)}, "no length"),
        ({"g_per_kwh": (1.0,)}, "values per slot"),
        ({"g_per_kwh": (1.0, 2.0, 3.0, float("nan"))}, "not a number"),
        ({"power_cap_w": (1.0, 2.0)}, "values per slot"),
        ({"start": 3}, "3 options"),
        ({"transitions": ((None,) * 3,)}, "not 3 x 3"),
        ({"options": (replace(FAST, power_w=-1.0), LOW, SMALL)}, "option fast"),
        (
            {"transitions": ((None, OptionTransition(seconds=-1.0, energy_j=0.0), None),) * 3},
            "a transition takes",
        ),
    ],
)
def test_a_problem_without_meaning_is_refused(changes: dict[str, object], words: str) -> None:
    """Each mistake is named."""
    with pytest.raises(InputInvalid, match=words):
        replace(PROBLEM, **changes)  # type: ignore[arg-type]
