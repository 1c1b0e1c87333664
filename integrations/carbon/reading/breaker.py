"""A circuit breaker: stops requests to a failing provider, then tries again with one.

Closed: every poll is made. After `failures` failed polls in a row it opens: no poll for `rest_s`,
which doubles after each failed probe, up to `most_rest_s`. Then it is half-open: one probe is made,
and its result closes or opens it.

Pure: `now_s` is of any monotonic clock. Invariant: an open breaker permits no request before its
rest is over, a half-open one permits exactly one, and a success closes it from any state.
"""

from dataclasses import dataclass, replace
from enum import StrEnum


class BreakerState(StrEnum):
    """What happens to the next poll."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The immutable state of one provider's breaker.

    Attributes:
        failures: number of failed polls in a row that open it, >= 1.
        rest_s, most_rest_s: first and longest rest.
        failed: failed polls in a row so far.
        opens_until_s: end of the rest; None while closed.
        probing: the probe of a half-open breaker is under way.
    """

    failures: int = 4
    rest_s: float = 120.0
    most_rest_s: float = 900.0
    failed: int = 0
    opens_until_s: float | None = None
    probing: bool = False

    def state(self, now_s: float) -> BreakerState:
        """Return its state at `now_s`."""
        if self.opens_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.opens_until_s else BreakerState.HALF_OPEN

    def wait_s(self, now_s: float) -> float:
        """Return the rest of the rest; 0 when a poll may be made."""
        return max(0.0, (self.opens_until_s or now_s) - now_s)

    def begin_poll(self, now_s: float) -> "Breaker | None":
        """Return the breaker while a poll is under way; None when none may be made."""
        state = self.state(now_s)
        if state is BreakerState.OPEN or (state is BreakerState.HALF_OPEN and self.probing):
            return None
        return replace(self, probing=state is BreakerState.HALF_OPEN)

    def succeeded(self) -> "Breaker":
        """Return the breaker after an answer, even a refusal."""
        return replace(self, failed=0, opens_until_s=None, probing=False)

    def failed_at(self, now_s: float) -> "Breaker":
        """Return the breaker after a poll without a usable answer."""
        failed = self.failed + 1
        if failed < self.failures:
            return replace(self, failed=failed, probing=False)
        # Bound the exponent: a provider may be down for a year.
        doubled = self.rest_s * 2.0 ** min(failed - self.failures, 32)
        until_s = now_s + min(doubled, self.most_rest_s)
        return replace(self, failed=failed, opens_until_s=until_s, probing=False)
