"""Which scores a run is told, and when they count as new. Pure.

Invariant: routers are not moved by noise. Scores that move by less than a tenth of a deviation, or
than twice their error, are the ones before; and whether GPUs differ at all changes only after
`IN_A_ROW` spans that say so. The version rises with every change, also over a daemon's restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wattmesh.policies.experts.scores import ERRORS, Scores

LEAST_MOVE = 0.1
"""In deviations, of any one GPU."""

IN_A_ROW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScores:
    """What a run is told; see `ExpertCostScores`."""

    version: int
    strength: float
    by_gpu: Mapping[str, float]
    neutral_because: str
    stopped: bool = False
    renewal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What a run is told, and how sure it is to stay.

    Attributes:
        told: None before the first.
        spans: in a row that said other than `told` of whether GPUs differ.
    """

    told: PublishedScores | None = None
    spans: int = 0


def learned_more(before: Telling, scores: Scores) -> Telling:
    """Count a new span, after which the scores are these."""
    turns = before.told is not None and _turns(before.told, scores)
    return replace(before, spans=before.spans + 1 if turns else 0)


def telling(
    before: Telling,
    scores: Scores,
    strength: float,
    now_s: float,
    *,
    stopped: bool = False,
    renews: bool = False,
) -> Telling:
    """Give what is told from now on: the same object where nothing counts as new.

    Scores that are 0 for another reason than closeness (a GPU is missing, some are simulated) count
    at once.
    """
    old = before.told
    if old is not None and _turns(old, scores) and before.spans < IN_A_ROW:
        sudden = bool(scores.neutral_because) and not scores.close
        if not sudden and old.by_gpu.keys() == scores.by_gpu.keys():
            scores = Scores(by_gpu=old.by_gpu, neutral_because=old.neutral_because)
    told = published(old, scores, strength, now_s, stopped=stopped, renews=renews)
    return before if told is old else Telling(told=told)


def _turns(told: PublishedScores, scores: Scores) -> bool:
    return bool(told.neutral_because) != bool(scores.neutral_because)


def published(
    before: PublishedScores | None,
    scores: Scores,
    strength: float,
    now_s: float,
    *,
    stopped: bool = False,
    renews: bool = False,
) -> PublishedScores:
    """Give what is told from now on: the same object where nothing counts as new.

    Args:
        before: what was told last; None: nothing.
        scores: of the run's GPUs now.
        strength: that is wanted now.
        now_s: wall time, in seconds; the first version of a daemon is above all of the ones before
            it, as they rise by less than one a second.
        stopped: whether quality has stopped the lean for good.
        renews: whether experts are to take the scores of the GPUs that they lie on now.
    """
    by_gpu = scores.by_gpu
    if before is not None and _alike(before, scores):
        if (strength, stopped, renews) == (before.strength, before.stopped, False):
            return before
        by_gpu = before.by_gpu  # another strength is no reason to move them by noise
    version = max(before.version + 1 if before else 1, int(now_s))
    return PublishedScores(
        version=version,
        strength=strength,
        by_gpu=dict(by_gpu),
        neutral_because=scores.neutral_because,
        stopped=stopped,
        renewal=(before.renewal if before else 0) + int(renews),
    )


def _alike(before: PublishedScores, scores: Scores) -> bool:
    if before.by_gpu.keys() != scores.by_gpu.keys():
        return False
    neutral = bool(scores.neutral_because)
    if neutral or before.neutral_because:
        return neutral == bool(before.neutral_because)
    moves = (abs(scores.by_gpu[gpu] - each) for gpu, each in before.by_gpu.items())
    return max(moves, default=0.0) < max(LEAST_MOVE, ERRORS * scores.error)
