"""V8: whether a point trains like the reference on the mean over random streams. Pure (numpy).

A seed is two launches with the same streams until the switch: one goes to the point, the other
stays in the reference's layout. From the same state both go on with masks of their own, so that
whatever differs on the mean over seeds is the layout's doing. Three things are compared:

    gradient   of the first step at the point
    state      parameters and optimizer slots one interval later
    losses     of all steps from the switch on

Each is a test of *equivalence*: it holds only where "apart by the margin or more" is rejected at
`alpha`. So few seeds, short launches and much noise never hold; they cannot tell. All must hold,
hence a point that is apart by a margin in any of them passes with a probability of `alpha`, by
simulation: of up to 0.07 where a mask's noise lies in a dozen directions or more, of 0.12 where it
lies in two or three (tests/equivalence/test_seeds.py). Who looks again with more seeds gets half of
it each time, so that all looks together stay below twice.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wattmesh.reconfig.equivalence.checks.trials import (
    ALPHA,
    FEWEST_SEEDS,
    MARGIN_SHARE,
    t_tail,
    tost,
)
from wattmesh.reconfig.equivalence.verdict import Verdict

MARGIN = 0.25
"""Of the mean gradient's norm, of the mean change of the parameters, of the mean slots."""

MOST_SEEDS = 64

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPair:
    """What the two launches of one seed measured.

    Attributes:
        found, reference: by quantity ("gradient", "parameters", a slot's name), one vector each, of
            the same elements in all seeds; of `parameters` the change since the switch.
        losses, reference_losses: by step, of the whole launches.
        since: the step of the switch to the point.
    """

    seed: int
    since: int
    found: Mapping[str, Vector]
    reference: Mapping[str, Vector]
    losses: Mapping[int, float]
    reference_losses: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanGap:
    """How far two means of vectors are apart, and how sure that is.

    Attributes:
        apart: the distance of the means over the norm of the reference's; nan: the latter is not
            known, being smaller than its noise.
        p: of the test that it is `MARGIN` or more. enough: seeds that would tell, about, if the
            means were equal; 0: not known.
    """

    apart: float
    p: float
    enough: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSeeds:
    """What seeds show.

    Attributes:
        differs: whether seeds show that the point is apart by more than a margin.
        enough: how many seeds would tell, about; 0: not known.
    """

    verdicts: tuple[Verdict, ...]
    differs: bool = False
    enough: int = 0

    @property
    def ok(self) -> bool:
        """Whether the point is alike on the mean."""
        return bool(self.verdicts) and all(each.ok for each in self.verdicts)


@dataclass(slots=True)
class _Found:
    alpha: float
    verdicts: list[Verdict] = field(default_factory=list)
    differs: bool = False
    enough: int = 0

    def add(self, name: str, p: float, sentence: str, enough: int) -> None:
        verdict = Verdict(check="V8", name=name, measured=p, limit=self.alpha, sentence=sentence)
        self.verdicts.append(verdict)
        if not verdict.ok:
            self.differs = self.differs or p > 1 - self.alpha
            self.enough = max(self.enough, enough)


def alpha_of(look: int) -> float:
    """Return the level of a look at the seeds; 0: the first."""
    return ALPHA / 2.0**look


def judge_seeds(pairs: Sequence[SeedPair], *, look: int = 0) -> JudgedSeeds:
    """Judge a point by its seeds; anything missing or no number holds nothing."""
    problem = _unusable(pairs)
    if problem:
        return JudgedSeeds(verdicts=(_nothing(problem),))
    found = _Found(alpha_of(look))
    for name in sorted(set().union(*(each.reference for each in pairs))):
        gap = mean_gap(
            np.stack([each.found[name] for each in pairs]),
            np.stack([each.reference[name] for each in pairs]),
        )
        sentence = (
            f"the mean {_words(name)} over {len(pairs)} seeds is apart by {_share(gap.apart)} from "
            f"the reference's; that it is {MARGIN:.0%} or more has p = {gap.p:.2g}"
        )
        found.add(f"mean {_words(name)}, p", gap.p, sentence, gap.enough)
    _compare_losses(pairs, found)
    return JudgedSeeds(verdicts=tuple(found.verdicts), differs=found.differs, enough=found.enough)


def mean_gap(found: Vector, reference: Vector) -> MeanGap:
    """Compare the means of two sets of vectors, a row per seed, paired.

    With `d = found - reference`, the mean of `<d_i, d_j>` over pairs of different seeds estimates
    `|E d|^2` without bias, and so for the reference (Chen and Qin 2010, *A two-sample test for
    high-dimensional data*). Their difference `MARGIN^2 |E r|^2 - |E d|^2` is held against its
    deviation: by the jackknife, or what it would be were the means apart by the margin, if that is
    more. The jackknife alone is too small just where the estimate is.
    """
    apart, own = _products(found - reference), _products(reference)
    count = len(found)
    squared, norm = _off_diagonal(apart), _off_diagonal(own)
    if not norm > 0:
        # Nothing to compare with: equal to the bit, as a counter of steps that is 0, or mere noise.
        return MeanGap(apart=math.nan, p=1.0 if np.any(apart) else 0.0, enough=0)
    limit = MARGIN**2 * norm
    error = max(_jackknife(MARGIN**2 * own - apart), _error_at(limit, apart))
    value = limit - squared
    p = 1.0
    if error == 0:
        p = 0.0 if value > 0 else 1.0
    elif math.isfinite(value / error):
        p = t_tail(value / error, count - 1)
    return MeanGap(
        apart=math.sqrt(max(0.0, squared) / norm),
        p=p,
        enough=_enough(count, error, limit, falls=1.0),
    )


def _compare_losses(pairs: Sequence[SeedPair], found: _Found) -> None:
    """Test (TOST) that the mean losses differ by less than half the deviation between seeds."""
    differences = [
        statistics.fmean(each.losses[step] - each.reference_losses[step] for step in _steps(each))
        for each in pairs
    ]
    margin = MARGIN_SHARE * _spread(pairs)
    p = tost(differences, margin)
    mean, error = statistics.fmean(differences), _error(differences)
    count = min(len(_steps(each)) for each in pairs)
    sentence = (
        f"losses are apart by {mean:+.2e} on the mean of {len(pairs)} seeds and {count} steps or "
        f"more; that it is {margin:.2e} or more, half the deviation between seeds at one step, has "
        f"p = {p:.2g}"
    )
    found.add("mean loss, p", p, sentence, _enough(len(pairs), error, margin, falls=0.5))


def _spread(pairs: Sequence[SeedPair]) -> float:
    """Return the deviation of the reference's loss between seeds, at one step on the mean."""
    compared = set().union(*(_steps(each) for each in pairs))
    common = compared.intersection(*(each.reference_losses for each in pairs))
    if not common:
        return 0.0
    return math.sqrt(
        statistics.fmean(
            statistics.variance([each.reference_losses[step] for each in pairs])
            for step in sorted(common)
        )
    )


def _unusable(pairs: Sequence[SeedPair]) -> str:
    """Say what keeps seeds from being evidence; "" for nothing."""
    if len(pairs) < FEWEST_SEEDS:
        return f"{len(pairs)} seeds, {FEWEST_SEEDS} are needed"
    for each in pairs:
        told = _wrong_losses(each) or _wrong_vectors(each, pairs[0])
        if told:
            return told
    return _without_effect(pairs)


def _wrong_losses(pair: SeedPair) -> str:
    if not _steps(pair):
        return f"of seed {pair.seed} no step was logged in both launches"
    for step in _steps(pair):
        if not math.isfinite(pair.losses[step] + pair.reference_losses[step]):
            return f"with seed {pair.seed} the loss of step {step} is no finite number"
    return ""


def _wrong_vectors(each: SeedPair, first: SeedPair) -> str:
    if not each.reference or set(each.found) != set(each.reference):
        return f"of seed {each.seed} the gradient or the state was not caught in both launches"
    for name, vector in each.reference.items():
        other = first.reference.get(name)
        if other is None or not vector.shape == each.found[name].shape == other.shape:
            return f"with seed {each.seed} the {_words(name)} has other elements"
        if not (np.all(np.isfinite(vector)) and np.all(np.isfinite(each.found[name]))):
            return f"with seed {each.seed} the {_words(name)} holds what is no finite number"
    return ""


def _without_effect(pairs: Sequence[SeedPair]) -> str:
    """Say that a job ignores its seeds, in whole or in part."""
    curves: list[Mapping[int, float]] = []
    for each in pairs:
        if not any(_equal(each.reference_losses, other) for other in curves):
            curves.append(each.reference_losses)
    if len(curves) == len(pairs):
        return ""
    return (
        f"only {len(curves)} of {len(pairs)} seeds gave losses of their own, the others are equal "
        "to the last digit: the job sets its random streams itself, so they are no evidence"
    )


def _equal(one: Mapping[int, float], other: Mapping[int, float]) -> bool:
    return all(repr(one[step]) == repr(other[step]) for step in one.keys() & other.keys())


def _steps(pair: SeedPair) -> list[int]:
    both = pair.losses.keys() & pair.reference_losses.keys()
    return sorted(step for step in both if step > pair.since)


def _nothing(why: str) -> Verdict:
    return Verdict(
        check="V8", name="seeds", measured=1.0, limit=ALPHA, sentence=f"seeds show nothing: {why}"
    )


def _words(name: str) -> str:
    known = {"gradient": "gradient", "parameters": "change of the parameters"}
    return known.get(name, f"optimizer slot {name}")


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "an unknown share"


def _products(rows: Vector) -> Vector:
    return np.asarray(rows @ rows.T, dtype=np.float64)


def _off_diagonal(products: Vector) -> float:
    """Return the mean of all entries off the diagonal."""
    count = len(products)
    return float((products.sum() - np.trace(products)) / (count * (count - 1)))


def _jackknife(products: Vector) -> float:
    """Return the deviation of `_off_diagonal`, from its values without one row and column each."""
    count = len(products)
    off = products - np.diag(np.diag(products))
    rest = (off.sum() - 2 * off.sum(axis=1)) / ((count - 1) * (count - 2))
    return math.sqrt((count - 1) / count * float(np.sum((rest - rest.mean()) ** 2)))


def _error_at(limit: float, products: Vector) -> float:
    """Return the deviation of the estimate of a squared distance that equals `limit`.

    The noise across is that of all pairs, the noise along the distance that along the mean.
    """
    count, size = len(products), float(products.mean())
    along = products.mean(axis=1) / math.sqrt(size) if size > 0 else np.zeros(count)
    off = products - np.diag(np.diag(products))
    across = float((off**2).sum()) / (count * (count - 1))
    return math.sqrt(
        4 * limit * float(along.var(ddof=1)) / count + 2 * across / (count * (count - 1))
    )


def _error(differences: Sequence[float]) -> float:
    return statistics.stdev(differences) / math.sqrt(len(differences))


def _enough(count: int, error: float, margin: float, *, falls: float) -> int:
    """Return about how many seeds would do in four cases of five, if nothing is apart.

    Args:
        count: seeds that gave `error`.
        error: the deviation of an estimate that must stay below `margin`.
        margin: above 0; else nothing is known.
        falls: with which power of the number of seeds the deviation falls.
    """
    if not (margin > 0 and math.isfinite(error)):
        return 0
    times = math.pow(2.9 * error / margin, 1 / falls)
    return max(FEWEST_SEEDS, math.ceil(count * times))
