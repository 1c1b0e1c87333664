"""Clocks only: the least-carbon schedule over the clocks of the layout the run began in.

What carbon-aware frequency scaling does (Chase, arXiv 2303.02508, chooses power limits by carbon
intensity); here with the exact price rule over the forecast instead of its heuristic, so the
strongest form of it.
"""

from wattmesh.policies.rivals.fluid import cheapest
from wattmesh.policies.rivals.look import RivalInputs


def dvfs_only(look: RivalInputs) -> str:
    """Choose among the clocks of the fastest point's layout."""
    alike = [each for each in look.points if each.layout == look.fastest.layout]
    return cheapest(look, alike, carbon=True)
