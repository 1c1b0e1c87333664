"""How alike two runs err: the covariance of log(measured / predicted). Pure.

A sum of ways in which two runs may have their error in common, each with a size of its own: what
they share (model, GPU, software, number format), how near their layouts are, how far apart their
releases, and how much of a step either spends in each phase (an error of communication shows in
proportion to the time spent in it). Positive semidefinite by construction: products and sums of
covariances are ones (Rasmussen and Williams 2006, 4.2.4).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.parallelism.hardware import CLASSES, GENERATIONS
from wattmesh.policies.parallelism.step_time import StepTime
from wattmesh.policies.parallelism.training_rows import PHASES, Tags

Array = NDArray[np.float64]

SHARED = 9
"""Ways to err alike that do not depend on phases; see `_ways`."""

AMPLITUDES = SHARED + 3 * PHASES

DIRECTIONS = ((0,), (1,), (2, 3), (4,), (5,), (6,), (7,), (8,), (9, 10), (11, 12))
"""Entries of `Tags.place` that have one length in common over which errors fade."""

LENGTHS = len(DIRECTIONS)
SIZE = AMPLITUDES + LENGTHS + 2

AT_ONCE = 256
"""Runs that are compared together: a comparison takes 31 numbers for each pair."""

CENTRES = np.log(np.array([0.08] * AMPLITUDES + [1.5] * LENGTHS + [0.3, 0.04]))
"""Where the logarithms are expected: amplitudes, lengths, years, and the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How alike runs err, learned once from many.

    Attributes:
        logarithms: of the amplitudes, the lengths over which errors fade with the distance between
            layouts, the years between releases over which they do, and the noise of one
            measurement; shape (SIZE,).
    """

    logarithms: Array

    @property
    def noise(self) -> float:
        """The standard deviation of one measurement's logarithm."""
        return float(np.exp(self.logarithms[-1]))


def with_phases(tags: Sequence[Tags], time: StepTime) -> tuple[Tags, ...]:
    """Tell runs what share of a predicted step they spend in each phase; `time`: of n steps."""
    parts = (time.products_s, time.memory_s, time.exposed_s, time.waiting_s)
    each = np.stack([np.broadcast_to(np.asarray(part), (len(tags),)) for part in parts], axis=1)
    shares = each / each.sum(axis=1, keepdims=True)
    return tuple(
        replace(one, phases=tuple(share)) for one, share in zip(tags, shares.tolist(), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How two lists of runs compare.

    Attributes:
        shared: what depends on no length, for each amplitude; shape (AMPLITUDES, one, other).
        distance2: squares of distances between layouts; shape (LENGTHS, one, other).
        years: between releases; shape (one, other).
    """

    shared: Array
    distance2: Array
    years: Array


FADES_WITH_PLACE = (4, 5, 6)
FADES_WITH_YEARS = (6, 7, 8, *range(AMPLITUDES - PHASES, AMPLITUDES))
"""Amplitudes whose errors fade with the distance between layouts, and with years."""


def _ways(one: Sequence[Tags], other: Sequence[Tags]) -> Iterator[Array]:
    """Give what two runs share in each way, in the order of the amplitudes."""

    def equal(name: str) -> NDArray[np.bool_]:
        here, there = ([getattr(each, name) for each in tags] for tags in (one, other))
        codes = {value: code for code, value in enumerate(dict.fromkeys([*here, *there]))}
        left, right = (np.array([codes[each] for each in tags]) for tags in (here, there))
        return np.asarray(left[:, None] == right[None, :])

    model, gpu, software = equal("model"), equal("gpu"), equal("software")
    number_format = equal("number_format")
    stack = software & equal("has_experts")
    cluster = software & gpu & number_format
    first, second = (np.array([_generation(each.gpu) for each in tags]) for tags in (one, other))
    generation = first[:, None] == second[None, :]
    yield from (
        (stack & gpu).astype(np.float64),
        (cluster & stack).astype(np.float64),
        model.astype(np.float64),
        (model & gpu).astype(np.float64),
        np.ones(model.shape),
        (model & gpu).astype(np.float64),
        (model & cluster).astype(np.float64),
        (stack & number_format).astype(np.float64),
        (stack & number_format & model).astype(np.float64),
    )
    here, there = (np.array([each.phases for each in tags]) for tags in (one, other))
    for what in (gpu & software, model, software & generation & number_format):
        for phase in range(PHASES):
            yield np.outer(here[:, phase], there[:, phase]) * what


def _generation(gpu: str) -> int:
    known = CLASSES.get(gpu)
    return GENERATIONS.index(known.generation) if known else -1


def compare(one: Sequence[Tags], other: Sequence[Tags]) -> Comparison:
    """Compare each of some runs with each of others; neither list is empty."""
    here, there = (np.array([each.place for each in tags]) for tags in (one, other))
    squares = np.array(
        [
            sum((here[:, None, at] - there[None, :, at]) ** 2 for at in direction)
            for direction in DIRECTIONS
        ]
    )
    released, other_released = (
        np.array([each.release_years for each in tags]) for tags in (one, other)
    )
    return Comparison(
        shared=np.array(list(_ways(one, other))),
        distance2=squares,
        years=np.abs(released[:, None] - other_released[None, :]),
    )


def _faded(pairs: Comparison, logarithms: Array) -> tuple[Array, Array, Array]:
    """Give each way's covariance, the distance, and its part in each direction."""
    lengths = logarithms[AMPLITUDES : AMPLITUDES + LENGTHS]
    parts = pairs.distance2 * np.exp(-2 * lengths)[:, None, None]
    distance = np.sqrt(parts.sum(axis=0))
    ways = pairs.shared * np.exp(2 * logarithms[:AMPLITUDES])[:, None, None]
    ways[list(FADES_WITH_PLACE)] *= np.exp(-distance)
    ways[list(FADES_WITH_YEARS)] *= np.exp(-pairs.years / np.exp(logarithms[-2]))
    return ways, distance, parts


def covariance(pairs: Comparison, logarithms: Array) -> Array:
    """Give the covariance of errors, without noise; shape (one, other)."""
    return np.asarray(_faded(pairs, logarithms)[0].sum(axis=0))


def covariance_of(one: Sequence[Tags], other: Sequence[Tags], logarithms: Array) -> Array:
    """Compare runs and give their covariance, `AT_ONCE` of the first at a time."""
    parts = [one[begin : begin + AT_ONCE] for begin in range(0, len(one), AT_ONCE)]
    return np.concatenate([covariance(compare(part, other), logarithms) for part in parts])


def covariance_and_slopes(pairs: Comparison, logarithms: Array) -> tuple[Array, Array]:
    """Give the covariance, and how it changes with each logarithm but that of the noise.

    Returns:
        Arrays of shape (one, other) and (SIZE - 1, one, other).
    """
    ways, distance, parts = _faded(pairs, logarithms)
    placed = ways[list(FADES_WITH_PLACE)].sum(axis=0)
    with_length = placed * parts / np.maximum(distance, 1e-12)
    recent = ways[list(FADES_WITH_YEARS)].sum(axis=0) * pairs.years / np.exp(logarithms[-2])
    return ways.sum(axis=0), np.concatenate([2 * ways, with_length, recent[None]])


def variance(tags: Sequence[Tags], logarithms: Array) -> Array:
    """Give the variance of each run's error, without noise; shape (n,)."""
    size = np.exp(2 * logarithms[:AMPLITUDES])
    phases = np.array([each.phases for each in tags])
    return np.asarray(
        size[:SHARED].sum() + phases**2 @ size[SHARED:].reshape(3, PHASES).sum(axis=0)
    )
