"""How long nodes that were given back take to return, from the waits that were measured. Pure."""

from collections.abc import Sequence

SHARE = 0.95

FEWEST = 19
"""How many waits must be known before a bound for 95 % of the next ones exists at all."""


def reacquire_s(waits_s: Sequence[float]) -> float | None:
    """Return the wait that the next one exceeds in at most 5 % of cases; None: too few are known.

    It is the k-th smallest of n waits, k = ceil(0.95 (n + 1)): where waits are exchangeable the
    next one is at most that with a probability of 95 % or more, whatever their distribution
    (Vovk, Gammerman and Shafer 2005, section 2.4).
    """
    count = len(waits_s)
    place = -(-95 * (count + 1) // 100)
    return sorted(waits_s)[place - 1] if place <= count else None


def sentence(waits_s: Sequence[float]) -> str:
    """Say what was measured, and the line of the catalogue that follows from it."""
    bound = reacquire_s(waits_s)
    if bound is None:
        return (
            f"{len(waits_s)} launches of this run have waited for nodes; {FEWEST} are needed to "
            "say how long 95 % of the next ones will wait at most (switch.reacquire_s)."
        )
    return (
        f"of {len(waits_s)} launches of this run the longest waited {max(waits_s):.0f} s for "
        f"nodes; 95 % of the next ones will wait at most: reacquire_s = {bound:.0f}"
    )
