"""The hull keeps what is worth running at some intensity, and says of the rest why not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.observations import PAIR, A, B
from tests.builders.points import catalogue, point
from wattmesh.policies.hull import Vertex, break_even_g_per_kwh, lower_hull
from wattmesh.reconfig.catalogue import Release

SPEEDS = st.floats(1.0, 1e6)
WATTS = st.floats(1.0, 1e6)


def test_unused_gpus_are_charged_as_the_release_says() -> None:
    """Parked and held GPUs draw their idle power, released ones nothing."""
    parked = lower_hull(PAIR, PAIR.points, 4)
    released = catalogue(A, B, release=Release.RELEASED)
    assert [v.power_w for v in parked.vertices] == [940.0, 1600.0]
    assert [v.power_w for v in lower_hull(released, released.points, 4).vertices] == [800.0, 1600.0]


def test_marginal_joules_and_ratios_follow_the_definition() -> None:
    """Each vertex pays for the tokens it trains more than the one before."""
    slow, fast = lower_hull(PAIR, PAIR.points, 4).vertices
    assert slow.marginal_j_per_token == pytest.approx(940.0 / 600.0)
    assert fast.marginal_j_per_token == pytest.approx(660.0 / 400.0)
    assert fast.ratio == pytest.approx((660.0 / 400.0) / (940.0 / 600.0))
    assert slow.ratio is None


def test_a_slower_point_that_draws_more_is_dominated_and_told_by_whom() -> None:
    """The sentence names the better point and both powers."""
    worse = point("C", 4, 900.0, 1700.0)
    hull = lower_hull(PAIR, [A, B, worse], 4)
    assert [v.point.id for v in hull.vertices] == ["B", "A"]
    (only,) = hull.dominated
    assert only.reason == (
        "C draws 1.7 kW for 900 tokens/s, A gives 1 k tokens/s for 1.6 kW, so C is never worth "
        "running."
    )


def test_a_point_above_a_mixture_is_dominated() -> None:
    """Sharing time between two vertices beats a point that lies above their line."""
    middle = point("M", 3, 800.0, 1300.0)
    (only,) = lower_hull(catalogue(A, B, middle), [A, B, middle], 4).dominated
    assert "sharing time between B and A gives the same for 1.27 kW" in only.reason


def test_when_idle_gpus_cost_as_much_as_busy_ones_only_the_fastest_is_useful() -> None:
    """A smaller layout that saves no watts is never useful."""
    held = catalogue(A, B, release=Release.HELD, idle_power_w_per_gpu=400.0)
    hull = lower_hull(held, held.points, 4)
    assert [v.point.id for v in hull.vertices] == ["A"]


@given(st.lists(st.tuples(SPEEDS, WATTS), min_size=1, max_size=8))
def test_no_point_is_better_than_the_hull(pairs: list[tuple[float, float]]) -> None:
    """At every price some vertex is at least as good as every point, and the hull is convex."""
    points = [point(f"p{n}", 1, speed, watts) for n, (speed, watts) in enumerate(pairs)]
    known = catalogue(*points)
    hull = lower_hull(known, points, 1)
    slopes = [vertex.marginal_j_per_token for vertex in hull.vertices[1:]]
    assert slopes == sorted(slopes)
    assert {v.point.id for v in hull.vertices} | {d.point.id for d in hull.dominated} == {
        each.id for each in points
    }
    for price in (0.0, 0.1, 1.0, 10.0, *slopes):
        best = min(v.power_w - price * v.tokens_per_s for v in hull.vertices)
        every = min(each.power_w - price * each.tokens_per_s for each in points)
        assert best <= every + 1e-6 * (abs(every) + price * 1e6)


@given(st.permutations([(1.0, 1.0), (2.0, 3.0), (2.0, 3.0), (3.0, 9.0), (0.5, 2.0)]))
def test_the_hull_does_not_depend_on_the_order_of_the_catalogue(
    pairs: list[tuple[float, float]],
) -> None:
    """Deterministic: the same points give the same vertices."""
    points = [point(f"p{n}", 1, speed, watts) for n, (speed, watts) in enumerate(pairs)]
    hull = lower_hull(catalogue(*points), points, 1)
    assert [(v.tokens_per_s, v.power_w) for v in hull.vertices] == [(1, 1), (2, 3), (3, 9)]


def test_below_the_break_even_intensity_slowing_down_emits_more_in_all() -> None:
    """At c the joules saved weigh as much as the longer use of the hardware; on either side not."""
    slow, fast = lower_hull(PAIR, PAIR.points, 4).vertices
    making_g_per_s = 0.01
    found = break_even_g_per_kwh(
        slow, fast, slow_embodied_g_per_s=making_g_per_s, fast_embodied_g_per_s=making_g_per_s
    )
    assert found is not None

    def g_per_token(vertex: Vertex, g_per_kwh: float) -> float:
        return (g_per_kwh / 3.6e6 * vertex.power_w + making_g_per_s) / vertex.tokens_per_s

    assert g_per_token(slow, found) == pytest.approx(g_per_token(fast, found))
    assert g_per_token(slow, 0.9 * found) > g_per_token(fast, 0.9 * found)
    assert g_per_token(slow, 1.1 * found) < g_per_token(fast, 1.1 * found)


def test_there_is_no_break_even_where_slowing_down_saves_no_joules() -> None:
    """The slower point is then always worse; without embodied carbon the thriftier never is."""
    slow, fast = lower_hull(PAIR, PAIR.points, 4).vertices
    nothing = {"slow_embodied_g_per_s": 0.0, "fast_embodied_g_per_s": 0.0}
    assert break_even_g_per_kwh(slow, fast, **nothing) == 0.0
    assert break_even_g_per_kwh(fast, slow, **nothing) is None
