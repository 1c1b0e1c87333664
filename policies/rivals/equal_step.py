"""Equal-step greedy: the least grams for the next so many steps.

The rule of a public carbon-aware fork of Megatron-LM (Wafik20/Megatron-LM, greedy_scheduler.py,
2026): of the points that are in time if used to the end, take the one whose next steps, a switch
included, emit least. All points are compared over the same number of steps, so the intensity nearly
cancels and joules per token decide.
"""

from wattmesh.policies.rivals.rival_inputs import RatedPoint, RivalInputs
from wattmesh.telemetry.readings import J_PER_KWH

STEPS = 200
TOKENS_PER_STEP = 2048 * 8192
"""Its window, for the job of the example catalogue: 200 steps."""


def equal_step(inputs: RivalInputs) -> str:
    """Choose by the grams of the next 200 steps."""
    tokens = min(inputs.tokens_left, float(STEPS * TOKENS_PER_STEP))
    feasible = [
        each
        for each in inputs.points
        if inputs.tokens_left / each.tokens_per_s + _switch_s(inputs, each) <= inputs.time_left_s
    ]
    if not feasible:
        return inputs.fastest.id
    return min(feasible, key=lambda each: (_grams(inputs, each, tokens), -each.tokens_per_s)).id


def _switch_s(inputs: RivalInputs, point: RatedPoint) -> float:
    """Seconds until it trains at a point."""
    here = next((each.layout for each in inputs.points if each.id == inputs.current), "")
    return 0.0 if here == point.layout else inputs.switch_s


def _grams(inputs: RivalInputs, point: RatedPoint, tokens: float) -> float:
    """Grams of the next `tokens` at a point, with the switch there."""
    switching = _switch_s(inputs, point) > 0
    total = inputs.switch_j * inputs.g_per_kwh if switching else 0.0
    left_s = tokens / point.tokens_per_s
    for slot in inputs.ahead:
        length_s = min(slot.seconds, left_s)
        total += point.power_w * length_s * slot.g_per_kwh
        left_s -= length_s
        if left_s <= 0:
            break
    return total / J_PER_KWH
