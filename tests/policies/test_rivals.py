"""The rules of others do what their authors say, on cases small enough to reckon by hand."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.policies.rivals import RULES
from wattmesh.policies.rivals.carbon_scaler import carbon_scaler
from wattmesh.policies.rivals.dvfs_only import dvfs_only
from wattmesh.policies.rivals.energy_min import energy_min
from wattmesh.policies.rivals.equal_step import equal_step
from wattmesh.policies.rivals.fluid import hull
from wattmesh.policies.rivals.one_way_trading import one_way_trading, ratio
from wattmesh.policies.rivals.pause_threshold import pause_threshold
from wattmesh.policies.rivals.rival_inputs import SLEEP, IntensityAhead, RatedPoint, RivalInputs
from wattmesh.policies.rivals.static_efficient import static_efficient
from wattmesh.policies.rivals.static_fastest import static_fastest
from wattmesh.policies.rivals.wait_awhile import wait_awhile

HOUR = 3600.0


def rated(name: str, gpus: int, clock: int, speed: float, power_w: float) -> RatedPoint:
    """A point; the layout goes by its GPUs."""
    layout = f"{gpus} GPUs"
    return RatedPoint(
        id=name, layout=layout, gpus=gpus, clock_mhz=clock, tokens_per_s=speed, power_w=power_w
    )


A = rated("A", 4, 1980, 1000.0, 1600.0)
B = rated("B", 4, 1300, 850.0, 1150.0)
D = rated("D", 2, 1980, 500.0, 850.0)
E = rated("E", 2, 1300, 430.0, 540.0)
POINTS = (E, D, B, A)


def look(values: Sequence[float], work_h: float, **changes: object) -> RivalInputs:
    """Hours of a grid, and work that A does in `work_h`; at A, with everything still to do."""
    facts: dict[str, object] = {
        "ahead": tuple(IntensityAhead(seconds=HOUR, g_per_kwh=value) for value in values),
        "tokens_left": work_h * HOUR * A.tokens_per_s,
        "time_left_s": len(values) * HOUR,
        "tokens_total": work_h * HOUR * A.tokens_per_s,
        "time_total_s": len(values) * HOUR,
        "points": POINTS,
        "current": "A",
        "switch_s": 300.0,
        "switch_j": 300_000.0,
    }
    facts.update(changes)
    return RivalInputs(**facts)  # type: ignore[arg-type]


def test_static_fastest_is_always_the_fastest() -> None:
    """On any grid."""
    assert static_fastest(look([1, 1000], 1)) == "A"


@pytest.mark.parametrize(("hours", "chosen"), [(10, "A"), (12, "B"), (21, "B"), (24, "E")])
def test_static_efficient_is_the_thriftiest_that_alone_is_in_time(hours: int, chosen: str) -> None:
    """10 h at A are 11.8 h at B and 23.3 h at E."""
    assert static_efficient(look([100] * hours, 10)) == chosen


def test_static_efficient_never_changes_its_mind() -> None:
    """Though with half the work done and much time left another would do."""
    half = look([100] * 8, 5, tokens_total=10 * HOUR * 1000.0, time_total_s=12 * HOUR)
    assert static_efficient(half) == "B"


def test_clocks_alone_never_leave_the_layout() -> None:
    """However dirty it is."""
    assert dvfs_only(look([900, *[100] * 30], 10)) == "B"
    assert dvfs_only(look([100, *[900] * 11], 11)) == "A"


def test_the_energy_mix_is_blind_to_carbon() -> None:
    """Between the two points around the speed that is needed, the faster first."""
    for values in ([500, *[100] * 14], [100, *[500] * 14]):
        assert energy_min(look(values, 10)) == "B"
    assert energy_min(look([100] * 40, 10)) == "E"


def test_pausing_runs_in_the_cleanest_third_of_the_next_day() -> None:
    """30 % of ten hours are the three cleanest."""
    values = [50.0, 60, 70, 80, 90, 100, 110, 120, 130]
    assert [pause_threshold(look([x, *values], 3)) for x in (10, 65, 75)] == ["A", "A", SLEEP]


def test_waiting_takes_the_cleanest_hours_until_the_work_fits() -> None:
    """Three hours of work: now is the third cleanest, or the fourth."""
    assert wait_awhile(look([100, 50, 60, 200, 300], 3)) == "A"
    assert wait_awhile(look([100, 50, 60, 70, 300], 3)) == SLEEP


@given(values=st.lists(st.integers(1, 500), min_size=2, max_size=8), work=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_waiting_agrees_with_sorting_the_hours(values: list[int], work: int) -> None:
    """The slow way: order the hours, ties to the earlier."""
    order = sorted(range(len(values)), key=lambda hour: (values[hour], hour))
    chosen = wait_awhile(look([float(each) for each in values], work))
    assert (chosen == "A") is (0 in order[:work])


def test_scaling_gives_clean_hours_more_gpus() -> None:
    """Four in the cleanest, two in the next, none in a dirty one."""
    assert carbon_scaler(look([100, 110, 400], 1.5)) == "A"
    assert carbon_scaler(look([110, 100, 400], 1.2)) == "D"
    assert carbon_scaler(look([400, 100, 110], 1.2)) == SLEEP


@given(values=st.lists(st.integers(50, 500), min_size=1, max_size=4), work=st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_scaling_is_as_good_as_trying_all_schedules(values: list[int], work: int) -> None:
    """With falling marginal throughput the greedy schedule is one of the best of its tokens."""
    wide = replace(A, power_w=1800.0)
    scales = (D, wide)
    tokens = work * HOUR * 500.0
    found = look([float(each) for each in values], 1, points=scales, tokens_left=tokens)
    choices = [
        (sum(p.power_w * v for p, v in zip(way, values, strict=True) if p), way)
        for way in product((None, *scales), repeat=len(values))
        if sum(p.tokens_per_s * HOUR for p in way if p) >= tokens
    ]
    if not choices:
        return
    least = min(grams for grams, _ in choices)
    first = {way[0].id if way[0] else SLEEP for grams, way in choices if grams <= least * 1.0000001}
    assert carbon_scaler(found) in first


def test_the_trading_threshold_falls_from_its_first_price_to_the_lowest() -> None:
    """U / a with nothing done, L with all."""
    a = ratio(100.0, 400.0)
    assert pytest.approx((1 - 1 / a) * exp(1 / a)) == 1.0 - 100.0 / 400.0
    begun = look([400.0 / a - 1, 1], 1, past=(100.0, 400.0))
    assert one_way_trading(begun) == "A"
    assert one_way_trading(
        replace(begun, ahead=(IntensityAhead(seconds=1, g_per_kwh=400 / a + 1),))
    ) == (SLEEP)
    nearly = replace(begun, tokens_left=1.0, ahead=(IntensityAhead(seconds=1, g_per_kwh=103.0),))
    assert one_way_trading(nearly) == SLEEP
    assert one_way_trading(replace(begun, past=())) == "A"


def test_equal_steps_see_joules_and_hardly_any_carbon() -> None:
    """The same choice on a grid four times as dirty; no switch where that costs more."""
    plenty = look([200.0] * 400, 10)
    assert equal_step(plenty) == equal_step(look([800.0] * 400, 10)) == "E"
    assert equal_step(look([200.0] * 12, 10)) == "B"
    assert equal_step(replace(plenty, switch_j=1e12)) == "B"
    assert equal_step(look([200.0] * 5, 10)) == "A"


def test_a_hull_has_no_point_that_a_mixture_betters() -> None:
    """D, slow at full clock, is above; E is thriftiest."""
    assert [each.id for each in hull(POINTS)] == ["E", "B", "A"]


@given(
    future=st.lists(st.floats(1, 500), min_size=5, max_size=5),
    name=st.sampled_from(sorted(RULES)),
)
@settings(max_examples=60, deadline=None)
def test_every_rule_answers_with_a_point_or_sleep_and_the_same_each_time(
    future: list[float], name: str
) -> None:
    """A rule is a function of its look."""
    seen = look([250.0, *future], 3, past=(100.0, 300.0))
    assert RULES[name](seen) in {"A", "B", "D", "E", SLEEP}
    assert RULES[name](seen) == RULES[name](seen)
