"""V8: final losses with and without switches are equivalent over seeds. Pure.

The absence of a significant difference does not show equivalence; two one-sided t-tests that both
reject "apart by the margin or more" do (Schuirmann 1987). Few seeds or much noise prove nothing.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from wattmesh.reconfig.equivalence.verdict import Verdict

ALPHA = 0.05
MARGIN_SHARE = 0.5
"""The margin, in standard deviations between seeds of the runs without switches."""

FEWEST_SEEDS = 5


def equivalent(
    switched: Mapping[int, float], alone: Mapping[int, float], *, margin: float | None = None
) -> Verdict:
    """V8: two one-sided tests on paired final losses.

    Args:
        switched: final loss by seed.
        alone: the same seeds, never switched.
        margin: of the difference; None: half the standard deviation between seeds of `alone`.
    """
    seeds = sorted(set(switched) & set(alone))
    if len(seeds) < FEWEST_SEEDS or set(switched) != set(alone):
        return _unproven(f"{len(seeds)} paired seeds, {FEWEST_SEEDS} are needed")
    if margin is None:
        margin = MARGIN_SHARE * statistics.stdev(alone[seed] for seed in seeds)
    apart = [switched[seed] - alone[seed] for seed in seeds]
    p = tost(apart, margin)
    return Verdict(
        check="V8",
        name="p of two one-sided tests",
        measured=p,
        limit=ALPHA,
        sentence=(
            f"final losses are apart by {statistics.fmean(apart):+.2e} on the mean of {len(seeds)} "
            f"seeds; that they are apart by {margin:.2e} or more has p = {p:.2g}"
        ),
    )


def tost(differences: Sequence[float], margin: float) -> float:
    """Return the p-value of two one-sided tests on pairs; 1.0 where they cannot be computed.

    Args:
        differences: at least two, one per pair.
        margin: above 0.
    """
    if len(differences) < 2 or not margin > 0 or not all(map(math.isfinite, differences)):
        return 1.0
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    freedom = len(differences) - 1
    return max(t_tail((mean + margin) / error, freedom), t_tail((margin - mean) / error, freedom))


def t_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t with `freedom` degrees exceeds `t`."""
    tail = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return tail if t >= 0 else 1.0 - tail


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(log_front + a * math.log(x) + b * math.log1p(-x)) / a
    fraction = 0.0
    for term in range(200, 0, -1):
        half = term // 2
        if term % 2:
            d = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            d = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        fraction = d / (1 + fraction)
    return front / (1 + fraction)


def _unproven(why: str) -> Verdict:
    return Verdict(
        check="V8",
        name="p of two one-sided tests",
        measured=1.0,
        limit=ALPHA,
        sentence=f"nothing is shown: {why}",
    )
