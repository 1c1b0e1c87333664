"""Joules per expert-token of one GPU, learned from the differences of its energy counter.

Over a span, a GPU's counter rises by `idle_w * seconds + joules_per_token * rows`. Recursive least
squares learns both, beginning from the offline sweep, and forgets towards that sweep: loads that
never vary say only what both are together, so what the sweep knew apart must not fade. At another
clock or power limit a GPU is another one: what was learned is dropped and the sweep counts again.
"""

import math
from dataclasses import dataclass, replace

from wattmesh.errors import InputInvalid

FORGET = 0.98
"""Weight of what was known when a new span comes in, the rest being the sweep's: some fifty spans
count."""

LEAST_SPREAD_SHARE = 1e-4
"""No meter is better than this share of a span's joules, one standard deviation."""

LEAST_SPAN_S = 30.0
"""Shorter spans are within the counter's own resolution of nothing (docs/energy.md)."""

SPREAD_SHARE = 0.02
"""One standard deviation of a span's joules about the line, as a share of them, to begin with."""


MOST = 1e15
"""Of joules per token, of watts, and of one over their deviations: squares stay within a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockAndLimit:
    """What a GPU's costs hold for. None: not locked, or not known."""

    clock_mhz: int | None = None
    limit_w: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpan:
    """What one GPU did between two readings of its counter.

    Attributes:
        rows: expert-tokens that it computed.
        simulated: whether the joules are from a simulated GPU.
    """

    seconds: float
    energy_j: float
    rows: float
    at: ClockAndLimit = ClockAndLimit()
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineSweep:
    """What a sweep of this kind of GPU measured, with standard deviations."""

    joules_per_token: float
    idle_w: float
    joules_per_token_deviation: float
    idle_w_deviation: float

    def __post_init__(self) -> None:
        """Refuse what no sweep can have measured.

        Raises:
            InputInvalid: a number is negative, not finite or beyond `MOST`, or a deviation is 0.
        """
        numbers = (self.joules_per_token, self.idle_w)
        deviations = (self.joules_per_token_deviation, self.idle_w_deviation)
        if not all(0 <= each <= MOST for each in numbers):
            raise InputInvalid(f"a sweep of {numbers} J per token and W is not possible")
        if not all(1 / MOST <= each <= MOST for each in deviations):
            raise InputInvalid(
                f"deviations of a sweep must be above 0, from {1 / MOST:g} on, not {deviations}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCost:
    """What is known of one GPU.

    Attributes:
        estimate: joules per token and idle W as least squares have them, below 0 too.
        covariance: of both, in units of the noise's variance: (token, token), (token, idle),
            (idle, idle).
        noise_j2: variance of a span's joules about the estimate.
        spans: that were learned from since the last reset.
        sweep: where a reset goes back to.
        dropped: sentences about spans that were not used, the newest last.
    """

    estimate: tuple[float, float]
    covariance: tuple[float, float, float]
    noise_j2: float
    spans: int
    at: ClockAndLimit
    simulated: bool
    sweep: OfflineSweep
    dropped: str = ""

    @property
    def joules_per_token(self) -> float:
        """Joules of a row above idle, never below 0."""
        return 0.0 if self.estimate[0] < 0 else self.estimate[0]

    @property
    def idle_w(self) -> float:
        """Watts without rows, never below 0."""
        return 0.0 if self.estimate[1] < 0 else self.estimate[1]

    @property
    def variance(self) -> float:
        """Variance of `joules_per_token`: of the sweep until the first span."""
        if self.spans == 0:
            return self.sweep.joules_per_token_deviation**2
        return self.covariance[0] * self.noise_j2


def begin(sweep: OfflineSweep, at: ClockAndLimit, *, simulated: bool = False) -> TokenCost:
    """Begin with what the sweep measured."""
    return TokenCost(
        estimate=(sweep.joules_per_token, sweep.idle_w),
        covariance=(0.0, 0.0, 0.0),
        noise_j2=0.0,
        spans=0,
        at=at,
        simulated=simulated,
        sweep=sweep,
    )


def learned(known: TokenCost, span: CounterSpan) -> TokenCost:
    """Learn from one span; what cannot be used is dropped with a sentence, never learned."""
    reason = unusable(span)
    if reason:
        return replace(known, dropped=reason)
    if span.at != known.at or span.simulated != known.simulated:
        known = begin(known.sweep, span.at, simulated=span.simulated)
    rows, seconds = span.rows, span.seconds
    expected_j = known.estimate[0] * rows + known.estimate[1] * seconds
    known = _with_prior(known, expected_j) if known.spans == 0 else _forgetting(known, expected_j)
    expected_j = known.estimate[0] * rows + known.estimate[1] * seconds
    a, b, c = known.covariance
    along = (a * rows + b * seconds, b * rows + c * seconds)
    spread = 1.0 + rows * along[0] + seconds * along[1]
    gain = (along[0] / spread, along[1] / spread)
    miss_j = span.energy_j - expected_j
    # The share of the miss that the line's own uncertainty does not explain.
    least_j = LEAST_SPREAD_SHARE * span.energy_j
    own_j2 = max(miss_j * miss_j / spread, least_j * least_j)
    weight = max(1.0 - FORGET, 1.0 / (known.spans + 2))
    newer = replace(
        known,
        estimate=(known.estimate[0] + gain[0] * miss_j, known.estimate[1] + gain[1] * miss_j),
        covariance=(a - gain[0] * along[0], b - gain[0] * along[1], c - gain[1] * along[1]),
        noise_j2=(1 - weight) * known.noise_j2 + weight * own_j2,
        spans=known.spans + 1,
        dropped="",
    )
    if _sound(newer.covariance) and math.isfinite(newer.estimate[0] + newer.estimate[1]):
        return newer
    return replace(
        begin(known.sweep, known.at, simulated=known.simulated),
        dropped="its numbers are beyond what can be computed with; it begins at the sweep again",
    )


def unusable(span: CounterSpan) -> str:
    """Say why a span teaches nothing; "" where it does."""
    for name in ("seconds", "energy_j", "rows"):
        value = getattr(span, name)
        if not (math.isfinite(value) and value >= 0):
            return f"{name} of a counter's span is {value}, not 0 or more"
    if span.seconds < LEAST_SPAN_S:
        return f"a span of {span.seconds:g} s is shorter than {LEAST_SPAN_S:g} s"
    if span.energy_j == 0:
        return "the counter did not move: it is frozen, or the GPU was off"
    return ""


def _forgetting(known: TokenCost, expected_j: float) -> TokenCost:
    """Let what was learned fade, and the sweep take its place.

    Information (the inverse of a covariance) of what was learned counts `FORGET`, that of the sweep
    the rest; both in units of the noise's variance.
    """
    a, b, c = known.covariance
    size = a * c - b * b
    token, both, idle = FORGET * c / size, -FORGET * b / size, FORGET * a / size
    sweep = known.sweep
    rest = (1.0 - FORGET) * known.noise_j2
    token_rest = rest / sweep.joules_per_token_deviation**2
    idle_rest = rest / sweep.idle_w_deviation**2
    pull = (
        token * known.estimate[0] + both * known.estimate[1] + token_rest * sweep.joules_per_token,
        both * known.estimate[0] + idle * known.estimate[1] + idle_rest * sweep.idle_w,
    )
    token, idle = token + token_rest, idle + idle_rest
    size = token * idle - both * both
    if not size > 0:
        # Rounding has eaten what kept the two apart.
        anew = begin(sweep, known.at, simulated=known.simulated)
        return _with_prior(anew, expected_j)
    covariance = (idle / size, -both / size, token / size)
    return replace(
        known,
        covariance=covariance,
        estimate=(
            covariance[0] * pull[0] + covariance[1] * pull[1],
            covariance[1] * pull[0] + covariance[2] * pull[1],
        ),
    )


def _sound(covariance: tuple[float, float, float]) -> bool:
    """Return whether it is one: finite, and no direction without uncertainty."""
    a, b, c = covariance
    return math.isfinite(a + b + c) and a > 0 and c > 0 and a * c - b * b > 0


def _with_prior(known: TokenCost, expected_j: float) -> TokenCost:
    """Put the sweep's deviations into units of the noise that is expected at first."""
    spread_j = SPREAD_SHARE * expected_j
    noise_j2 = max(spread_j * spread_j, 1e-12)
    return replace(
        known,
        covariance=(
            known.sweep.joules_per_token_deviation**2 / noise_j2,
            0.0,
            known.sweep.idle_w_deviation**2 / noise_j2,
        ),
        noise_j2=noise_j2,
    )
