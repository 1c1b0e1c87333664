"""Pause threshold: train at the fastest point while the grid is among the cleanest hours ahead.

Ecovisor's rule as "Going Green for Less Green" (GAIA, ASPLOS 2024) states it: run while intensity
is at most the 30th percentile of the next 24 h, else suspend.
"""

from wattmesh.policies.rivals.rival_inputs import SLEEP, RivalInputs

SHARE = 0.30
WINDOW_S = 86_400.0


def pause_threshold(inputs: RivalInputs) -> str:
    """Run at full speed in the cleanest 30 % of the next day, sleep else."""
    values, seconds = [], 0.0
    for slot in inputs.ahead:
        values.append((slot.g_per_kwh, slot.seconds))
        seconds += slot.seconds
        if seconds >= WINDOW_S:
            break
    below = 0.0
    for value, length_s in sorted(values):
        below += length_s
        if below >= SHARE * seconds:
            return inputs.fastest.id if inputs.g_per_kwh <= value else SLEEP
    return inputs.fastest.id
