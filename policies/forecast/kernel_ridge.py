"""Kernel ridge regression on landmarks, of absolute errors, with predictions for left-out weeks.

A smooth function of many features, fitted in closed form: f(x) = mean + sum over landmarks z of
a_z exp(-|S (x - z)| / length), the Laplace kernel on a subset of the rows (Nystroem). `S` gives
more weight to features along which a first fit changes more (the root of its mean square slope,
after Radhakrishnan et al., "Mechanism of feature learning", Science 2024). Three rounds of weights
that fall with the error bring least squares near least absolute errors. Pure, numpy.

Invariant: the same rows give the same function; `left_out` of a row rests on other folds only, but
for the places of the landmarks and the scale of the features.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[Any]

LANDMARKS = 600
LENGTH = 3.0
"""Of the kernel, in standard deviations times the root of the number of features."""
PENALTY = 1e-5
"""Of the norm, per row."""
ROUNDS = 3
FAR = 4.0
"""Features are cut at so many standard deviations: nothing is learned beyond."""
LEAST_SHARE = 0.02
"""Weight of a feature without any slope against that of the steepest."""
CHUNK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """Mean and standard deviation of each feature; what is unknown becomes the mean."""

    mean: Array
    size: Array

    def __call__(self, x: Array) -> Array:
        """Give features in standard deviations, 0 where unknown."""
        told: Array = np.clip((x - self.mean) / self.size, -FAR, FAR)
        return np.where(np.isnan(told), 0.0, told)


def standard(x: Array) -> Standard:
    """Measure features over rows; a feature that never changes becomes 0 everywhere."""
    known = ~np.isnan(x)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, x, 0.0).sum(axis=0) / count
    size = np.sqrt(np.where(known, (x - mean) ** 2, 0.0).sum(axis=0) / count)
    return Standard(mean=mean, size=np.where(size > 1e-9, size, np.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRidge:
    """A fitted function of `features` columns.

    Attributes:
        standard: how features are scaled. scale: weight of each standardised feature.
        landmarks: scaled rows. coefficients: one for each. mean: of the target.
    """

    standard: Standard
    scale: Array
    landmarks: Array
    coefficients: Array
    mean: float

    def __call__(self, x: Array) -> Array:
        """Give the value for each row of `x`, shape (rows, features)."""
        told: Array = self.mean + (
            _kernel(self.standard(x) * self.scale, self.landmarks) @ self.coefficients
        )
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A function, and what functions fitted without a row's fold say of that row."""

    function: KernelRidge
    left_out: Array


def fit(
    x: Array, y: Array, weights: Array, folds: Indices, *, landmarks: int = LANDMARKS
) -> Fitted:
    """Fit a function to rows.

    Args:
        x: features, shape (rows, features), NaN where unknown.
        y: targets, finite.
        weights: how much each row counts, >= 0, not all zero.
        folds: the fold of each row, at least two; rows of one fold are left out together.
        landmarks: at most so many rows become landmarks.
    """
    scaled = standard(x)
    told = scaled(x)
    mean = float(np.average(y, weights=weights))
    rest = y - mean
    # Strided rows would all lie at the same hours of the day.
    chosen = np.random.default_rng(len(y)).permutation(np.flatnonzero(weights > 0))[:landmarks]
    found = told[chosen]
    gram, side = _sums(_kernel(told, found), rest, weights)
    scale = _scale(found, _solved(gram, side, _kernel(found, found), weights))
    found = found * scale
    near, among = _kernel(told * scale, found), _kernel(found, found)
    now = weights
    for _ in range(ROUNDS - 1):
        off = np.abs(rest - near @ _solved(*_sums(near, rest, now), among, weights))
        usual = 1.5 * float(np.median(off[weights > 0]))
        now = weights * np.minimum(1.0, usual / np.maximum(off, 1e-9))
    coefficients, left_out = _folded(near, rest, now, among=among, weights=weights, folds=folds)
    function = KernelRidge(
        standard=scaled, scale=scale, landmarks=found, coefficients=coefficients, mean=mean
    )
    return Fitted(function=function, left_out=mean + left_out)


def _folded(
    near: Array, rest: Array, now: Array, *, among: Array, weights: Array, folds: Indices
) -> tuple[Array, Array]:
    """Solve with all rows, and once without each fold: coefficients, values of left-out rows."""
    parts = [np.flatnonzero(folds == fold) for fold in np.unique(folds)]
    sums = [_sums(near[part], rest[part], now[part]) for part in parts]
    gram, side = sum(each[0] for each in sums), sum(each[1] for each in sums)
    left_out = np.empty(len(rest))
    for part, (less_gram, less_side) in zip(parts, sums, strict=True):
        others = np.delete(weights, part)
        told = _solved(gram - less_gram, side - less_side, among, others)
        left_out[part] = near[part] @ told
    return _solved(np.asarray(gram), np.asarray(side), among, weights), left_out


def _kernel(rows: Array, landmarks: Array) -> Array:
    """Laplace kernel of scaled rows and landmarks, shape (rows, landmarks)."""
    length = LENGTH * np.sqrt(landmarks.shape[1])
    squares = (landmarks**2).sum(axis=1)
    told = np.empty((len(rows), len(landmarks)))
    for first in range(0, len(rows), CHUNK):
        part = rows[first : first + CHUNK]
        here = told[first : first + CHUNK]
        # In place, in pieces that stay in the processor's cache: each step would wait for memory.
        np.matmul(part, -2.0 * landmarks.T, out=here)
        here += (part**2).sum(axis=1)[:, None]
        here += squares
        np.maximum(here, 1e-8, out=here)
        np.sqrt(here, out=here)
        here *= -1.0 / length
        np.exp(here, out=here)
    return told


def _sums(near: Array, rest: Array, weights: Array) -> tuple[Array, Array]:
    # A matrix times its own transpose takes half the work of two different ones.
    root = np.sqrt(weights)
    weighed = near * root[:, None]
    return weighed.T @ weighed, weighed.T @ (root * rest)


def _solved(gram: Array, side: Array, among: Array, weights: Array) -> Array:
    count = float(weights.sum())
    shrunk = gram + PENALTY * count * among + 1e-9 * count * np.eye(len(gram))
    return np.asarray(np.linalg.solve(shrunk, side), dtype=np.float64)


def _scale(landmarks: Array, coefficients: Array) -> Array:
    """Weigh features by the root of the mean slope of the function along each, at its landmarks."""
    apart = (landmarks**2).sum(axis=1)
    squares = apart[:, None] + apart - 2.0 * landmarks @ landmarks.T
    distance = np.sqrt(np.maximum(squares, 1e-6))
    length = LENGTH * np.sqrt(landmarks.shape[1])
    pull = np.exp(-distance / length) / (length * distance) * coefficients
    np.fill_diagonal(pull, 0.0)
    slopes = pull @ landmarks - landmarks * pull.sum(axis=1)[:, None]
    steep = np.sqrt(np.sqrt((slopes**2).mean(axis=0)))
    scale = steep / max(float(steep.max()), 1e-12) + LEAST_SHARE
    told: Array = scale * np.sqrt(len(scale) / (scale**2).sum())
    return told
