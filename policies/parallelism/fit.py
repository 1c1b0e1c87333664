"""Fit the cost model's parameters to measured steps: robust least squares of logarithms. Pure.

Imports SciPy, so nothing that must start fast imports this.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from wattmesh.policies.parallelism.parameters import (
    Parameters,
    Vector,
    pack,
    prior_logarithms,
    prior_spreads,
    unpack,
)
from wattmesh.policies.parallelism.setups import Setups
from wattmesh.policies.parallelism.step_time import step_time

NOISE = 0.08
"""Relative error of one measured step that is taken for granted: a row twice as far off begins to
count less (soft L1)."""


def fit(
    setups: Setups,
    seconds: NDArray[np.float64],
    *,
    weights: NDArray[np.float64] | float = 1.0,
    start: Parameters | None = None,
    evaluations: int = 200,
) -> Parameters:
    """Find the parameters under which predictions are nearest to what was measured.

    Args:
        setups: what was run, n of them.
        seconds: of a step of each; shape (n,), above 0.
        weights: how much each counts; shape (n,) or one number.
        start: where to begin; the priors without it.
        evaluations: the most that it may try.

    Raises:
        ValueError: a measured time is not a positive number.
    """
    measured = np.asarray(seconds, dtype=np.float64)
    if not (np.isfinite(measured) & (measured > 0)).all():
        raise ValueError("every measured step must take more than 0 seconds")
    goal, centre, spread = np.log(measured), prior_logarithms(), prior_spreads()
    scale = np.sqrt(np.broadcast_to(np.asarray(weights, dtype=np.float64), measured.shape)) / NOISE

    def errors(logarithms: Vector) -> Vector:
        predicted = np.log(np.asarray(step_time(setups, unpack(logarithms)).total_s))
        return np.concatenate([(predicted - goal) * scale, (logarithms - centre) / spread])

    begin = centre if start is None else pack(start)
    found = least_squares(errors, begin, loss="soft_l1", max_nfev=evaluations)
    return unpack(found.x)
