"""V8 proves equivalence only where there is evidence for it."""

import numpy as np
import pytest
from scipy import stats  # type: ignore[import-untyped]

from wattmesh.reconfig.equivalence.checks.trials import equivalent, t_tail, tost

SEEDS = range(8)


def losses(noise: float, shift: float = 0.0) -> dict[int, float]:
    """Final losses that vary by 0.1 between seeds, and by `noise` within one."""
    between = np.random.default_rng(1).normal(2.0, 0.1, len(SEEDS))
    within = np.random.default_rng(2).normal(0.0, 1.0, len(SEEDS)) * noise
    return {seed: float(between[seed] + within[seed] + shift) for seed in SEEDS}


@pytest.mark.parametrize("freedom", [1, 4, 9, 29, 200])
@pytest.mark.parametrize("t", [-40.0, -2.0, -0.1, 0.0, 0.3, 2.6, 12.0, 300.0])
def test_the_tail_of_student_is_scipys(t: float, freedom: int) -> None:
    """Our tail (the hook has no scipy) against scipy's."""
    assert t_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


def test_two_one_sided_tests_are_scipys() -> None:
    """The larger of two one-sided paired tests."""
    apart = [0.01, -0.03, 0.02, 0.0, -0.01, 0.015]
    low = stats.ttest_1samp(apart, -0.03, alternative="greater").pvalue
    high = stats.ttest_1samp(apart, 0.03, alternative="less").pvalue
    assert tost(apart, 0.03) == pytest.approx(max(low, high), rel=1e-9)


def test_small_differences_are_equivalent() -> None:
    """Noise far below the margin is proven to be."""
    assert equivalent(losses(0.005), losses(0.0)).ok


@pytest.mark.parametrize(("noise", "shift"), [(0.005, 0.2), (0.005, -0.2), (0.5, 0.0)])
def test_a_shift_and_mere_noise_are_no_proof(noise: float, shift: float) -> None:
    """Sabotaged twins: a run that ends worse (or better), and runs too noisy to tell."""
    assert not equivalent(losses(noise, shift), losses(0.0)).ok


def test_few_or_unpaired_seeds_are_no_proof() -> None:
    """Four seeds, or a seed that one side lacks, show nothing."""
    alone = losses(0.0)
    few = {seed: alone[seed] for seed in range(4)}
    assert not equivalent(few, few).ok
    assert not equivalent({**alone, 99: 2.0}, alone).ok
    assert not equivalent({**alone, 0: float("nan")}, alone).ok


def test_equal_losses_are_equivalent() -> None:
    """No difference at all has no deviation either."""
    assert equivalent(losses(0.0), losses(0.0)).ok
    assert tost([0.0, 0.0], 0.0) == 1.0
