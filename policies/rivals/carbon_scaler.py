"""CarbonScaler: more GPUs in clean hours, by marginal throughput per gram.

The greedy algorithm of CarbonScaler (SIGMETRICS 2024, Algorithm 1): of all (slot, scale) steps take
the one of the most tokens per gram that its slot allows next, until the work fits. Scales are the
points at full clock; below the smallest the job sleeps. It is planned anew at every look, which its
published code does not do: the stronger form.
"""

from heapq import heapify, heappop, heappush

from wattmesh.policies.rivals.rival_inputs import SLEEP, RatedPoint, RivalInputs


def carbon_scaler(inputs: RivalInputs) -> str:
    """Give the scale of the first slot."""
    scales = inputs.full_clock()
    levels = [0] * len(inputs.ahead)
    heap = [
        (-_tokens_per_g(None, scales[0], slot.g_per_kwh), when)
        for when, slot in enumerate(inputs.ahead)
    ]
    heapify(heap)
    tokens = 0.0
    while heap and tokens < inputs.tokens_left:
        _, when = heappop(heap)
        slot, level = inputs.ahead[when], levels[when]
        before = scales[level - 1].tokens_per_s if level else 0.0
        tokens += (scales[level].tokens_per_s - before) * slot.seconds
        levels[when] = level + 1
        if level + 1 < len(scales):
            yields = _tokens_per_g(scales[level], scales[level + 1], slot.g_per_kwh)
            heappush(heap, (-yields, when))
    return scales[levels[0] - 1].id if levels[0] else SLEEP


def _tokens_per_g(low: RatedPoint | None, high: RatedPoint, g_per_kwh: float) -> float:
    more = high.tokens_per_s - (low.tokens_per_s if low else 0.0)
    watts = high.power_w - (low.power_w if low else 0.0)
    grams = watts * g_per_kwh
    return more / grams if grams > 0 else float("inf")
