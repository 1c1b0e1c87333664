"""What the physics leaves over, learned: a Gaussian process over log(measured / predicted). Pure.

Runs of one model, one cluster, one software release err alike, the more so the nearer their
layouts are. One measurement therefore improves the predictions of its neighbours, and the
variance that is left is the interval. A measurement far from its neighbours (a broken run, a
mistaken table) counts less: Student's t instead of a normal error. Rasmussen and Williams,
Gaussian Processes for Machine Learning (2006), 2.2 and 5.4.1; Lange, Little and Taylor (1989).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

from wattmesh.policies.parallelism.residuals.error_covariance import (
    AMPLITUDES,
    CENTRES,
    Habits,
    compare,
    covariance_and_slopes,
    covariance_of,
    variance,
)
from wattmesh.policies.parallelism.training_rows import Tags

Array = NDArray[np.float64]

TRUST = 4.0
"""The most by which the variance of a trusted measurement grows."""

FREEDOM = 4.0
"""Degrees of freedom of the errors' distribution: heavy tails."""

SPREAD = 0.4
"""How far each logarithm of `Habits` may well be off what is expected."""


def learn(tags: Sequence[Tags], errors: Array, *, usual: float = 0.08, rounds: int = 40) -> Habits:
    """Learn how alike runs err: the most likely amplitudes (type II maximum likelihood).

    Args:
        tags: of n runs; of none, what is expected is given.
        errors: log(measured / predicted) of each; shape (n,).
        usual: where each amplitude is expected. Errors beyond five of it say nothing about how
            alike runs usually err.
        rounds: the most that the search may take.
    """
    centres = np.concatenate([np.full(AMPLITUDES, np.log(usual)), CENTRES[AMPLITUDES:]])
    if not tags:
        return Habits(logarithms=centres)
    pairs, count = compare(tags, tags), len(tags)
    clipped = np.clip(errors, -5 * usual, 5 * usual)

    def unlikely(logarithms: Array) -> tuple[float, Array]:
        matrix, slopes = covariance_and_slopes(pairs, logarithms)
        noise2 = np.exp(2 * logarithms[-1])
        matrix[np.diag_indices(count)] += noise2
        try:
            factor = cho_factor(matrix, lower=True)
        except np.linalg.LinAlgError:
            return float("inf"), np.zeros_like(logarithms)
        inverse = cho_solve(factor, np.eye(count))
        weights = inverse @ clipped
        off = (logarithms - centres) / SPREAD
        least = 0.5 * float(clipped @ weights) + float(np.log(np.diag(factor[0])).sum())
        along = 0.5 * (inverse - np.outer(weights, weights))
        slope = np.append(np.tensordot(slopes, along, axes=2), 2 * noise2 * np.trace(along))
        return least + 0.5 * float((off**2).sum()), slope + off / SPREAD

    found = minimize(unlikely, centres, jac=True, method="L-BFGS-B", options={"maxiter": rounds})
    return Habits(logarithms=found.x)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCorrection:
    """What to add to log(predicted) of some runs, and how sure that is; shape (n,) each."""

    log_ratio: Array
    deviation: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownErrors:
    """What was left over in measured runs, ready to correct others.

    Attributes:
        tags, errors: of the measured runs. `habits`: how alike they err.
        noise2: the variance of each measurement; greater where it is far from its neighbours.
    """

    tags: tuple[Tags, ...]
    errors: Array
    habits: Habits
    noise2: Array

    def correct(self, tags: Sequence[Tags]) -> ErrorCorrection:
        """Predict log(measured / predicted) of other runs, a measurement's noise included."""
        log, noise2 = self.habits.logarithms, self.habits.noise**2
        if not tags:
            return ErrorCorrection(log_ratio=np.zeros(0), deviation=np.zeros(0))
        every = variance(tags, log) + noise2
        if not self.tags:
            return ErrorCorrection(log_ratio=np.zeros(len(tags)), deviation=np.sqrt(every))
        known = covariance_of(self.tags, self.tags, log) + np.diag(self.noise2)
        factor = cho_factor(known, lower=True)
        across = covariance_of(tags, self.tags, log)
        left = every - (across * cho_solve(factor, across.T).T).sum(axis=1)
        return ErrorCorrection(
            log_ratio=across @ cho_solve(factor, self.errors),
            deviation=np.sqrt(np.maximum(left, noise2)),
        )


def observe(
    tags: Sequence[Tags], errors: Array, habits: Habits, *, trusted: int = 0, rounds: int = 8
) -> KnownErrors:
    """Take measured runs in.

    Args:
        tags: of n runs.
        errors: log(measured / predicted); shape (n,).
        habits: how alike runs err.
        trusted: so many of them, the last ones, never count less than with twice the usual noise,
            however far off they are.
        rounds: how often outliers are weighed anew.
    """
    noise2 = np.full(len(tags), habits.noise**2)
    if len(tags) > 0:
        matrix = covariance_of(tags, tags, habits.logarithms)
        for _ in range(rounds):
            weights = cho_solve(cho_factor(matrix + np.diag(noise2), lower=True), errors)
            left = errors - matrix @ weights
            noise2 = habits.noise**2 * (FREEDOM + left**2 / habits.noise**2) / (FREEDOM + 1)
            own = noise2[len(tags) - trusted :]
            np.minimum(own, TRUST * habits.noise**2, out=own)
    return KnownErrors(tags=tuple(tags), errors=np.asarray(errors), habits=habits, noise2=noise2)
