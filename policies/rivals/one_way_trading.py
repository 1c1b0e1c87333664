"""One-way trading: train at the fastest point while the grid is under a falling threshold.

Online search with a known range [L, U] of intensities and no forecast (El-Yaniv et al.,
Algorithmica 2001; as a threshold for pausing jobs: Lechowicz et al., "The Online Pause and Resume
Problem", 2023). With share w of the work done, run while

    c <= U (1 - (1 - 1/a) e^(w/a)),   a solving 1 - L/U = (1 - 1/a) e^(1/a)

so the threshold falls from U/a to L. The range is that of the last days; the deadline does the
rest.
"""

from math import exp

from wattmesh.policies.rivals.rival_inputs import SLEEP, RivalInputs

STEPS = 60
"""Halvings in the search for a: to the last digit."""


def one_way_trading(inputs: RivalInputs) -> str:
    """Run if the grid is cheap enough for how much is done."""
    known = inputs.past or (inputs.g_per_kwh,)
    low, high = min(known), max(known)
    if low >= high or low <= 0:
        return inputs.fastest.id
    a = ratio(low, high)
    done = 1.0 - inputs.tokens_left / inputs.tokens_total
    limit = high * (1.0 - (1.0 - 1.0 / a) * exp(done / a))
    return inputs.fastest.id if inputs.g_per_kwh <= max(low, limit) else SLEEP


def ratio(low: float, high: float) -> float:
    """Give a, the competitive ratio for intensities in [low, high], by bisection."""
    wanted = 1.0 - low / high
    below, above = 1.0, high / low
    for _ in range(STEPS):
        middle = (below + above) / 2
        if (1.0 - 1.0 / middle) * exp(1.0 / middle) < wanted:
            below = middle
        else:
            above = middle
    return above
