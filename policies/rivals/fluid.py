"""The fluid problem that some rules solve: least grams (or joules) when changing costs nothing.

On the lower convex hull of speed and power each step up has marginal joules per token; all steps
in all slots are taken cheapest first until the work fits (docs/policies.md). What the first slot
then is at is the answer. The run never sleeps here.
"""

from collections.abc import Sequence
from itertools import pairwise

from wattmesh.policies.hull import lower_chain
from wattmesh.policies.rivals.rival_inputs import RatedPoint, RivalInputs


def hull(points: Sequence[RatedPoint]) -> list[RatedPoint]:
    """Give the points that no mixture of two others betters, slowest first."""
    indices = lower_chain([each.tokens_per_s for each in points], [each.power_w for each in points])
    chain = [points[index] for index in indices]
    # A point slower and hungrier per token than the next is no use when the run never sleeps.
    while len(chain) > 1 and chain[0].j_per_token >= chain[1].j_per_token:
        chain.pop(0)
    return chain


def cheapest(inputs: RivalInputs, points: Sequence[RatedPoint], *, carbon: bool) -> str:
    """Give the point of the first slot in the schedule of the least grams, or joules."""
    useful = hull(points)
    tokens = useful[0].tokens_per_s * sum(each.seconds for each in inputs.ahead)
    rises = [
        (level, _slope(low, high), high.tokens_per_s - low.tokens_per_s)
        for level, (low, high) in enumerate(pairwise(useful), start=1)
    ]
    steps = [
        ((slot.g_per_kwh if carbon else 1.0) * slope, when, level, more * slot.seconds)
        for when, slot in enumerate(inputs.ahead)
        for level, slope, more in rises
    ]
    first = 0
    for _, when, level, more in sorted(steps):
        if tokens >= inputs.tokens_left:
            break
        tokens += more
        if when == 0:
            first = level
    return useful[first].id


def _slope(low: RatedPoint, high: RatedPoint) -> float:
    """Joules per token gained between two points."""
    return (high.power_w - low.power_w) / (high.tokens_per_s - low.tokens_per_s)
