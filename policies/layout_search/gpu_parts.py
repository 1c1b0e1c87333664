"""A job on two classes of GPUs, and what each part of it has and draws. Pure."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wattmesh.policies.layout_search.search import FRAGMENTED, RUNTIME_BYTES
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.hardware import GpuClass
from wattmesh.policies.parallelism.memory import memory
from wattmesh.policies.parallelism.model_shape import ModelShape
from wattmesh.policies.parallelism.setups import Setups

Array: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPart:
    """So many GPUs of one class."""

    gpus: int
    gpu: GpuClass


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedJob:
    """What is laid out over two classes; the sizes as in `space.Job`."""

    shape: ModelShape
    global_batch: int
    seq_len: int
    parts: tuple[GpuPart, GpuPart]

    def alone(self, part: GpuPart) -> Job:
        """Give the same job on one class."""
        return Job(
            shape=self.shape,
            global_batch=self.global_batch,
            seq_len=self.seq_len,
            gpus=part.gpus,
            gpu=part.gpu,
        )


def peak_share(setups: Setups, part: GpuPart) -> Array:
    """Give the peak of a part's fullest rank, over the memory of its GPUs."""
    peak = np.asarray(memory(setups).total) * (1 + FRAGMENTED) + RUNTIME_BYTES
    return np.asarray(peak / part.gpu.memory_bytes)


def waiting_w(gpu: GpuClass, shares: PowerShares) -> float:
    """Give what a GPU that waits for others draws, with its part of the node."""
    return gpu.idle_w + shares.waiting * (gpu.power_w - gpu.idle_w) + shares.node_w_per_gpu
