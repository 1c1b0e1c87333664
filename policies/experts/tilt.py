"""Loads that lean towards cheap GPUs, and the condition under which leaning saves at all.

Loss-free balancing steers every expert's load to a target; a tilted target is what makes it lean,
where a term in the score would be cancelled by the balancing bias (docs/experts.md). How far it may
lean is a question of quality, so it has a cap; what is best within the cap is computed here.
"""

import math
from collections.abc import Sequence

from wattmesh.errors import InputInvalid
from wattmesh.policies.experts.layer_energy import ExpertGpu, layer_energy

LOAD_CAP = 1.15
"""The most that an expert's load is steered above the mean."""

HALVINGS = 60
"""Of the span of layer times that is searched."""


def least_energy_loads(
    gpus: Sequence[ExpertGpu], even: Sequence[float], cap: float = LOAD_CAP
) -> tuple[float, ...]:
    """Give the loads of least modelled energy: no GPU above `cap` times its even load.

    For a given layer time the cheapest GPUs are filled first; energy is convex in that time, since
    it is the optimum of a linear program by a bound of it.

    Args:
        gpus: of the group.
        even: rows of each GPU where every expert has the mean load.
        cap: 1 or more.

    Raises:
        InputInvalid: the cap is below 1.
    """
    if not cap >= 1:
        raise InputInvalid(f"a load cap of {cap} is below 1: not all rows would find a place")
    even_s = layer_energy(gpus, even).layer_s
    rows = math.fsum(even)
    low, high = _least_seconds(gpus, even, cap), cap * even_s

    def energy(seconds: float) -> float:
        return layer_energy(gpus, _filled(gpus, even, cap, seconds)).energy_j

    for _ in range(HALVINGS):
        third = (high - low) / 3
        if energy(low + third) <= energy(high - third):
            high -= third
        else:
            low += third
    found = min(
        (_filled(gpus, even, cap, low), _filled(gpus, even, cap, high), tuple(even)),
        key=lambda loads: layer_energy(gpus, loads).energy_j,
    )
    assert math.isclose(math.fsum(found), rows, rel_tol=1e-9, abs_tol=1e-9)
    return found


def shift_gain_w(
    cheap: ExpertGpu, dear: ExpertGpu, group: Sequence[ExpertGpu], receivers: int = 1
) -> float:
    """Watts that are saved while cheap GPUs do what dear ones of a balanced group did.

    Per second that each of `receivers` cheap ones takes for it: what the dear ones would have drawn
    for the same rows, less their own, less the idle power of the group that now waits. For one
    receiver of equal speed and idle power this is P_dear - P_cheap - G * P_idle; where all cheap
    ones take their part, the group waits once for all of them.
    """
    seconds_of_dear = cheap.tokens_per_s / dear.tokens_per_s
    saved_w = (dear.busy_w - dear.idle_w) * seconds_of_dear - (cheap.busy_w - cheap.idle_w)
    return receivers * saved_w - math.fsum(each.idle_w for each in group)


def _least_seconds(gpus: Sequence[ExpertGpu], even: Sequence[float], cap: float) -> float:
    """Give the shortest layer in which all rows find a place under the cap."""
    rows = math.fsum(even)
    low, high = 0.0, cap * layer_energy(gpus, even).layer_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        room = math.fsum(
            min(middle * gpu.tokens_per_s, cap * load) for gpu, load in zip(gpus, even, strict=True)
        )
        low, high = (low, middle) if room >= rows else (middle, high)
    return high


def _filled(
    gpus: Sequence[ExpertGpu], even: Sequence[float], cap: float, seconds: float
) -> tuple[float, ...]:
    rest = math.fsum(even)
    loads = [0.0] * len(gpus)
    for at in sorted(range(len(gpus)), key=lambda each: gpus[each].joules_per_token):
        loads[at] = min(rest, seconds * gpus[at].tokens_per_s, cap * even[at])
        rest -= loads[at]
    # What rounding left over.
    cheapest = min(range(len(gpus)), key=lambda each: gpus[each].joules_per_token)
    loads[cheapest] += rest
    return tuple(loads)
