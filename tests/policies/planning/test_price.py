"""The fill is the exact optimum of the linear program; its path reaches it, at its price."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders.observations import HOUR, PAIR, slots
from tests.builders.points import catalogue, point
from tests.policies.oracles import least_grams, least_grams_whole
from tests.policies.planning.price_path import path
from wattmesh.policies.hull import Hull, lower_hull
from wattmesh.policies.rules.price import PriceSolution, fill, hindsight_bound_g
from wattmesh.policies.shared_grid import from_nothing
from wattmesh.telemetry.readings import J_PER_KWH

POINTS = st.lists(
    st.tuples(st.floats(10.0, 1000.0), st.floats(50.0, 2000.0)), min_size=1, max_size=5
)
GRID = st.lists(st.sampled_from([40.0, 80.0, 81.0, 200.0, 333.0, 700.0]), min_size=1, max_size=6)


def hull_of(pairs: list[tuple[float, float]]) -> Hull:
    """The hull of (speed, watts) pairs."""
    points = [point(f"p{n}", 1, speed, watts) for n, (speed, watts) in enumerate(pairs)]
    return lower_hull(catalogue(*points), points, 1)


def schedule(hull: Hull, plan: PriceSolution) -> tuple[float, float, int]:
    """Add up tokens and grams of a path, and count its shared slots."""
    tokens = grams = 0.0
    shared = 0
    for position, planned in enumerate(path(hull, plan)):
        if planned.level < 0:
            continue
        seconds = (planned.slot.end - planned.slot.start).total_seconds()
        below = _below(hull, planned.level, ending=position == plan.last)
        vertex = hull.vertices[planned.level]
        shared += planned.share < 1
        rest = 1.0 - planned.share
        tokens += seconds * (planned.share * vertex.tokens_per_s + rest * below[0])
        watts = planned.share * vertex.power_w + rest * below[1]
        grams += seconds * watts * planned.slot.g_per_kwh / J_PER_KWH
    return tokens, grams, shared


def _below(hull: Hull, level: int, *, ending: bool) -> tuple[float, float]:
    """Speed and watts of what shares a slot with `level`."""
    if ending and level == from_nothing(hull)[0]:
        return 0.0, 0.0
    if level == 0:
        return 0.0, 0.0
    return hull.vertices[level - 1].tokens_per_s, hull.vertices[level - 1].power_w


@given(POINTS, GRID, st.floats(0.02, 1.0))
def test_the_fill_is_the_optimum_of_the_linear_program(
    pairs: list[tuple[float, float]], values: list[float], share: float
) -> None:
    """Grams equal those of a solver that knows nothing of hulls, and the path reaches them."""
    hull, grid = hull_of(pairs), slots(values)
    tokens = share * len(values) * HOUR * max(speed for speed, _ in pairs)
    plan, oracle = fill(hull, grid, tokens), least_grams(pairs, grid, tokens)
    if plan is None or oracle is None:
        assert share > 1 - 1e-6
        return
    assert plan.bound_g == pytest.approx(oracle, rel=1e-6)
    trained, emitted, shared = schedule(hull, plan)
    assert trained == pytest.approx(tokens, rel=1e-9)
    assert emitted == pytest.approx(plan.bound_g, rel=1e-9)
    assert shared <= 1


@given(POINTS, GRID.filter(lambda values: len(values) <= 4), st.floats(0.05, 0.95))
def test_no_whole_assignment_beats_the_bound(
    pairs: list[tuple[float, float]], values: list[float], share: float
) -> None:
    """Exhaustive search over one point per slot never finds fewer grams."""
    grid = slots(values)
    tokens = share * len(values) * HOUR * max(speed for speed, _ in pairs)
    plan, tried = fill(hull_of(pairs), grid, tokens), least_grams_whole(pairs, grid, tokens)
    assume(tried is not None)
    assert plan is not None
    assert tried is not None
    assert plan.bound_g <= tried * (1 + 1e-9)


def test_a_bound_that_forgot_that_the_run_is_never_paused_would_be_caught() -> None:
    """The sabotaged twin: letting slots idle at no cost gives fewer grams than the oracle."""
    grid = slots([500.0, 40.0])
    pairs = [(600.0, 940.0), (1000.0, 1600.0)]
    tokens = 0.4 * 2 * HOUR * 1000.0
    honest = fill(hull_of(pairs), grid, tokens)
    pausing = fill(hull_of(pairs), grid[1:], tokens)
    assert honest is not None
    assert pausing is not None
    assert pausing.bound_g < honest.bound_g == pytest.approx(least_grams(pairs, grid, tokens))


def test_a_run_may_end_early_when_that_is_cheaper() -> None:
    """On a grid that gets dirty the fast point is right although there is time to be slow."""
    hull = lower_hull(PAIR, PAIR.points, 4)
    plan = fill(hull, slots([50.0] * 4 + [500.0] * 4), 4 * HOUR * 1000.0)
    assert plan is not None
    assert plan.last == 3
    assert plan.last_share == pytest.approx(1.0)
    assert [planned.level for planned in path(hull, plan)] == [1, 1, 1, 1]


def test_the_price_splits_dirty_hours_from_clean_ones() -> None:
    """Dirty first, clean later: slow first, fast later, one slot shared."""
    hull = lower_hull(PAIR, PAIR.points, 4)
    plan = fill(hull, slots([300.0] * 7 + [100.0] * 7), 10 * HOUR * 1000.0)
    assert plan is not None
    levels = [planned.level for planned in path(hull, plan)]
    assert levels[:7] == [0] * 7
    assert max(levels[7:]) == 1
    threshold = plan.mu_g_per_token / hull.vertices[1].marginal_j_per_token * J_PER_KWH
    assert 100.0 <= threshold <= 300.0


def test_work_that_does_not_fit_has_no_plan() -> None:
    """None, not a plan that is late; and nothing to plan when nothing is left."""
    hull = lower_hull(PAIR, PAIR.points, 4)
    assert fill(hull, slots([100.0]), 1.01 * HOUR * 1000.0) is None
    assert fill(hull, slots([100.0]), 0.0) is None
    assert fill(hull, (), 1.0) is None


def test_one_point_has_one_way() -> None:
    """With a single vertex the grams are those of running it until done."""
    hull = hull_of([(1000.0, 1600.0)])
    plan = fill(hull, slots([100.0, 200.0, 300.0]), 1.5 * HOUR * 1000.0)
    assert plan is not None
    assert plan.bound_g == pytest.approx(1.6 * 100.0 + 0.8 * 200.0)
    assert plan.last == 1
    assert plan.last_share == pytest.approx(0.5)
    running = plan.running()
    assert (running[-1].end - running[0].start).total_seconds() == pytest.approx(1.5 * HOUR)


def test_the_hindsight_bound_is_the_same_program_on_what_was_observed() -> None:
    """Reports divide by it; it is None where the work did not fit."""
    hull = lower_hull(PAIR, PAIR.points, 4)
    observed = slots([300.0] * 7 + [100.0] * 7)
    pairs = [(600.0, 940.0), (1000.0, 1600.0)]
    tokens = 10 * HOUR * 1000.0
    assert hindsight_bound_g(hull, observed, tokens) == pytest.approx(
        least_grams(pairs, observed, tokens), rel=1e-7
    )
    assert hindsight_bound_g(hull, observed[:3], tokens) is None


@given(GRID, st.floats(0.1, 0.95), st.sampled_from([2.0**-7, 0.5, 4.0, 1024.0]))
def test_scaling_every_intensity_scales_price_and_bound_and_changes_no_path(
    values: list[float], share: float, factor: float
) -> None:
    """Only the shape of the grid decides who runs when."""
    hull = lower_hull(PAIR, PAIR.points, 4)
    tokens = share * len(values) * HOUR * 1000.0
    plain = fill(hull, slots(values), tokens)
    scaled = fill(hull, slots([factor * value for value in values]), tokens)
    assert plain is not None
    assert scaled is not None
    assert scaled.mu_g_per_token == plain.mu_g_per_token * factor
    assert [(p.level, p.share) for p in path(hull, scaled)] == [
        (p.level, p.share) for p in path(hull, plain)
    ]
