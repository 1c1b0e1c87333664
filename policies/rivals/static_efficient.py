"""Static, efficient: the one point of the fewest joules per token that is in time from the start.

What a careful user chooses once (a locked clock, a smaller job) and never touches again.
"""

from wattmesh.policies.rivals.look import RivalInputs


def static_efficient(look: RivalInputs) -> str:
    """Stay at the most efficient point that alone does all the work in all the time."""
    return min(
        (
            each
            for each in look.points
            if look.tokens_total / each.tokens_per_s + look.switch_s <= look.time_total_s
        ),
        key=lambda each: (each.j_per_token, -each.tokens_per_s),
        default=look.fastest,
    ).id
