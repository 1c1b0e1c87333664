"""Energy-min mix: the fewest joules for the work in the time, blind to carbon.

The two neighbouring points on the hull of speed and power between which the needed speed lies, the
faster first (Perseus, SOSP 2024, and Zeus, NSDI 2023, trade time against energy like this).
"""

from wattmesh.policies.rivals.fluid import cheapest
from wattmesh.policies.rivals.rival_inputs import RivalInputs


def energy_min(inputs: RivalInputs) -> str:
    """Choose as if the grid never changed."""
    return cheapest(inputs, inputs.points, carbon=False)
