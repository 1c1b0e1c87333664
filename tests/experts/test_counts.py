"""Mixed groups: experts by speed, what a layer then takes, and when leaning saves."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.experts.groups import group
from tests.experts.cases import gpu
from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.counts import balanced_counts
from wattmesh.policies.experts.layer_energy import balanced_seconds, layer_energy
from wattmesh.policies.experts.tilt import least_energy_loads, shift_gain_w


def _best(experts: int, speeds: list[float], most: list[int]) -> float:
    ways = itertools.product(*(range(each + 1) for each in most))
    return min(
        max(count / speed for count, speed in zip(way, speeds, strict=True))
        for way in ways
        if sum(way) == experts
    )


@settings(max_examples=60)
@given(
    experts=st.integers(1, 9),
    speeds=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
    spare=st.integers(0, 3),
)
def test_no_other_dealing_ends_earlier(experts: int, speeds: list[float], spare: int) -> None:
    """Beside all dealings that fit."""
    most = [-(-experts // len(speeds)) + spare] * len(speeds)
    counts = balanced_counts(experts, speeds, most=most)
    assert sum(counts) == experts
    assert all(0 <= count <= limit for count, limit in zip(counts, most, strict=True))
    slowest = max(count / speed for count, speed in zip(counts, speeds, strict=True))
    assert slowest <= _best(experts, speeds, most) * (1 + 1e-12)


def test_counts_follow_the_speeds_of_mixed_gpus() -> None:
    """Three kinds of GPU, as their rates: 989, 362 and 312 TFLOP/s; equal ones get equal counts."""
    mixed = group((2, "h100"), (2, "l40s"), (2, "a100"))
    assert balanced_counts(64, [each.tokens_per_s for each in mixed]) == (19, 19, 7, 7, 6, 6)
    assert balanced_counts(64, [5.0] * 8) == (8,) * 8
    assert balanced_counts(10, [1.0, 1.0, 1.0]) == (4, 3, 3)
    assert balanced_counts(6, [100.0, 1.0], least=1) == (5, 1)


@pytest.mark.parametrize(
    ("speeds", "other", "sentence"),
    [
        ([], {}, "speeds above 0"),
        ([1.0, 0.0], {}, "speeds above 0"),
        ([1.0, math.nan], {}, "speeds above 0"),
        (
            [1.0, 1.0],
            {"most": [1, 1]},
            "4 experts do not fit: 2 GPUs hold 0 at least and 2 at most",
        ),
        ([1.0, 1.0], {"most": [4]}, "1 limits were given for 2 GPUs"),
        ([1.0, 1.0], {"least": 3}, "hold 6 at least"),
        ([1.0, 1.0], {"most": [4, 0], "least": 1}, "do not fit"),
    ],
)
def test_what_cannot_be_dealt_is_refused(
    speeds: list[float], other: dict[str, Any], sentence: str
) -> None:
    """With the numbers."""
    with pytest.raises(InputInvalid, match=sentence):
        balanced_counts(4, speeds, **other)


def test_the_layer_waits_for_its_slowest() -> None:
    """By hand: 2 GPUs of 630 W above 70 W idle; 1,000 and 500 rows at 1,000 a second."""
    found = layer_energy([gpu(), gpu("g1")], [1000, 500])
    assert found.layer_s == 1.0
    assert found.energy_j == pytest.approx(630 + 315 + 140)
    assert found.load_share_max == pytest.approx(1.0 / 0.75)
    assert layer_energy([], []).energy_j == 0


@pytest.mark.parametrize(
    "other",
    [
        {"busy_w": 0.0},
        {"busy_w": math.nan},
        {"idle_w": -1.0},
        {"idle_w": 800.0},
        {"idle_w": math.nan},
        {"tokens_per_s": math.inf},
        {"tokens_per_s": 1e-300},
        {"busy_w": 1e300},
    ],
)
def test_gpus_that_cannot_be_are_refused(other: dict[str, Any]) -> None:
    """Named, with the number."""
    with pytest.raises(InputInvalid, match="GPU 'g0'"):
        gpu(**other)


def test_between_equal_speeds_a_shift_saves_only_beyond_the_groups_idle_power() -> None:
    """P_h - P_l > G * P_idle, at its edge on both sides; and what the model says agrees."""
    cheap = gpu("cheap", busy_w=300.0)
    for dear_w, saves in ((300.0 + 4 * 70 - 1, False), (300.0 + 4 * 70 + 1, True)):
        others = [gpu(f"other-{at}") for at in range(2)]
        dear = gpu("dear", busy_w=dear_w)
        members = [cheap, dear, *others]
        assert shift_gain_w(cheap, dear, members) == pytest.approx(dear_w - 300 - 4 * 70)
        even = layer_energy(members, [1000, 1000, 1000, 1000]).energy_j
        moved = layer_energy(members, [1001, 999, 1000, 1000]).energy_j
        assert (moved < even) is saves
    several = [gpu(f"cheap-{at}", busy_w=300.0) for at in range(3)] + [gpu("dear", busy_w=500.0)]
    assert shift_gain_w(several[0], several[3], several) < 0
    assert shift_gain_w(several[0], several[3], several, 3) == pytest.approx(3 * 200 - 4 * 70)
    together = layer_energy(several, [1001, 1001, 1001, 997]).energy_j
    assert together < layer_energy(several, [1000] * 4).energy_j


def test_leaning_saves_nothing_on_equal_gpus() -> None:
    """The best loads under any cap are the even ones."""
    members = [gpu(f"g{at}") for at in range(8)]
    best = layer_energy(members, least_energy_loads(members, [100.0] * 8, 2.0))
    assert best.energy_j == pytest.approx(layer_energy(members, [100.0] * 8).energy_j)


@settings(max_examples=40, deadline=None)
@given(
    watts=st.lists(st.floats(100, 900), min_size=2, max_size=4),
    rates=st.lists(st.floats(100, 2000), min_size=4, max_size=4),
    cap=st.floats(1.0, 2.0),
)
def test_no_loads_under_the_cap_take_less_energy(
    watts: list[float], rates: list[float], cap: float
) -> None:
    """Than those found; beside many others that keep the cap."""
    members = [
        gpu(f"g{at}", busy_w=watt + 70, tokens_per_s=rates[at]) for at, watt in enumerate(watts)
    ]
    even = [balanced_seconds(members, 1000.0) * each.tokens_per_s for each in members]
    found = least_energy_loads(members, even, cap)
    assert math.fsum(found) == pytest.approx(1000.0)
    assert all(load <= cap * each + 1e-6 for load, each in zip(found, even, strict=True))
    best = layer_energy(members, found).energy_j
    for first, second in itertools.permutations(range(len(members)), 2):
        for share in (0.0, 0.1, 0.5, 1.0):
            other = list(even)
            moved = min(share * (cap - 1) * even[first], even[second])
            other[first] += moved
            other[second] -= moved
            assert best <= layer_energy(members, other).energy_j * (1 + 1e-6)
