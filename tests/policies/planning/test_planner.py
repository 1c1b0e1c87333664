"""What plans are like: cheaper than any single point, never for nothing, within every rule."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.observations import slots
from tests.builders.points import catalogue, point
from tests.policies.planning.planner_cases import HOUR, LAYOUT, case, options, wave, ways
from wattmesh.policies.hull import lower_hull
from wattmesh.policies.planner.evaluate import evaluate, low_windows
from wattmesh.policies.planner.problem import (
    NoPlan,
    Option,
    OptionTransition,
    Plan,
    PlanningProblem,
    Sla,
)
from wattmesh.policies.planner.solver import solve
from wattmesh.policies.planner.steady import steady
from wattmesh.policies.rules.price import fill
from wattmesh.quantities import count, grams
from wattmesh.reconfig.catalogue import Release

FREE = OptionTransition(seconds=0.0, energy_j=0.0)


def planned(problem: PlanningProblem) -> Plan:
    """The plan of a problem that has one; always judged legal."""
    found = solve(problem)
    assert isinstance(found, Plan), found
    assert found.evaluation == evaluate(problem, found.path)
    assert found.evaluation.legal
    return found


def names(problem: PlanningProblem, found: Plan) -> set[str]:
    """The options a plan uses."""
    return {problem.options[each].name for each in found.path}


def static_grams(problem: PlanningProblem) -> list[float]:
    """Grams of going to one option at once and staying, for those that finish."""
    paths = [(each,) * len(problem.seconds) for each in range(len(problem.options))]
    found = [evaluate(problem, path) for path in paths]
    return [each.grams for each in found if each.legal]


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("slack", [1.1, 1.25, 2.0])
def test_linear_program_bound_plan_and_static_points_are_in_order(
    slack: float, *, held: bool
) -> None:
    """Without switch costs <= bound <= plan <= every single point."""
    problem = case(72, slack, held=held, pause=False)
    found = planned(problem)
    points = [
        point(each.name, each.gpus, each.tokens_per_s, each.power_w) for each in problem.options
    ]
    hull = lower_hull(catalogue(*points, release=Release.RELEASED), points, 256)
    free = fill(hull, slots(problem.g_per_kwh), problem.tokens)
    assert free is not None
    assert free.bound_g <= found.bound_g * (1 + 1e-5)
    assert found.bound_g <= found.evaluation.grams <= min(static_grams(problem)) * (1 + 1e-9)
    assert found.gap <= 0.01


@pytest.mark.parametrize("held", [False, True])
def test_more_time_never_costs_more(*, held: bool) -> None:
    """The bound falls, and so do the grams of the plan but for its gap."""
    found = [planned(case(count, count / 40, held=held)) for count in (42, 48, 60, 80)]
    for earlier, later in pairwise(found):
        assert later.bound_g <= earlier.bound_g * (1 + 1e-5)
        before_g = earlier.evaluation.grams
        assert later.evaluation.grams <= before_g * (1 + later.gap + 1e-9)


@settings(max_examples=15)
@given(st.floats(0.2, 5.0))
def test_a_grid_that_is_dirtier_by_a_factor_changes_nothing(factor: float) -> None:
    """Without embodied carbon only the shape of the grid matters."""
    problem = case(36, 1.5)
    scaled = replace(problem, g_per_kwh=tuple(factor * each for each in problem.g_per_kwh))
    one, other = planned(problem), planned(scaled)
    assert other.bound_g == pytest.approx(factor * one.bound_g, rel=1e-4)
    assert other.evaluation.grams == pytest.approx(factor * one.evaluation.grams, rel=5e-3)


@pytest.mark.parametrize("slack", [1.02, 1.3, 2.0])
def test_on_a_grid_that_never_changes_nothing_is_done_for_its_course(slack: float) -> None:
    """No pause, and no more changes than it takes to be at two points one after the other."""
    problem = case(48, slack, grid=(200.0,) * 48, held=True)
    found = planned(problem)
    assert "paused" not in names(problem, found)
    assert found.evaluation.layout_switches <= 1
    assert found.evaluation.layout_switches + found.evaluation.clock_changes <= 2


def test_a_point_above_the_hull_is_never_run_when_switching_is_free() -> None:
    """Sharing time between two others beats it at every intensity, and the plan knows."""
    above = Option(name="above", layout="L9", tokens_per_s=160e3, power_w=150e3, gpus=200)
    kinds = (*options(), above)
    problem = replace(
        case(48, 1.5), options=kinds, transitions=ways(kinds, FREE, FREE), g_per_kwh=wave(48)
    )
    assert "above" not in names(problem, planned(problem))
    below = replace(above, power_w=100e3)
    kinds = (*options(), below)
    useful = replace(problem, options=kinds)
    assert "above" in names(useful, planned(useful))


def test_gpus_that_are_held_make_a_pause_worthless_and_released_ones_do_not() -> None:
    """Idle watts eat what waiting for a cleaner hour saves."""
    held, released = (case(72, 1.5, held=each) for each in (True, False))
    assert "paused" not in names(held, planned(held))
    assert "paused" in names(released, planned(released))


def test_held_gpus_end_early_rather_than_idle() -> None:
    """The slot of completion is searched: staying until the deadline would cost idle power."""
    problem = case(60, 2.0, held=True)
    found = planned(problem)
    assert found.evaluation.ends_s is not None
    assert found.evaluation.ends_s < 50 * HOUR
    assert found.gap <= 0.005


def test_dwell_is_kept_between_layouts_and_from_the_start() -> None:
    """No two transitions are closer than the dwell, and none comes before the first may."""
    free, bound = case(72, 1.5), case(72, 1.5, dwell_s=6 * HOUR)
    bound = replace(bound, dwell_left_s=5 * HOUR)
    layouts = [bound.options[each].layout for each in planned(bound).path]
    changes = [n for n in range(1, len(layouts)) if layouts[n] != layouts[n - 1]]
    assert changes
    assert changes[0] >= 5
    assert all(later - earlier >= 6 for earlier, later in pairwise(changes))
    assert planned(free).evaluation.grams < planned(bound).evaluation.grams
    # Sabotaged twin: the plan made without the dwell breaks it.
    assert evaluate(bound, planned(free).path).broken


def test_caps_are_kept_and_cost_something() -> None:
    """While only 100 kW are there, for some hours or from then on, nothing larger runs."""
    problem = case(48, 1.5)
    low = replace(problem, power_cap_w=(300e3,) * 10 + (100e3,) * 20 + (300e3,) * 18)
    capped = replace(problem, power_cap_w=(300e3,) * 20 + (100e3,) * 28)
    free = planned(problem)
    for tighter in (low, capped):
        found = planned(tighter)
        assert all(tighter.available(slot, each) for slot, each in enumerate(found.path))
        assert found.bound_g >= free.bound_g * (1 - 1e-5)
        assert evaluate(tighter, free.path).broken


def test_the_service_level_is_kept_and_costs_something() -> None:
    """At least half the speed of A over every 12 h; the plan without it pauses for longer."""
    problem = case(72, 2.0)
    level = replace(problem, sla=Sla(window_s=12 * HOUR, tokens_per_s=100_000.0))
    free, found = planned(problem), planned(level)
    assert low_windows(level, free.path)
    assert not low_windows(level, found.path)
    assert found.bound_g >= free.bound_g
    assert found.evaluation.grams > free.evaluation.grams


@pytest.mark.parametrize(
    ("count", "window_h", "share", "most"), [(120, 12, 0.4, 0.015), (240, 24, 0.66, 0.02)]
)
def test_a_level_that_binds_is_kept_for_little(
    count: int, window_h: int, share: float, most: float
) -> None:
    """Close to what no path can be below, and far from the best single point that keeps it."""
    problem = case(count, 1.5)
    least = share * max(each.tokens_per_s for each in problem.options)
    level = replace(problem, sla=Sla(window_s=window_h * HOUR, tokens_per_s=least))
    free, found = planned(problem), planned(level)
    assert low_windows(level, free.path)
    assert found.evaluation.grams <= free.bound_g * (1 + most)
    held = (evaluate(level, (n,) * count) for n in range(len(level.options)))
    single_g = min(each.grams for each in held if each.legal)
    assert found.evaluation.grams < 0.95 * single_g


def test_a_level_counts_what_was_trained_before_the_first_slot() -> None:
    """After twelve hours asleep the first slots are at speed; after twelve at A they need not."""
    problem, least = case(72, 2.0), 100_000.0
    rate = problem.options[0].tokens_per_s

    def first_tokens(trained: float) -> float:
        sla = Sla(
            window_s=24 * HOUR,
            tokens_per_s=least,
            before=((-12 * HOUR, -trained * 12 * HOUR),),
            from_s=-12 * HOUR,
        )
        found = planned(replace(problem, sla=sla))
        assert not low_windows(replace(problem, sla=sla), found.path)
        return evaluate(problem, found.path[:12]).tokens

    assert first_tokens(0.0) >= 24 * HOUR * least * (1 - 1e-6)
    assert first_tokens(rate) < 24 * HOUR * least


def test_a_plan_before_is_not_kept_to_where_it_alone_breaks_the_budget() -> None:
    """Else it is, for it costs hardly more."""
    problem = case(48, 1.5)
    best = planned(problem)
    other = next(n for n in range(len(problem.options)) if n != best.path[0])
    before = (other, *best.path[1:], *(best.path[-1],) * 8)
    worse = evaluate(problem, before)
    assert worse.legal
    lenient = {"gain_factor": 1e9, "least_gain": 1e9}
    assert steady(problem, best, before, **lenient).path[0] == other
    between = (best.evaluation.operational_g + worse.operational_g) / 2
    tight = replace(problem, budget_g=between)
    assert steady(tight, planned(tight), before, **lenient).path == best.path
    hopeless = replace(problem, budget_g=0.5 * best.bound_g)
    kept = steady(hopeless, planned(hopeless), before, **lenient)
    assert kept.path[0] == other
    assert kept.budget != ""


def test_a_budget_counts_operational_grams_alone() -> None:
    """Those of the hardware's making are in the plan's grams, and on another line."""
    problem = case(48, 1.5)
    made = tuple(replace(each, embodied_g_per_s=0.5) for each in problem.options)
    found = planned(replace(problem, options=made))
    assert found.evaluation.embodied_g > 0
    enough = found.evaluation.operational_g * 1.0001
    assert enough < found.evaluation.grams
    assert planned(replace(problem, options=made, budget_g=enough)).budget == ""


def test_a_service_level_that_nothing_reaches_is_said() -> None:
    """More than the fastest point gives: no plan, and why."""
    found = solve(replace(case(24, 1.5), sla=Sla(window_s=6 * HOUR, tokens_per_s=300e3)))
    assert isinstance(found, NoPlan)
    assert "300 k tokens/s" in found.reason


def test_work_that_does_not_fit_says_how_much_would() -> None:
    """One token in a hundred too many."""
    problem = case(24, 1.0)
    found = solve(replace(problem, tokens=problem.tokens * 1.01))
    assert isinstance(found, NoPlan)
    assert found.reason.startswith(f"at most {count(problem.tokens)} tokens can be trained")
    assert isinstance(solve(problem), Plan)


def test_a_budget_that_cannot_be_kept_names_the_least() -> None:
    """Below the bound the plan still comes, with the minimum in words; above the plan, silence."""
    problem = case(48, 1.5)
    free = planned(problem)
    short = planned(replace(problem, budget_g=0.5 * free.bound_g))
    assert short.path == free.path
    assert short.budget == (
        f"the budget of {grams(free.bound_g / 2)} cannot be kept: the rest of the work takes at "
        f"least {grams(free.bound_g)}"
    )
    assert planned(replace(problem, budget_g=2 * free.bound_g)).budget == ""
    between = (free.bound_g + free.evaluation.grams) / 2
    assert "is not kept" in planned(replace(problem, budget_g=between)).budget


def test_embodied_carbon_makes_slow_points_worse() -> None:
    """On a grid so clean that making the GPUs weighs more, the run hurries."""
    clean = case(48, 2.0, held=True, grid=(5.0,) * 48)
    kinds = options(held=True, embodied=10.0 / HOUR)
    kinds = tuple(replace(each, embodied_g_per_s=256 * 10.0 / HOUR) for each in kinds)
    weighed = replace(clean, options=kinds)
    slow, fast = planned(clean).evaluation.ends_s, planned(weighed).evaluation.ends_s
    assert slow is not None
    assert fast is not None
    assert fast < slow


def test_a_switch_longer_than_a_slot_is_planned_right() -> None:
    """Half an hour of switching on a grid of five minutes: the judge agrees with the recursion."""
    slow = OptionTransition(seconds=1800.0, energy_j=6 * LAYOUT.energy_j)
    problem = case(144, 1.5, seconds=300.0, grid=wave(24) * 6)
    problem = replace(problem, transitions=ways(problem.options, slow))
    assert planned(problem).gap <= 0.02


def test_many_slots_are_searched_roughly_first_and_a_known_price_helps() -> None:
    """The same grams whether the search starts from nothing or from the price before."""
    problem = case(2400, 1.5, seconds=300.0)
    found = planned(problem)
    assert found.gap <= 2e-3
    again = solve(problem, near_mu=found.mu_g_per_token * 1.1, also=[found.path])
    assert isinstance(again, Plan)
    assert again.bound_g == pytest.approx(found.bound_g, rel=1e-5)
    assert again.evaluation.grams <= found.evaluation.grams


@pytest.mark.parametrize("wrong", [1e-3, 1e3])
def test_a_price_that_is_far_off_only_costs_time(wrong: float) -> None:
    """The search leaves a grid whose end is best."""
    problem = case(24, 1.5)
    found = planned(problem)
    again = solve(problem, near_mu=found.mu_g_per_token * wrong)
    assert isinstance(again, Plan)
    assert again.bound_g == pytest.approx(found.bound_g, rel=1e-3)


def test_a_grid_that_emits_nothing_for_a_while_or_at_all_is_planned() -> None:
    """Marginal signals are 0 while plants are curtailed: the work goes there; all 0 costs 0."""
    problem = case(36, 2.0, grid=(300.0,) * 12 + (0.0,) * 20 + (300.0,) * 4)
    found = planned(problem)
    assert found.evaluation.grams < 0.1 * planned(case(36, 2.0, grid=(300.0,) * 36)).bound_g
    nothing = planned(case(24, 1.5, grid=(0.0,) * 24))
    assert (nothing.evaluation.grams, nothing.bound_g, nothing.gap) == (0.0, 0.0, 0.0)
