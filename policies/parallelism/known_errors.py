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

from wattmesh.policies.parallelism.training_rows import Tags

Array = NDArray[np.float64]

AMPLITUDES = 9
"""Ways in which two runs may err alike; see `_covariance`."""

TRUST = 4.0
"""The most by which the variance of a trusted measurement grows."""

FREEDOM = 4.0
"""Degrees of freedom of the errors' distribution: heavy tails."""

CENTRES = np.log(np.array([0.08] * AMPLITUDES + [1.5, 0.3, 0.04]))
SPREAD = 0.7
"""Where the logarithms of amplitudes, distance, years and noise are expected, and how far off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How alike runs err, learned once from many.

    Attributes:
        logarithms: of the amplitudes, the distance between layouts and the years between releases
            over which errors fade, and the noise of one measurement; shape (AMPLITUDES + 3,).
    """

    logarithms: Array

    @property
    def noise(self) -> float:
        """The standard deviation of one measurement's logarithm."""
        return float(np.exp(self.logarithms[-1]))


def _equal(one: Sequence[object], other: Sequence[object]) -> NDArray[np.bool_]:
    return np.asarray(
        np.array(one, dtype=object)[:, None] == np.array(other, dtype=object)[None, :], dtype=bool
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """How two lists of runs compare; arrays of shape (len(one), len(other))."""

    model: NDArray[np.bool_]
    gpu: NDArray[np.bool_]
    software: NDArray[np.bool_]
    number_format: NDArray[np.bool_]
    experts: NDArray[np.bool_]
    distance2: Array
    years: Array


def _compare(one: Sequence[Tags], other: Sequence[Tags]) -> _Pairs:
    here = np.array([each.place for each in one])
    there = np.array([each.place for each in other])
    released = np.array([each.release_years for each in one])
    released_there = np.array([each.release_years for each in other])
    squares = (here**2).sum(1)[:, None] + (there**2).sum(1)[None, :] - 2 * here @ there.T
    return _Pairs(
        model=_equal([each.model for each in one], [each.model for each in other]),
        gpu=_equal([each.gpu for each in one], [each.gpu for each in other]),
        software=_equal([each.software for each in one], [each.software for each in other]),
        number_format=_equal(
            [each.number_format for each in one], [each.number_format for each in other]
        ),
        experts=_equal([each.has_experts for each in one], [each.has_experts for each in other]),
        distance2=np.maximum(squares, 0.0),
        years=np.abs(released[:, None] - released_there[None, :]),
    )


def _covariance(pairs: _Pairs, logarithms: Array) -> Array:
    amplitude = np.exp(2 * logarithms[:AMPLITUDES])
    near = np.exp(-0.5 * pairs.distance2 / np.exp(2 * logarithms[AMPLITUDES]))
    recent = np.exp(-pairs.years / np.exp(logarithms[AMPLITUDES + 1]))
    stack = pairs.software & pairs.experts
    cluster = pairs.software & pairs.gpu & pairs.number_format
    alike = (
        stack & pairs.gpu,
        cluster & pairs.experts,
        pairs.model,
        pairs.model & pairs.gpu,
        near,
        near * (pairs.model & pairs.gpu),
        near * (pairs.model & cluster) * recent,
        (stack & pairs.number_format) * recent,
        (stack & pairs.number_format & pairs.model) * recent,
    )
    return sum(
        (size * each for size, each in zip(amplitude, alike, strict=True)), start=np.zeros(())
    )


def learn(tags: Sequence[Tags], errors: Array, *, usual: float = 0.08, rounds: int = 30) -> Habits:
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
    pairs, count = _compare(tags, tags), len(tags)
    clipped = np.clip(errors, -5 * usual, 5 * usual)

    def unlikely(logarithms: Array) -> float:
        matrix = _covariance(pairs, logarithms)
        matrix[np.diag_indices(count)] += np.exp(2 * logarithms[-1])
        try:
            lower = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return float("inf")
        whitened = np.linalg.solve(lower, clipped)
        prior = 0.5 * float((((logarithms - centres) / SPREAD) ** 2).sum())
        return 0.5 * float(whitened @ whitened) + float(np.log(np.diag(lower)).sum()) + prior

    found = minimize(unlikely, centres, method="L-BFGS-B", options={"maxiter": rounds})
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
        log = self.habits.logarithms
        every = float(np.exp(2 * log[:AMPLITUDES]).sum()) + self.habits.noise**2
        if not self.tags or not tags:
            return ErrorCorrection(
                log_ratio=np.zeros(len(tags)), deviation=np.full(len(tags), np.sqrt(every))
            )
        known = _covariance(_compare(self.tags, self.tags), log) + np.diag(self.noise2)
        factor = cho_factor(known, lower=True)
        across = _covariance(_compare(tags, self.tags), log)
        explained = (across * cho_solve(factor, across.T).T).sum(axis=1)
        return ErrorCorrection(
            log_ratio=across @ cho_solve(factor, self.errors),
            deviation=np.sqrt(np.maximum(every - explained, self.habits.noise**2)),
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
        matrix = _covariance(_compare(tags, tags), habits.logarithms)
        for _ in range(rounds):
            weights = cho_solve(cho_factor(matrix + np.diag(noise2), lower=True), errors)
            left = errors - matrix @ weights
            noise2 = habits.noise**2 * (FREEDOM + left**2 / habits.noise**2) / (FREEDOM + 1)
            own = noise2[len(tags) - trusted :]
            np.minimum(own, TRUST * habits.noise**2, out=own)
    return KnownErrors(tags=tuple(tags), errors=np.asarray(errors), habits=habits, noise2=noise2)
