"""A fit finds the parameters that made its steps, and refuses steps that took no time."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parallelism.rows import Row, row, setups
from wattmesh.policies.parallelism.fit import fit
from wattmesh.policies.parallelism.hardware import FAMILIES, GENERATIONS
from wattmesh.policies.parallelism.measured import measured_rows, seconds_of
from wattmesh.policies.parallelism.parameters import (
    PRIORS,
    Parameters,
    prior_logarithms,
    prior_spreads,
    unpack,
)
from wattmesh.policies.parallelism.setups import Setups
from wattmesh.policies.parallelism.step_time import step_time

Seconds = NDArray[np.float64]


def runs(count: int = 120) -> list[Row]:
    """Give configurations of one small model on H100s, spread over layouts."""
    draw = random.Random(7)
    rows = []
    for _ in range(count):
        tp, pp, dp = (draw.choice((1, 2, 4, 8)) for _ in range(3))
        micro_batch = draw.choice((1, 2, 4))
        rows.append(
            row(
                tp=tp,
                pp=pp,
                num_gpus=tp * pp * dp,
                micro_batch=micro_batch,
                global_batch=dp * micro_batch * draw.choice((1, 4, 16)),
                seq_len=draw.choice((512, 2048, 8192)),
                zero=draw.choice((0, 1, 3)),
                precision=draw.choice(("bf16", "fp8")),
                recompute=draw.choice(("none", "full")),
            )
        )
    return rows


RUNS: Setups = setups(*runs())
OFF = np.random.default_rng(3).normal(0, 0.7, len(prior_logarithms()))
TRUTH: Parameters = unpack(prior_logarithms() + OFF * prior_spreads())
SECONDS: Seconds = np.asarray(step_time(RUNS, TRUTH).total_s)
HOPPER, H100 = GENERATIONS.index("hopper"), FAMILIES.index("h100")


def reached(found: Parameters) -> float:
    """Give the share of an H100's rate that large products reach."""
    return float(found.matmul[HOPPER] * found.family[H100])


def off(found: Parameters, truth: Seconds = SECONDS) -> float:
    """Give the largest relative error of a fit's steps."""
    return float(np.abs(np.asarray(step_time(RUNS, found).total_s) / truth - 1).max())


def test_a_fit_finds_what_made_its_steps() -> None:
    """From the priors, which err by a quarter and more; what no run shows stays at its prior."""
    assert off(unpack(prior_logarithms())) > 0.25
    found = fit(RUNS, SECONDS)
    assert off(found) < 0.05
    assert reached(found) == pytest.approx(reached(TRUTH), rel=0.12)
    assert found.fp8 == pytest.approx(TRUTH.fp8, rel=0.1)
    unseen = GENERATIONS.index("blackwell")
    assert float(found.matmul[unseen]) == pytest.approx(PRIORS["matmul"][0].centre, rel=1e-3)


def test_a_fit_from_its_own_result_stays() -> None:
    """Nothing moves that has no reason to."""
    found = fit(RUNS, SECONDS)
    assert off(fit(RUNS, SECONDS, start=found)) < off(found) + 0.005


def moved_by_one(fitting: Callable[..., Parameters]) -> float:
    """Give how far one run that took ten times as long moves the others' steps, on average."""
    wrong = SECONDS.copy()
    wrong[0] *= 10
    one, other = fitting(RUNS, SECONDS), fitting(RUNS, wrong)
    steps = (np.asarray(step_time(RUNS, each).total_s)[1:] for each in (one, other))
    before, after = steps
    return float(np.abs(after / before - 1).mean())


def test_one_broken_run_hardly_moves_a_fit() -> None:
    """Soft L1: less than half a percent over 119 others."""
    assert moved_by_one(fit) < 0.005


def test_a_weight_of_almost_nothing_takes_a_run_out() -> None:
    """The same broken run, weighed away."""
    wrong = SECONDS.copy()
    wrong[0] *= 10
    weights = np.ones(len(wrong))
    weights[0] = 1e-9
    without = np.asarray(step_time(RUNS, fit(RUNS, wrong, weights=weights)).total_s)
    assert np.abs(without / SECONDS - 1).max() < 0.05


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_step_that_took_no_time_is_refused(wrong: float) -> None:
    """Zero, less, and no number at all."""
    seconds = SECONDS.copy()
    seconds[5] = wrong
    with pytest.raises(ValueError, match="more than 0 seconds"):
        fit(RUNS, seconds)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"step_time_s": "2.5"}, 2.5),
        ({"step_time_s": "2.5", "tokens_per_s_per_gpu": "1"}, 2.5),
        ({"step_time_s": "", "tokens_per_s_per_gpu": "16384"}, 1.0),
        ({"step_time_s": "0", "tokens_per_s_per_gpu": "16384"}, 1.0),
    ],
)
def test_seconds_are_stated_or_follow_from_the_rate(changes: Row, seconds: float) -> None:
    """128 sequences of 8192 tokens on 64 GPUs."""
    assert seconds_of(row(**changes)) == seconds


@pytest.mark.parametrize("wrong", ["", "0", "-1", "nan", "inf", "1e400", "fast"])
def test_a_run_without_a_time_is_no_measurement(wrong: str) -> None:
    """Left out, the others stay."""
    rows = [row(step_time_s=wrong), row(step_time_s="2.5"), row(step_time_s="2", layers="")]
    found = measured_rows(rows, np.array([1.0, 0.5, 1.0]))
    assert found.seconds.tolist() == [2.5]
    assert found.weights.tolist() == [0.5]


def test_a_fit_that_follows_every_broken_run_is_caught() -> None:
    """Sabotaged twin: one that scales all steps by the mean of errors."""

    def follows(setups_: Setups, seconds: Seconds) -> Parameters:
        found = fit(setups_, SECONDS)
        error = np.log(seconds / np.asarray(step_time(setups_, found).total_s)).mean()
        return replace(found, matmul=found.matmul / np.exp(error), passes=found.passes * 2)

    assert moved_by_one(follows) > 0.005
