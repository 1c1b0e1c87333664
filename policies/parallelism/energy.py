"""Joules of a training step: watts by what a GPU does, times how long it does it. Pure.

A GPU that multiplies matrices draws about all it may; one that reads and writes memory, waits for a
collective or for its turn in the pipeline draws less, and none draws nothing. What the rest of the
node draws comes on top, whatever the GPUs do. The shares are priors from published node power
(MLPerf Training v4.0, v4.1) until a cluster's own are measured.
"""

from dataclasses import dataclass

import numpy as np

from wattmesh.policies.parallelism.model_shape import Number
from wattmesh.policies.parallelism.setups import Setups, tokens_per_step
from wattmesh.policies.parallelism.step_time import StepTime


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerShares:
    """Watts by phase, as shares of what a GPU may draw above idle; 0 to 1.

    Attributes:
        products, memory, exposed, waiting: by what `StepTime` tells apart.
        node_w_per_gpu: of everything in a node but GPUs, for each of them.
        clock_exponent: by which watts above idle fall with the clock, 2 to 3.
    """

    products: float = 1.0
    memory: float = 0.75
    exposed: float = 0.6
    waiting: float = 0.35
    node_w_per_gpu: float = 215.0
    clock_exponent: float = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnergy:
    """What a step takes from the wall.

    Attributes:
        gpu_w, node_w: of an average GPU, and with its part of the node; over the step.
        step_s: of a step at the asked clock.
        j_per_token: of the nodes.
    """

    gpu_w: Number
    node_w: Number
    step_s: Number
    j_per_token: Number


def step_energy(
    setups: Setups, time: StepTime, shares: PowerShares, *, clock: Number = 1.0
) -> StepEnergy:
    """Predict power and energy.

    Args:
        setups: the configurations.
        time: of their steps at full clock.
        shares: watts by phase.
        clock: relative to the highest, above 0 up to 1. Products take longer in proportion; what
            waits for memory or for others does not.
    """
    hardware, relative = setups.hardware, np.asarray(clock)
    above_idle = np.asarray(hardware.power_w) - hardware.idle_w
    slowed = np.asarray(time.products_s) / relative
    step_s = np.asarray(time.total_s) - time.products_s + slowed
    phases = (
        shares.products * slowed
        + shares.memory * np.asarray(time.memory_s)
        + shares.exposed * np.asarray(time.exposed_s)
        + shares.waiting * np.asarray(time.waiting_s)
    )
    phases_s = slowed + time.memory_s + time.exposed_s + time.waiting_s
    busy = phases / phases_s * relative**shares.clock_exponent
    gpu_w = hardware.idle_w + above_idle * busy
    node_w = gpu_w + shares.node_w_per_gpu
    joules = node_w * setups.layout.gpus * step_s
    return StepEnergy(
        gpu_w=gpu_w, node_w=node_w, step_s=step_s, j_per_token=joules / tokens_per_step(setups)
    )
