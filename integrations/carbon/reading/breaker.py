"""Leaves a provider alone that keeps failing, and asks again with one request.

Closed, every poll goes out. After `failures` failed polls in a row it opens: nothing is asked for
`rest_s`, twice as long after each failed probe, at most `most_rest_s`. Then it is half-open: one
probe goes out, and its outcome closes or opens it.

Pure: `now_s` is any clock that never runs backwards. Invariant: an open breaker lets no request
through before its rest is over, a half-open one lets exactly one through, and a success closes it
from any state.
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
    """One provider's breaker; every change gives a new one.

    Attributes:
        failures: so many failed polls in a row open it, >= 1.
        rest_s: first rest; `most_rest_s`: the longest.
        failed: failed polls in a row until now.
        opens_until_s: end of the rest; None while closed.
        probing: the one probe of a half-open breaker is under way.
    """

    failures: int = 4
    rest_s: float = 120.0
    most_rest_s: float = 900.0
    failed: int = 0
    opens_until_s: float | None = None
    probing: bool = False

    def state(self, now_s: float) -> BreakerState:
        """Say what happens to a poll at `now_s`."""
        if self.opens_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now_s < self.opens_until_s else BreakerState.HALF_OPEN

    def wait_s(self, now_s: float) -> float:
        """Give how long the rest still lasts; 0 when a poll may go out."""
        return max(0.0, (self.opens_until_s or now_s) - now_s)

    def asked(self, now_s: float) -> "Breaker | None":
        """Give the breaker while a poll is under way; None when none may go out now."""
        state = self.state(now_s)
        if state is BreakerState.OPEN or (state is BreakerState.HALF_OPEN and self.probing):
            return None
        return replace(self, probing=state is BreakerState.HALF_OPEN)

    def succeeded(self) -> "Breaker":
        """Give the breaker after the provider answered, be it with a refusal."""
        return replace(self, failed=0, opens_until_s=None, probing=False)

    def failed_at(self, now_s: float) -> "Breaker":
        """Give the breaker after a poll that got no usable answer."""
        failed = self.failed + 1
        if failed < self.failures:
            return replace(self, failed=failed, probing=False)
        # The exponent is bounded: a provider may be away for a year.
        doubled = self.rest_s * 2.0 ** min(failed - self.failures, 32)
        until_s = now_s + min(doubled, self.most_rest_s)
        return replace(self, failed=failed, opens_until_s=until_s, probing=False)
