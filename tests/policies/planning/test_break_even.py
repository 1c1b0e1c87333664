"""When a point is worth running is what trying every intensity says, and so is the break-even."""

from dataclasses import replace

import pytest

from tests.builders.observations import PAIR, A, B
from tests.builders.points import catalogue, point
from wattmesh.policies.break_even import (
    BreakEven,
    break_evens,
    embodied_sentence,
    gpus_held,
    hull_sentence,
)
from wattmesh.reconfig.catalogue import Catalogue, OperatingPoint, Release

C = point("C", 1, 320.0, 390.0)
WASTE = point("W", 4, 700.0, 1500.0)
FOUR = catalogue(A, B, C, WASTE, release=Release.RELEASED)


def by_id(known: Catalogue) -> dict[str, BreakEven]:
    """What is told, by point."""
    return {each.point.id: each for each in break_evens(known)}


def onset(known: Catalogue, which: OperatingPoint, *, sleeps: bool) -> float:
    """Find the highest intensity at which a point, or a faster one, is best: by trying them all.

    A token is worth one gram here; sleeping is free where GPUs are given back.
    """
    held = gpus_held(known)
    menu = [(each.tokens_per_s, known.held_power_w(each, held)) for each in known.points]
    menu += [(0.0, 0.0)] if sleeps else []
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        best = min(menu, key=lambda each: middle * each[1] - each[0])
        low, high = (middle, high) if best[0] >= which.tokens_per_s else (low, middle)
    return low


@pytest.mark.parametrize("release", list(Release))
def test_ratios_are_those_of_trying_every_intensity(release: Release) -> None:
    """Of hull points, each against the one before and against the first step up."""
    known = replace(FOUR, release=release)
    sleeps = release is Release.RELEASED
    useful = [each for each in break_evens(known) if each.vertex]
    assert len(useful) >= 2
    starts = [onset(known, each.point, sleeps=sleeps) for each in useful]
    first = 0 if sleeps else 1
    for at, each in enumerate(useful):
        if at > first:
            assert each.ratio == pytest.approx(starts[at - 1] / starts[at])
        else:
            assert each.ratio is None
        if at >= first:
            assert each.in_all == pytest.approx(starts[first] / starts[at])
        else:
            assert each.in_all is None


def test_where_sleeping_and_a_faster_point_are_better_ratios_begin_at_that_one() -> None:
    """A slowest point that takes more joules a token than going up does is no place to wake at."""
    thirsty = point("T", 1, 100.0, 900.0)
    found = by_id(catalogue(A, thirsty, release=Release.RELEASED))
    assert found["T"].in_all is None
    assert (found["A"].ratio, found["A"].in_all) == (None, 1.0)
    assert hull_sentence(found["A"]).startswith("A is the first step up, from T")


def test_a_point_that_is_never_worth_running_says_why() -> None:
    """It stands last, and has no ratio."""
    last = break_evens(FOUR)[-1]
    assert (last.point.id, last.vertex, last.ratio, last.slowing_down) == ("W", None, None, None)
    assert "W is never worth running" in hull_sentence(last)


def grams_per_token(known: Catalogue, which: OperatingPoint, g_per_kwh: float) -> float:
    """What a token emits, the making of the charged GPUs included."""
    held = gpus_held(known)
    gpus = which.gpus if known.release is Release.RELEASED else held
    power_g = known.held_power_w(which, held) * g_per_kwh / 3.6e6
    return (power_g + gpus * known.embodied_g_per_gpu_hour / 3600) / which.tokens_per_s


@pytest.mark.parametrize("release", list(Release))
def test_the_break_even_parts_the_intensities_in_which_slowing_down_is_right(
    release: Release,
) -> None:
    """On either side, a token's grams say so; GPUs that are given back age for somebody else."""
    known = replace(FOUR, release=release, idle_power_w_per_gpu=10.0, embodied_g_per_gpu_hour=30.0)
    checked = 0
    for each in break_evens(known):
        even = each.slowing_down
        if even is None or not even.g_per_kwh:
            continue
        fast = known.point(even.faster)
        for share, better in ((0.99, fast), (1.01, each.point)):
            grams = {
                which.id: grams_per_token(known, which, share * even.g_per_kwh)
                for which in (fast, each.point)
            }
            assert min(grams, key=lambda name: grams[name]) == better.id
        checked += 1
        assert "slowing down from" in embodied_sentence(each)
    assert checked or release is Release.RELEASED


def test_what_was_not_stated_is_no_break_even_of_zero() -> None:
    """Without grams of making nothing is said; with them, 0 means that slowing down is right."""
    assert all(each.slowing_down is None for each in break_evens(PAIR))
    fewer = replace(FOUR, embodied_g_per_gpu_hour=10.0)
    slowest = break_evens(fewer)[0]
    assert slowest.slowing_down is not None
    assert slowest.slowing_down.g_per_kwh == 0.0
    assert embodied_sentence(slowest) == "Slowing down from B to C never emits more in all."
    assert break_evens(fewer)[2].slowing_down is None


def test_a_slower_point_that_saves_no_joules_is_said_to_serve_shifting_only() -> None:
    """Held GPUs that idle at almost full power: slower is dearer a token, whatever the grid."""
    held = catalogue(
        A,
        B,
        release=Release.HELD,
        idle_power_w_per_gpu=250.0,
        embodied_g_per_gpu_hour=10.0,
    )
    slow = break_evens(held)[0]
    assert slow.slowing_down is not None
    assert slow.slowing_down.g_per_kwh is None
    assert "emits more at every intensity" in embodied_sentence(slow)


@pytest.mark.parametrize("release", list(Release))
def test_one_point_alone_is_worth_running(release: Release) -> None:
    """There is nothing to compare it with."""
    (only,) = break_evens(catalogue(A, release=release, embodied_g_per_gpu_hour=10.0))
    assert (only.ratio, only.slowing_down) == (None, None)
    assert "is the slowest point worth running" in hull_sentence(only)
