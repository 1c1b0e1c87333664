"""Costs of a run's GPUs as the scores that its router gets.

Invariant: scores say nothing (all exactly 0) unless the GPUs are known to differ: where one is
missing, where real and simulated joules would be compared, or where the spread is no larger than
2 % or than what is not known of it. So a homogeneous group trains exactly as without, also while
one of its GPUs is late only because it got more rows.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattmesh.policies.experts.costs import TokenCost

LEAST_SPREAD = 0.02
"""Of the mean: GPUs that differ by less are the same."""

MOST = 2.0
"""Deviations from the mean; one strange GPU does not rule the router."""

ERRORS = 2.0
"""A spread is known where it exceeds so many standard errors of the costs."""

LATEST = 0.98
"""Of the slowest GPU's time: who takes more is a straggler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """How long one GPU takes for its rows of a layer, and what the group idles meanwhile.

    Attributes:
        seconds: of its rows. `seconds_per_token`: of one more.
    """

    seconds: float
    seconds_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One score for each GPU, and why they are all 0; "" where they are not.

    Attributes:
        close: whether they are 0 only because the GPUs differ too little, or are not known well
            enough: the next span may say otherwise.
        error: standard error of a score, in deviations; 0 where they are 0.
    """

    by_gpu: Mapping[str, float]
    neutral_because: str
    close: bool = False
    error: float = 0.0


def scored(
    gpus: Sequence[str],
    costs: Mapping[str, TokenCost],
    *,
    times: Mapping[str, GpuTime] | None = None,
) -> Scores:
    """Score the GPUs of one run: (cost - mean) / deviation, within +-2.

    Args:
        gpus: that the run uses, each once.
        costs: of each; more are ignored.
        times: of each, for the straggler term: one more row on the GPU that all wait for also
            costs the idle power of the whole group. Left out where one is missing.
    """
    reason = next(_unknown(gpus, costs), "")
    if reason:
        return _neutral(gpus, reason)
    error = math.sqrt(math.fsum(costs[gpu].variance for gpu in gpus) / len(gpus))
    joules = [costs[gpu].joules_per_token for gpu in gpus]
    late = _straggler_j(gpus, costs, times or {})
    close = _too_close(joules, error)
    if any(late.values()) and not (close and _as_fast(gpus, times or {}, late)):
        joules = [each + late[gpu] for each, gpu in zip(joules, gpus, strict=True)]
        close = _too_close(joules, error)
    if close:
        return replace(_neutral(gpus, close), close=True)
    mean, deviation = math.fsum(joules) / len(joules), statistics.pstdev(joules)
    values = ((each - mean) / deviation for each in joules)
    clipped = [max(-MOST, min(MOST, each)) for each in values]
    by_gpu = dict(zip(gpus, clipped, strict=True))
    return Scores(by_gpu=by_gpu, neutral_because="", error=error / deviation)


def _unknown(gpus: Sequence[str], costs: Mapping[str, TokenCost]) -> Iterator[str]:
    """Say why these costs cannot be compared, if they cannot."""
    if len(gpus) < 2:
        yield "a single GPU has nobody to differ from"
    if len(set(gpus)) < len(gpus):
        yield "a GPU is named twice"
    missing = [gpu for gpu in gpus if gpu not in costs]
    if missing:
        yield f"the cost of {len(missing)} of {len(gpus)} GPUs is not known"
    known = [costs[gpu] for gpu in gpus if gpu in costs]
    numbers = [number for each in known for number in (each.joules_per_token, each.variance)]
    if not all(map(math.isfinite, numbers)):
        yield "the cost of a GPU is not a number"
    if any(each < 0 for each in numbers):
        yield "what is not known of a GPU's cost is negative"
    if len({each.simulated for each in known}) > 1:
        yield "some GPUs are real and some simulated"


def _too_close(joules: Sequence[float], error: float) -> str:
    """Say why these are not known to differ; "" where they are. `error`: standard, of one."""
    mean, deviation = math.fsum(joules) / len(joules), statistics.pstdev(joules)
    if mean <= 0 or deviation < LEAST_SPREAD * mean:
        share = deviation / mean if mean > 0 else 0.0
        return f"the GPUs cost the same: they differ by {share:.2%}"
    if deviation < ERRORS * error:
        return (
            f"the GPUs differ by {deviation / mean:.1%}, known to {ERRORS * error / mean:.1%} only"
        )
    return ""


def _as_fast(gpus: Sequence[str], times: Mapping[str, GpuTime], late: Mapping[str, float]) -> bool:
    """Return whether late GPUs only had more rows: none of them is slower than the others."""
    early = [times[gpu].seconds_per_token for gpu in gpus if not late[gpu]]
    most = (1 + LEAST_SPREAD) * math.fsum(early) / max(1, len(early))
    return all(times[gpu].seconds_per_token <= most for gpu in gpus if late[gpu])


def _straggler_j(
    gpus: Sequence[str], costs: Mapping[str, TokenCost], times: Mapping[str, GpuTime]
) -> dict[str, float]:
    """Joules that the group idles for one more row on a GPU that all wait for."""
    told = [times[gpu] for gpu in gpus if gpu in times]
    usable = all(
        math.isfinite(each.seconds + each.seconds_per_token)
        and min(each.seconds, each.seconds_per_token) >= 0
        for each in told
    )
    if len(told) < len(gpus) or not usable:
        return dict.fromkeys(gpus, 0.0)
    latest = max(each.seconds for each in told)
    late = [gpu for gpu in gpus if times[gpu].seconds >= LATEST * latest]
    if len(late) == len(gpus):
        return dict.fromkeys(gpus, 0.0)
    idle_w = math.fsum(costs[gpu].idle_w for gpu in gpus)
    # Late GPUs share the wait: one more row on each of them delays the group once.
    return {
        gpu: idle_w * times[gpu].seconds_per_token / len(late) if gpu in late else 0.0
        for gpu in gpus
    }


def _neutral(gpus: Sequence[str], reason: str) -> Scores:
    return Scores(by_gpu=dict.fromkeys(gpus, 0.0), neutral_because=reason)
