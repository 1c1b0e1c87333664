"""Clocks only: the least-carbon schedule over the clocks of the layout the run began in.

What carbon-aware frequency scaling does (Chase, arXiv 2303.02508, chooses power limits by carbon
intensity); here with the exact price rule over the forecast instead of its heuristic, so the
strongest form of it.
"""

from wattmesh.policies.rivals.fluid import cheapest
from wattmesh.policies.rivals.rival_inputs import RivalInputs


def dvfs_only(inputs: RivalInputs) -> str:
    """Choose among the clocks of the fastest point's layout."""
    alike = [each for each in inputs.points if each.layout == inputs.fastest.layout]
    return cheapest(inputs, alike, carbon=True)
