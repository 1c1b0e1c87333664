"""Static, efficient: the one point of the fewest joules per token that is in time from the start.

What a careful user chooses once (a locked clock, a smaller job) and never touches again.
"""

from wattmesh.policies.rivals.rival_inputs import RivalInputs


def static_efficient(inputs: RivalInputs) -> str:
    """Stay at the most efficient point that alone does all the work in all the time."""
    return min(
        (
            each
            for each in inputs.points
            if inputs.tokens_total / each.tokens_per_s + inputs.switch_s <= inputs.time_total_s
        ),
        key=lambda each: (each.j_per_token, -each.tokens_per_s),
        default=inputs.fastest,
    ).id
