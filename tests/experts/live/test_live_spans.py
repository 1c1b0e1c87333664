"""Costs of a live run: learned from counts and counters, and nothing from what is in doubt."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattmesh.policies.experts.costs import ClockAndLimit, OfflineSweep
from wattmesh.policies.experts.live_spans import (
    CounterMark,
    RunCosts,
    RunCount,
    counted,
    mark_at,
)
from wattmesh.policies.experts.published import Telling, learned_more, published, telling
from wattmesh.policies.experts.scores import Scores, scored

FULL = ClockAndLimit(clock_mhz=1980, limit_w=700)
CHEAP_J, DEAR_J, IDLE_W = 0.002, 0.004, 70.0
JOULES = {"GPU-a": CHEAP_J, "GPU-b": DEAR_J}
SWEEP = OfflineSweep(
    joules_per_token=0.003,
    idle_w=IDLE_W,
    joules_per_token_deviation=0.002,
    idle_w_deviation=3.0,
)
SWEEPS = dict.fromkeys(JOULES, SWEEP)


def mark(at_s: float, energy_j: float, **other: Any) -> CounterMark:
    """One reading; everything was measured."""
    plain: dict[str, Any] = {
        "dark_s": 0.0,
        "lit_s": 0.0,
        "setting": FULL,
        "since_s": -1e9,
        "simulated": False,
    }
    return CounterMark(at_s=at_s, energy_j=energy_j, **plain | other)


def count(at_s: float, rate: float = 1e5, **other: Any) -> RunCount:
    """What two GPUs have done and drawn by now, at so many expert-tokens a second."""
    rows = rate * at_s
    marks = {gpu: mark(at_s, IDLE_W * at_s + each * rows) for gpu, each in JOULES.items()}
    plain: dict[str, Any] = {
        "launch": "one",
        "layout": "ep2",
        "tokens": dict.fromkeys(JOULES, int(rows)),
        "marks": marks,
    }
    return RunCount(at_s=at_s, **plain | other)


def learned(*counts: RunCount, sweeps: dict[str, OfflineSweep] = SWEEPS) -> RunCosts:
    """Learn from one count after the other."""
    known = RunCosts()
    for each in counts:
        known = counted(known, each, sweeps)
    return known


def test_the_costs_of_two_gpus_are_found_and_scored() -> None:
    """Five save steps; the truth within its own deviation, and the dear one scored dearer."""
    known = learned(*(count(60.0 * n) for n in range(6)))
    for gpu, truth in JOULES.items():
        found = known.costs[gpu]
        assert found.joules_per_token == pytest.approx(truth, rel=0.02)
        assert abs(found.joules_per_token - truth) < 3 * math.sqrt(found.variance) + 1e-6
        assert found.spans == 5
    scores = scored(list(JOULES), known.costs)
    assert scores.by_gpu == pytest.approx({"GPU-a": -1.0, "GPU-b": 1.0})


def test_without_a_sweep_steady_loads_leave_costs_unknown_and_varied_ones_do_not() -> None:
    """Idle watts and joules per token are told apart by loads that vary, and by nothing else."""
    steady = learned(*(count(60.0 * n) for n in range(12)), sweeps={})
    assert "known to" in scored(list(JOULES), steady.costs).neutral_because
    counts, tokens, energy = [], 0, dict.fromkeys(JOULES, 0.0)
    for n in range(12):
        added = 6_000_000 if n % 2 else 600_000
        tokens += added
        for gpu in energy:
            energy[gpu] += IDLE_W * 60 + JOULES[gpu] * added
        marks = {gpu: mark(60.0 * n, each) for gpu, each in energy.items()}
        counts.append(count(60.0 * n, tokens=dict.fromkeys(JOULES, tokens), marks=marks))
    varied = learned(*counts, sweeps={})
    told = scored(list(JOULES), varied.costs).by_gpu
    assert told == pytest.approx({"GPU-a": -1.0, "GPU-b": 1.0})


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"dark_s": 4.0}, "not measured"),
        ({"lit_s": 4.0}, "not measured"),
        ({"setting": replace(FULL, clock_mhz=1200), "since_s": 70.0}, "changed within"),
        ({"since_s": 70.0}, "changed within"),
        ({"simulated": True}, "simulated"),
        ({"energy_j": 0.0}, "fell"),
        ({"energy_j": math.nan}, "energy_j"),
        (None, "not read"),
    ],
)
def test_a_span_in_doubt_teaches_nothing(other: dict[str, Any] | None, sentence: str) -> None:
    """One sentence for that GPU; the other one's span counts."""
    before = learned(count(0.0), count(60.0))
    last = count(120.0)
    strange = {**last.marks, "GPU-a": replace(last.marks["GPU-a"], **other or {})}
    if other is None:
        del strange["GPU-a"]
    after = counted(before, replace(last, marks=strange), SWEEPS)
    assert sentence in after.unused["GPU-a"]
    assert after.costs["GPU-a"].estimate == before.costs["GPU-a"].estimate
    assert after.costs["GPU-b"].spans == 2


@pytest.mark.parametrize("tokens", [5_999_999, 0])
def test_tokens_that_fell_or_stood_still_teach_nothing(tokens: int) -> None:
    """A count that went back is no count."""
    before = learned(count(0.0), count(60.0))
    last = count(120.0, tokens={"GPU-a": tokens, "GPU-b": 12_000_000})
    assert "computed nothing" in counted(before, last, SWEEPS).unused["GPU-a"]


def test_another_clock_begins_at_the_sweep_again() -> None:
    """The first span at it is dropped, and the next one counts from the sweep on."""
    before = learned(*(count(60.0 * n) for n in range(6)))
    slow = replace(FULL, clock_mhz=1200)
    for at_s in (360.0, 420.0):
        now = count(at_s)
        marks = {gpu: replace(each, setting=slow, since_s=310.0) for gpu, each in now.marks.items()}
        before = counted(before, replace(now, marks=marks), SWEEPS)
    assert {each.spans for each in before.costs.values()} == {1}
    assert {each.at for each in before.costs.values()} == {slow}


def test_another_layout_forgets_and_another_launch_keeps() -> None:
    """Nothing is learned between counts of two launches."""
    known = learned(count(0.0), count(60.0))
    relaunched = counted(known, count(120.0, launch="two"), SWEEPS)
    assert (relaunched.costs, relaunched.before is None) == (known.costs, False)
    moved = counted(known, count(120.0, layout="ep4"), SWEEPS)
    assert moved.costs == {}
    gone = counted(known, count(120.0, launch="two", tokens={"GPU-b": 1}), SWEEPS)
    assert set(gone.costs) == {"GPU-b"}


def test_a_gpu_that_is_not_counted_any_more_is_forgotten() -> None:
    """Scores of what is left are those of a group that lacks one."""
    known = learned(count(0.0), count(60.0), count(120.0, tokens={"GPU-b": 12_000_000}))
    assert set(known.costs) == {"GPU-b"}
    assert "1 of 2 GPUs is not known" in scored(list(JOULES), known.costs).neutral_because


def test_save_steps_that_follow_closely_are_one_span() -> None:
    """Counts 20 s apart: every second one ends a span of 40 s."""
    known = learned(*(count(20.0 * n) for n in range(5)))
    assert {each.spans for each in known.costs.values()} == {2}


def test_ranks_that_measure_their_time_are_known_as_stragglers() -> None:
    """Seconds and seconds per token of the newest span; impossible ones are left out."""
    first = count(0.0, busy_s={"GPU-a": 0.0, "GPU-b": 0.0})
    last = count(60.0, busy_s={"GPU-a": 30.0, "GPU-b": 61.0})
    times = learned(first, last).times
    assert set(times) == {"GPU-a"}
    assert times["GPU-a"].seconds_per_token == pytest.approx(30.0 / 6e6)
    later = count(120.0, busy_s={"GPU-a": 70.0, "GPU-b": 62.0})
    assert learned(first, last, later).times["GPU-a"].seconds == pytest.approx(32.0)


def test_a_counter_is_interpolated_only_between_two_close_readings() -> None:
    """Not before the first, not after the last, not over a gap or a hole."""
    marks = [mark(0.0, 0.0), mark(100.0, 1000.0), mark(500.0, 9000.0), mark(520.0, 1.0)]
    found = mark_at(marks, 25.0)
    assert found is not None
    assert found.energy_j == 250.0
    for moment in (-1.0, 300.0, 510.0, 521.0):
        assert mark_at(marks, moment) is None
    assert mark_at([mark(0.0, 0.0), mark(10.0, 5.0, dark_s=1.0)], 5.0) is None


def test_a_version_rises_with_every_change_and_not_with_noise() -> None:
    """A twentieth of a deviation is noise; another strength, or neutral scores, are a change."""
    scores = Scores(by_gpu={"a": -1.0, "b": 1.0}, neutral_because="")
    first = published(None, scores, 0.1, 1000.9)
    assert first.version == 1000
    assert published(first, replace(scores, by_gpu={"a": -1.05, "b": 1.05}), 0.1, 1e4) is first
    moved = published(first, replace(scores, by_gpu={"a": -1.2, "b": 1.0}), 0.1, 5.0)
    assert moved.version == 1001
    assert published(first, scores, 0.2, 1002.0).version == 1002
    neutral = Scores(by_gpu={"a": 0.0, "b": 0.0}, neutral_because="alike")
    zeros = published(first, neutral, 0.1, 5.0)
    assert (zeros.version, set(zeros.by_gpu.values())) == (1001, {0.0})
    assert published(zeros, replace(neutral, neutral_because="still"), 0.1, 9.0) is zeros


@given(st.lists(st.tuples(st.booleans(), st.floats(-0.09, 0.09)), max_size=60))
def test_noise_about_the_edge_does_not_move_routers(spans: list[tuple[bool, float]]) -> None:
    """Whatever the order of spans that find GPUs alike or not: a change needs three in a row."""
    known, kinds, versions = Telling(), [], 0
    for differ, noise in spans:
        scores = (
            Scores(by_gpu={"a": -1.0 + noise / 2, "b": 1.0 - noise / 2}, neutral_because="")
            if differ
            else Scores(by_gpu={"a": 0.0, "b": 0.0}, neutral_because="alike", close=True)
        )
        kinds.append(differ)
        before, known = known, learned_more(known, scores)
        # The learner looks several times between two spans, which must not count as spans.
        for _ in range(5):
            known = telling(known, scores, 0.1, 1000.0)
        if known.told is not before.told:
            versions += 1
            assert before.told is None or kinds[-3:] == [differ] * 3
            assert known.told is not None
            assert bool(known.told.neutral_because) is not differ
    assert versions <= 1 + len(spans) // 3


def test_a_missing_gpu_counts_at_once_and_a_move_within_its_error_does_not() -> None:
    """Zeros for what is not known; and twice the error of a score is no move."""
    sure = Scores(by_gpu={"a": -1.0, "b": 1.0}, neutral_because="")
    told = published(None, sure, 0.1, 1000.0)
    gone = Scores(by_gpu={"a": 0.0, "b": 0.0}, neutral_because="1 of 2 GPUs is not known")
    zeros = telling(Telling(told=told), gone, 0.1, 5.0).told
    assert zeros is not None
    assert zeros.by_gpu == gone.by_gpu
    vague = replace(sure, by_gpu={"a": -1.3, "b": 1.3}, error=0.2)
    assert published(told, vague, 0.1, 2000.0) is told
    assert published(told, replace(vague, error=0.1), 0.1, 2000.0).version == 2000
