"""A switch is worth what it saves until the plan changes, and pays for its seconds and joules."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders.observations import HOUR, NOW, PAIR, slots
from tests.policies.oracles import least_grams
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.rules.gate import (
    SpeedPower,
    SwitchEstimate,
    SwitchGain,
    better_g_per_s,
    flip_g_per_kwh,
    switch_cost_g,
    switch_gain,
)
from wattmesh.policies.rules.price import fill
from wattmesh.telemetry.readings import J_PER_KWH

FAST = SpeedPower(tokens_per_s=1000.0, power_w=1600.0)
SLOW = SpeedPower(tokens_per_s=600.0, power_w=940.0)
HULL = lower_hull(PAIR, PAIR.points, 4)
FREE = SwitchEstimate(seconds=0.0, energy_j=0.0)
MU = 174.0 * (660.0 / 400.0) / J_PER_KWH
"""The price at which the two places flip at 174 g/kWh."""


def test_two_places_are_worth_the_same_at_their_flip() -> None:
    """Below it the fast one is better, above it the slow one."""
    assert flip_g_per_kwh(MU, FAST, SLOW) == pytest.approx(174.0)
    assert better_g_per_s(174.0, MU, FAST, SLOW) == 0.0
    assert better_g_per_s(200.0, MU, FAST, SLOW) > 0 > better_g_per_s(150.0, MU, FAST, SLOW)


def test_a_place_that_is_faster_for_fewer_watts_has_no_flip() -> None:
    """It is better at every intensity."""
    better = SpeedPower(tokens_per_s=700.0, power_w=900.0)
    assert flip_g_per_kwh(MU, SLOW, better) is None
    assert better_g_per_s(500.0, MU, SLOW, better) > 0 < better_g_per_s(1.0, MU, SLOW, better)


def make(
    values: Sequence[float], work_h: float, *, switch: SwitchEstimate = FREE, keep_s: float = 0.0
) -> SwitchGain:
    """The offer to go from FAST to SLOW on a grid of hours, with so much work at FAST."""
    plan = fill(HULL, slots(values), work_h * HOUR * FAST.tokens_per_s)
    assert plan is not None
    return switch_gain(HULL, plan, FAST, SLOW, switch=switch, keep_s=keep_s)


def test_the_target_is_kept_until_it_is_no_longer_better() -> None:
    """Two dirty hours and clean ones after: the slow place is kept for two."""
    made = make([300.0, 300.0, 100.0, 100.0, 100.0], 4.2)
    assert made.until == NOW + timedelta(hours=2)


def test_a_short_spell_the_other_way_is_stayed_through_when_that_pays() -> None:
    """Going there and back again for an hour is not the plan."""
    made = make([300.0, 190.0, 300.0, 200.0, 100.0, 100.0], 5.0)
    assert made.until == NOW + timedelta(hours=3)


def test_the_saving_is_what_the_whole_schedule_emits_less() -> None:
    """Against static A the plan's own grams are saved, when A stays until the work is done."""
    grid = [300.0] * 7 + [100.0] * 7
    plan = fill(HULL, slots(grid), 10 * HOUR * FAST.tokens_per_s)
    assert plan is not None
    made = make(grid, 10.0)
    assert made.until == NOW + timedelta(hours=7)
    stayed_g = 7 * 1.6 * 300.0 + 3 * 1.6 * 100.0
    # After 7 h at A, the last 3 h of work have 7 h: all of it in the small layout.
    rest_g = 3 / 0.6 * 0.94 * 100.0
    assert made.saved_g == pytest.approx(7 * 1.6 * 300.0 + rest_g - plan.bound_g)
    assert made.saved_g == pytest.approx(stayed_g - plan.bound_g, rel=0.02)


def test_what_has_to_be_kept_for_long_must_be_good_for_long() -> None:
    """The dwell is charged to the switch that starts it."""
    grid = [300.0, 100.0, 100.0, 100.0, 100.0]
    assert make(grid, 4.5).saved_g > 0
    assert make(grid, 4.5, keep_s=5 * HOUR).saved_g <= 0


def test_the_time_until_a_switch_is_over_saves_nothing() -> None:
    """Neither the wait for the boundary nor the switch itself."""
    grid = [300.0] * 7 + [100.0] * 7
    late = SwitchEstimate(seconds=600.0, energy_j=0.0, wait_s=3000.0)
    assert make(grid, 10.0, switch=late).saved_g == pytest.approx(
        make(grid, 10.0).saved_g * 6 / 7, rel=0.02
    )


@given(
    st.lists(st.sampled_from([50.0, 100.0, 170.0, 300.0]), min_size=2, max_size=6),
    st.floats(0.55, 0.9),
)
def test_the_saving_is_that_of_a_solver_told_both_ways(values: list[float], share: float) -> None:
    """Stay or go until the offer ends, then the least grams of the rest, by an oracle."""
    tokens = share * len(values) * HOUR * FAST.tokens_per_s
    plan = fill(HULL, slots(values), tokens)
    assert plan is not None
    made = switch_gain(HULL, plan, FAST, SLOW, switch=FREE, keep_s=0.0)
    hours = (made.until - NOW).total_seconds() / HOUR
    assume(hours == int(hours) and tokens > hours * HOUR * FAST.tokens_per_s)
    ways = [way_g(values, int(hours), tokens, place) for place in (FAST, SLOW)]
    assume(None not in ways)
    stay_g, go_g = ways
    assert stay_g is not None
    assert go_g is not None
    assert made.saved_g == pytest.approx(stay_g - go_g, rel=1e-6, abs=1e-6)


def way_g(values: Sequence[float], hours: int, tokens: float, place: SpeedPower) -> float | None:
    """Grams of so many hours at one place and the best of the rest."""
    grams = sum(values[:hours]) * place.power_w / 1000.0
    left = tokens - hours * HOUR * place.tokens_per_s
    pairs = [(each.tokens_per_s, each.power_w) for each in (SLOW, FAST)]
    rest = least_grams(pairs, slots(values)[hours:], left)
    return None if rest is None else grams + rest


def test_going_faster_is_not_called_useless_because_time_is_short() -> None:
    """Where neither way fits the plan's reserve any more, the price says what is saved."""
    plan = fill(HULL, slots([100.0] * 4), 3.99 * HOUR * FAST.tokens_per_s)
    assert plan is not None
    late = SwitchEstimate(seconds=600.0, energy_j=0.0, wait_s=600.0)
    assert switch_gain(HULL, plan, SLOW, FAST, switch=late, keep_s=0.0).saved_g >= 0
    assert switch_gain(HULL, plan, FAST, SLOW, switch=late, keep_s=3 * HOUR).saved_g <= 0


def test_a_switch_costs_its_energy_and_the_tokens_not_trained() -> None:
    """Less what the current place would have drawn, never less than its own grams."""
    switch = SwitchEstimate(seconds=60.0, energy_j=30_000.0)
    energy_g = 100.0 * 30_000.0 / J_PER_KWH
    stay_g = 100.0 * 60.0 * 940.0 / J_PER_KWH
    assert switch_cost_g(100.0, MU, SLOW, switch) == pytest.approx(
        energy_g - stay_g + MU * 600.0 * 60.0
    )
    assert switch_cost_g(2000.0, MU, SLOW, switch) == pytest.approx(20 * energy_g)
