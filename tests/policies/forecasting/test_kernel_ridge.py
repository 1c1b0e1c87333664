"""The regression: finds a smooth function, heeds what matters, and really leaves rows out."""

import numpy as np

from wattmesh.policies.forecast.exogenous import Array
from wattmesh.policies.forecast.kernel_ridge import fit

ROWS = 900


def made(seed: int = 0) -> tuple[Array, Array]:
    """Ten features of which two matter, and what they make, without noise."""
    x = np.random.default_rng(seed).standard_normal((ROWS, 10))
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] ** 2


def error(x: Array, y: Array, seed: int = 5) -> float:
    """Mean error on fresh rows, as a share of what the mean alone would make."""
    fitted = fit(x, y, np.ones(len(y)), np.arange(len(y)) // 30 % 6, landmarks=300)
    fresh, truth = made(seed)
    return float(np.abs(fitted.function(fresh) - truth).mean() / np.abs(truth - y.mean()).mean())


def test_a_smooth_function_is_found_among_features_that_do_not_matter() -> None:
    """Less than a third of the error of the mean is left; shuffled targets teach nothing."""
    x, y = made()
    assert error(x, y) < 0.33
    assert error(x, np.random.default_rng(1).permutation(y)) > 0.9


def test_a_few_wild_values_do_not_bend_it() -> None:
    """One row in fifty is off by a hundred times the spread."""
    x, y = made()
    wild = y.copy()
    wild[::50] += 100.0
    assert error(x, wild) < 0.6


def test_left_out_values_are_not_learned_from() -> None:
    """Noise is fitted where it is seen and not where it was left out."""
    x, _ = made()
    noise = np.random.default_rng(7).standard_normal(ROWS)
    fitted = fit(x, noise, np.ones(ROWS), np.arange(ROWS) // 30 % 6, landmarks=300)
    assert np.corrcoef(fitted.function(x), noise)[0, 1] > 0.5
    assert abs(np.corrcoef(fitted.left_out, noise)[0, 1]) < 0.2


def test_unknown_features_are_the_mean_and_constant_ones_do_nothing() -> None:
    """NaN gives what the mean gives; a feature that never changed cannot matter later."""
    x, y = made()
    x[:, 9] = 4.0
    function = fit(x, y, np.ones(ROWS), np.arange(ROWS) % 2, landmarks=200).function
    row = x[:1].copy()
    other = row.copy()
    other[0, 9] = 9.0
    np.testing.assert_array_equal(function(row), function(other))
    row[0, 3], other[0, 3] = np.nan, x[:, 3].mean()
    np.testing.assert_allclose(function(row), function(other))
