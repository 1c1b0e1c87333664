"""The speed of a simulated device: each step takes as long as it would there.

On a machine without GPUs a small model's step is over at once, and every layout is as fast as any
other. When `WATTMESH_FAKE_GPUS` names a folder of fake GPUs, each rank keeps its device
busy for the time of a declared speed model. Its numbers are *assumed*: chosen so that the real
computation fits into the paced step on two CPU cores, and so that layouts differ as they do on real
machines, where the links between GPUs are what large layouts pay for. Steps that overran are
counted, not hidden.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, FakeGpu, FakeNvml, Work

TOKENS_PER_S_PER_GPU = 300.0
"""Of one device alone at its highest clock (assumed)."""

OVERHEAD = {"tp": 0.03, "dp_shard": 0.10, "dp_replicate": 0.08, "pp": 0.06}
"""What each further member of an axis adds to a step's time, as a share of it (assumed)."""

MEMORY_BOUND = 0.3
"""Share of a step's time that does not follow the clock (assumed)."""


def efficiency(layout: Layout) -> float:
    """Give the share of its devices' speed that a layout reaches, in (0, 1]."""
    overhead: float = sum(cost * (getattr(layout, axis) - 1) for axis, cost in OVERHEAD.items())
    return 1 / (1 + overhead)


def tokens_per_s(layout: Layout, clock_share: float = 1.0) -> float:
    """Give a layout's assumed speed at a share of the highest clock, in (0, 1]."""
    slower = MEMORY_BOUND + (1 - MEMORY_BOUND) / clock_share
    return layout.world_size * TOKENS_PER_S_PER_GPU * efficiency(layout) / slower


class Pace(Protocol):
    """How long steps take."""

    @property
    def gpu_uuid(self) -> str:
        """Identity of this rank's device; "" when it has none."""
        ...

    @contextmanager
    def step(self, layout: Layout) -> Iterator[Work]:
        """Run one step; the work says afterwards what it took."""
        ...


class OwnPace:
    """Steps take what they take."""

    gpu_uuid = ""

    @contextmanager
    def step(self, layout: Layout) -> Iterator[Work]:
        """Run one step."""
        work, started_s = Work(seconds=0.0), time.monotonic()
        yield work
        work.elapsed_s = time.monotonic() - started_s


@dataclass(slots=True)
class SimulatedPace:
    """Steps take what they would take on a simulated device."""

    gpu: FakeGpu
    tokens_per_step: int

    @property
    def gpu_uuid(self) -> str:
        """Identity of this rank's device."""
        return self.gpu.uuid

    @contextmanager
    def step(self, layout: Layout) -> Iterator[Work]:
        """Run one step on the device, at its present clock."""
        device = self.gpu.truth()
        speed = tokens_per_s(layout, device.loaded_clock_mhz / device.max_clock_mhz)
        with self.gpu.work(self.tokens_per_step / speed) as work:
            yield work


def choose_pace(rank: int, tokens_per_step: int) -> Pace:
    """Give the pace that the environment asks for; device `rank` is this rank's.

    Raises:
        InputInvalid: the folder has no device for this rank.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return OwnPace()
    gpu = FakeNvml.open(Path(folder)).gpu(rank)
    gpu.process(os.getpid())  # as a process is listed that holds a context, at work or not
    return SimulatedPace(gpu, tokens_per_step)
