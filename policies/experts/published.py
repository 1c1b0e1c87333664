"""Which scores a run is told, and when they count as new. Pure.

Invariant: scores that move by less than a tenth of a deviation are the ones before, so that routers
are not moved by noise; the version rises with every change, also over a restart of the daemon.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from wattmesh.policies.experts.scores import Scores

LEAST_MOVE = 0.1
"""In deviations, of any one GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScores:
    """What a run is told; see `ExpertCostScores`."""

    version: int
    strength: float
    by_gpu: Mapping[str, float]
    neutral_because: str


def published(
    before: PublishedScores | None, scores: Scores, strength: float, now_s: float
) -> PublishedScores:
    """Give what is told from now on: the same object where nothing counts as new.

    Args:
        before: what was told last; None: nothing.
        scores: of the run's GPUs now.
        strength: that is wanted now.
        now_s: wall time, in seconds; the first version of a daemon is above all of the ones before
            it, as they rise by less than one a second.
    """
    if before is not None and strength == before.strength and _alike(before, scores):
        return before
    version = max(before.version + 1 if before else 1, int(now_s))
    return PublishedScores(
        version=version,
        strength=strength,
        by_gpu=dict(scores.by_gpu),
        neutral_because=scores.neutral_because,
    )


def _alike(before: PublishedScores, scores: Scores) -> bool:
    if before.by_gpu.keys() != scores.by_gpu.keys():
        return False
    neutral = bool(scores.neutral_because)
    if neutral or before.neutral_because:
        return neutral == bool(before.neutral_because)
    moves = (abs(scores.by_gpu[gpu] - each) for gpu, each in before.by_gpu.items())
    return max(moves, default=0.0) < LEAST_MOVE
