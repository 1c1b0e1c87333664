"""Joules per expert-token are learned from counters; scores say nothing unless GPUs differ."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.costs import (
    ClockAndLimit,
    CounterSpan,
    OfflineSweep,
    TokenCost,
    begin,
    learned,
)
from wattmesh.policies.experts.scores import GpuTime, scored

SWEEP = OfflineSweep(
    joules_per_token=2e-3,
    idle_w=70.0,
    joules_per_token_deviation=0.5e-3,
    idle_w_deviation=10.0,
)
FAST = ClockAndLimit(clock_mhz=1980, limit_w=700)


def spans(
    count: int, *, joules: float = 1.5e-3, idle_w: float = 80.0, seed: int = 0, noise: float = 0.01
) -> list[CounterSpan]:
    """Draw spans of a minute of a GPU whose true cost is known."""
    draw = np.random.default_rng(seed)
    rows = draw.uniform(2e6, 2e7, count)
    true = joules * rows + idle_w * 60
    energy = true * (1 + noise * draw.standard_normal(count))
    return [
        CounterSpan(seconds=60.0, energy_j=float(each), rows=float(many), at=FAST)
        for each, many in zip(energy, rows, strict=True)
    ]


def after(found: list[CounterSpan], known: TokenCost | None = None) -> TokenCost:
    """Learn from spans, one after the other."""
    known = begin(SWEEP, FAST) if known is None else known
    for each in found:
        known = learned(known, each)
    return known


def test_the_true_cost_is_learned_and_its_variance_shrinks() -> None:
    """Within three of the deviations that it states itself; the sweep is left behind."""
    few, many = after(spans(3)), after(spans(60))
    assert many.joules_per_token == pytest.approx(1.5e-3, rel=0.02)
    assert abs(many.joules_per_token - 1.5e-3) < 3 * math.sqrt(many.variance)
    assert many.variance < few.variance < SWEEP.joules_per_token_deviation**2
    assert begin(SWEEP, FAST).variance == SWEEP.joules_per_token_deviation**2


def test_stated_deviations_cover_the_truth() -> None:
    """Of 200 GPUs, 90 % lie within two of their own deviations: the variance is no decoration."""
    misses = []
    for seed in range(200):
        found = after(spans(20, seed=seed))
        misses.append(abs(found.joules_per_token - 1.5e-3) / math.sqrt(found.variance))
    assert np.mean(np.array(misses) <= 2) >= 0.9
    assert np.mean(np.array(misses) <= 0.2) <= 0.6, "far too wide would cover all as well"


def test_equal_to_batch_least_squares() -> None:
    """With a sweep that knows nothing, and forgetting as weights: the closed form."""
    blind = replace(SWEEP, joules_per_token_deviation=0.1, idle_w_deviation=1e5)
    given_spans = spans(12, seed=4)
    found = after(given_spans, begin(blind, FAST))
    weight = np.sqrt(0.98 ** np.arange(11, -1, -1))
    table = np.array([[each.rows, each.seconds] for each in given_spans])
    joules = np.array([each.energy_j for each in given_spans])
    closed, *_ = np.linalg.lstsq(table * weight[:, None], joules * weight, rcond=None)
    assert found.joules_per_token == pytest.approx(closed[0], rel=1e-6)
    assert found.idle_w == pytest.approx(closed[1], rel=1e-4)


def test_what_the_sweep_knew_apart_does_not_fade_under_loads_that_never_vary() -> None:
    """A week of steady minutes: idle watts and joules per token stay where the sweep put them."""
    draw = np.random.default_rng(3)
    sweep = replace(SWEEP, joules_per_token=1.5e-3, idle_w=80.0, idle_w_deviation=3.0)
    known, worst = begin(sweep, FAST), 0.0
    for noise in draw.standard_normal(10_000):
        rows = 1e7 * (1 + 0.001 * noise)
        energy_j = (1.5e-3 * rows + 80 * 60) * (1 + 0.01 * float(draw.standard_normal()))
        known = learned(known, CounterSpan(seconds=60.0, energy_j=energy_j, rows=rows, at=FAST))
        worst = max(worst, abs(known.joules_per_token / 1.5e-3 - 1))
    assert worst < 0.05
    assert known.idle_w == pytest.approx(80.0, abs=3.0)
    assert 0 < known.variance < SWEEP.joules_per_token_deviation**2


@given(
    st.lists(
        st.tuples(
            st.floats(30.0, 1e9),
            st.floats(0.0, 1e15) | st.just(math.nan),
            st.sampled_from([0.0, 1.0, 6e6, 2.0**60]) | st.floats(0.0, 1e18),
        ),
        max_size=30,
    )
)
@settings(max_examples=150, deadline=None)
def test_no_span_whatever_it_says_makes_a_cost_that_is_none(
    found: list[tuple[float, float, float]],
) -> None:
    """Finite, with a variance above 0: what numbers cannot hold begins at the sweep again."""
    known = begin(SWEEP, FAST)
    for seconds, energy_j, rows in found:
        known = learned(known, CounterSpan(seconds=seconds, energy_j=energy_j, rows=rows, at=FAST))
        assert math.isfinite(known.joules_per_token + known.idle_w)
        assert 0 < known.variance < math.inf


@pytest.mark.parametrize("at", [ClockAndLimit(clock_mhz=1200, limit_w=700), ClockAndLimit()])
def test_another_clock_or_limit_begins_anew(at: ClockAndLimit) -> None:
    """From the sweep; what was learned at the other one is not carried over."""
    found = learned(after(spans(30)), replace(spans(1)[0], at=at))
    assert found.spans == 1
    assert found.at == at
    again = learned(begin(SWEEP, at), replace(spans(1)[0], at=at))
    assert found.joules_per_token == again.joules_per_token


def test_simulated_joules_are_never_mixed_with_real_ones() -> None:
    """A span of a simulated GPU begins anew, and says what it is."""
    found = learned(after(spans(30)), replace(spans(1)[0], simulated=True))
    assert (found.simulated, found.spans) == (True, 1)


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"energy_j": math.nan}, "energy_j of a counter's span is nan"),
        ({"energy_j": -5.0}, "energy_j of a counter's span is -5"),
        ({"energy_j": 0.0}, "did not move"),
        ({"rows": math.inf}, "rows of a counter's span is inf"),
        ({"rows": -1.0}, "rows"),
        ({"seconds": 3.0}, "shorter than 30 s"),
        ({"seconds": -60.0}, "seconds"),
    ],
)
def test_spans_that_cannot_be_are_dropped(spoilt: dict[str, float], sentence: str) -> None:
    """With a sentence, and the estimate stays as it was to the bit."""
    known = after(spans(10))
    found = learned(known, replace(spans(1)[0], **spoilt))  # type: ignore[arg-type]
    assert sentence in found.dropped
    assert replace(found, dropped="") == known
    assert learned(found, spans(1)[0]).dropped == ""


def test_an_estimate_below_0_is_told_as_0() -> None:
    """A span with fewer joules than idle power alone; the next good ones bring it back."""
    odd = CounterSpan(seconds=60, energy_j=1.0, rows=2e6, at=FAST)
    low = after([odd] * 3)
    assert low.estimate[0] < 0
    assert low.joules_per_token == 0.0
    assert after(spans(60), low).joules_per_token == pytest.approx(1.5e-3, rel=0.05)


def test_an_idle_gpu_teaches_idle_power_only() -> None:
    """No rows: the cost of a row stays what the sweep said."""
    found = learned(begin(SWEEP, FAST), CounterSpan(seconds=60, energy_j=60 * 90, rows=0, at=FAST))
    assert found.joules_per_token == SWEEP.joules_per_token
    assert SWEEP.idle_w < found.idle_w <= 90


@pytest.mark.parametrize(
    "spoilt",
    [
        {"joules_per_token": -1.0},
        {"idle_w": math.nan},
        {"idle_w_deviation": 0.0},
        {"joules_per_token_deviation": math.inf},
    ],
)
def test_sweeps_that_cannot_be_are_refused(spoilt: dict[str, float]) -> None:
    """A deviation of 0 would never learn anything."""
    with pytest.raises(InputInvalid):
        replace(SWEEP, **spoilt)


def cost(joules: float, deviation: float = 1e-6, **other: Any) -> TokenCost:
    """A GPU whose cost is known."""
    sweep = replace(SWEEP, joules_per_token=joules, joules_per_token_deviation=deviation)
    return replace(begin(sweep, FAST), **other)


def test_scores_are_deviations_from_the_mean() -> None:
    """Two kinds of GPU, four of each: -1 and 1; one odd GPU among many: no more than 2."""
    names = [f"g{at}" for at in range(8)]
    costs = {name: cost(1e-3 if at < 4 else 2e-3) for at, name in enumerate(names)}
    found = scored(names, costs)
    assert [found.by_gpu[name] for name in names] == pytest.approx([-1.0] * 4 + [1.0] * 4)
    assert found.neutral_because == ""
    odd = scored(names, {name: cost(2e-3 if name == "g7" else 1e-3) for name in names})
    assert max(odd.by_gpu.values()) == 2.0


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ({"a": cost(1e-3), "b": cost(1e-3)}, "cost the same: they differ by 0.00%"),
        ({"a": cost(1e-3), "b": cost(1.03e-3)}, "cost the same: they differ by 1.48%"),
        ({"a": cost(1e-3, 5e-4), "b": cost(1.5e-3, 5e-4)}, "known to 80.0% only"),
        ({"a": cost(1e-3)}, "the cost of 1 of 2 GPUs is not known"),
        ({"a": cost(1e-3), "b": cost(2e-3, simulated=True)}, "some GPUs are real and some simul"),
        ({"a": cost(1e-3), "b": cost(2e-3, estimate=(math.nan, 0.0))}, "not a number"),
        (
            {"a": cost(1e-3), "b": cost(2e-3, covariance=(-1.0, 0, 0), noise_j2=1.0, spans=1)},
            "negative",
        ),
        ({"a": cost(0.0), "b": cost(0.0)}, "cost the same"),
    ],
)
def test_scores_say_nothing_where_gpus_are_not_known_to_differ(
    costs: dict[str, TokenCost], sentence: str
) -> None:
    """All exactly 0, with the reason."""
    found = scored(["a", "b"], costs)
    assert list(found.by_gpu.values()) == [0.0, 0.0]
    assert sentence in found.neutral_because


@settings(max_examples=60)
@given(joules=st.floats(1e-6, 1.0), count=st.integers(1, 16))
def test_identical_gpus_score_exactly_0(joules: float, count: int) -> None:
    """Whatever the number is: no rounding of a mean may make a score of them."""
    names = [f"g{at}" for at in range(count)]
    assert set(scored(names, dict.fromkeys(names, cost(joules))).by_gpu.values()) == {0.0}


@settings(max_examples=60)
@given(joules=st.lists(st.floats(0, 1.0), min_size=2, max_size=9))
def test_scores_are_bounded_and_in_order(joules: list[float]) -> None:
    """Dearer GPUs never score lower."""
    names = [f"g{at}" for at in range(len(joules))]
    found = scored(names, {name: cost(each) for name, each in zip(names, joules, strict=True)})
    values = [found.by_gpu[name] for name in names]
    assert all(-2 <= each <= 2 for each in values)
    pairs = sorted(zip(joules, values, strict=True))
    assert [each for _, each in pairs] == sorted(values)


def test_a_gpu_that_all_wait_for_is_dear() -> None:
    """Of two equally cheap ones the slower costs the idle power of both for its next row."""
    costs = {"early": cost(1e-3), "late": cost(1e-3)}
    times = {name: GpuTime(seconds=1.0, seconds_per_token=1e-5) for name in costs}
    assert set(scored(list(costs), costs, times=times).by_gpu.values()) == {0.0}
    times["late"] = GpuTime(seconds=1.2, seconds_per_token=1.2e-5)
    found = scored(list(costs), costs, times=times).by_gpu
    assert found["late"] > 0 > found["early"]
    spoilt = times | {"late": replace(times["late"], seconds=math.nan)}
    assert set(scored(list(costs), costs, times=spoilt).by_gpu.values()) == {0.0}


@pytest.mark.parametrize("early_s", [1.0, 0.5])
def test_a_gpu_of_one_kind_that_only_got_more_rows_is_like_the_others(early_s: float) -> None:
    """Equal in joules and speed: exactly 0, however hot its experts; not if joules differ."""
    costs = {name: cost(1e-3) for name in ("early", "late")}
    times = {
        name: GpuTime(seconds=seconds, seconds_per_token=1e-5)
        for name, seconds in (("early", early_s), ("late", 1.2))
    }
    found = scored(list(costs), costs, times=times)
    assert set(found.by_gpu.values()) == {0.0}
    assert "cost the same" in found.neutral_because
    mixed = costs | {"early": cost(1.1e-3)}
    assert scored(list(mixed), mixed, times=times).by_gpu["late"] > 0


def test_one_gpu_or_one_twice_says_nothing() -> None:
    """There is nobody to differ from."""
    assert scored(["a"], {"a": cost(1.0)}).by_gpu == {"a": 0.0}
    assert "named twice" in scored(["a", "a"], {"a": cost(1.0)}).neutral_because


def test_late_gpus_share_what_the_group_waits_for_them() -> None:
    """210 W wait 12 us for a row on both: 1.26 mJ each, less than what the third is dearer."""
    names = ("early", "late", "as late")
    costs = {name: replace(cost(1e-3), estimate=(1e-3, 70.0)) for name in names}
    costs["early"] = replace(costs["early"], estimate=(2.8e-3, 70.0))
    times = {name: GpuTime(seconds=1.2, seconds_per_token=1.2e-5) for name in names}
    times["early"] = GpuTime(seconds=1.0, seconds_per_token=1e-5)
    assert scored(names, costs, times=times).by_gpu["early"] > 0
    # The twin: 2.52 mJ, which a single late one costs, would turn it round.
    times["as late"] = times["early"]
    assert scored(names, costs, times=times).by_gpu["late"] > 0
