"""The pace of a simulated device: training keeps its timetable, whatever else the machine does.

On a machine without GPUs a small model's step is over at once, and every layout is as fast as any
other. When `WATTMESH_FAKE_GPUS` names a folder of fake GPUs, steps keep to the timetable of a
declared speed model instead (`Timetable`). A step that the machine is late with, checkpoints
included, is caught up with by the steps after it; so tokens, joules and grams follow the timetable
and not the load of the machine, as long as it computes faster than the timetable on average. The
model's numbers are *assumed*: layouts differ as they do on real machines, where the links between
GPUs are what large layouts pay for. What the arithmetic really took, and steps that ended late, are
logged.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path

from wattmesh.reconfig.layout import Layout
from wattmesh.telemetry.fake_nvml import FOLDER_VARIABLE, FakeGpu, FakeNvml

TOKENS_PER_S_PER_GPU = 300.0
"""Of one device alone at its highest clock (assumed)."""

OVERHEAD = {"tp": 0.03, "dp_shard": 0.10, "dp_replicate": 0.08, "pp": 0.06}
"""What each further member of an axis adds to a step's time, as a share of it (assumed)."""

SWITCH_S = 1.5
"""From the last step of a layout to the first of the next, whose boards are at work meanwhile
(assumed). A switch that really takes longer takes longer here too."""

STALE_S = 10.0
"""So far behind, a rank was away (parked, or stopped) and is not late: it begins anew."""

MEMORY_BOUND = 0.3
"""Share of a step's time that does not follow the clock (assumed)."""


def efficiency(layout: Layout) -> float:
    """Give the share of its devices' speed that a layout reaches, in (0, 1]."""
    overhead: float = sum(cost * (getattr(layout, axis) - 1) for axis, cost in OVERHEAD.items())
    return 1 / (1 + overhead)


def tokens_per_s(
    layout: Layout, clock_share: float = 1.0, *, per_gpu: float = TOKENS_PER_S_PER_GPU
) -> float:
    """Give a layout's assumed speed at a share of the highest clock, in (0, 1]."""
    slower = MEMORY_BOUND + (1 - MEMORY_BOUND) / clock_share
    return layout.world_size * per_gpu * efficiency(layout) / slower


@dataclass(slots=True)
class Timetable:
    """When a simulated device is done with each step. Pure: the time is an argument.

    `due_s`: end of the newest step on it, or when the first is to begin; None: when it does.
    """

    due_s: float | None = None
    layout: Layout | None = None

    def next(self, layout: Layout, step_s: float, now_s: float) -> float:
        """Give when the step that begins now is due, if it takes the device `step_s`.

        It follows the step before without a gap, however late that one ended; in a new layout the
        switch lies between.
        """
        if self.due_s is None or now_s - self.due_s > STALE_S:
            starts_s = now_s
        elif self.layout in (None, layout):
            starts_s = self.due_s
        else:
            starts_s = max(now_s, self.due_s + SWITCH_S)
        self.layout, self.due_s = layout, starts_s + step_s
        return self.due_s


@dataclass(slots=True, kw_only=True)
class Work:
    """How one step went.

    Attributes:
        elapsed_s: all of it. `computed_s`: of that, what this machine worked; 0 without a pace.
        overrun_s: how late it ended.
    """

    elapsed_s: float = 0.0
    computed_s: float = 0.0
    overrun_s: float = 0.0


class Occupied:
    """Keeps one board at work until a moment that moves on with the training.

    A checkpoint or a switch between two steps is work too; a rank that was parked in it begins no
    further step, and its board falls idle when a switch would be over.
    """

    def __init__(self, gpu: FakeGpu) -> None:
        """Begin idle."""
        self._gpu = gpu
        self._until_s = -inf
        self._changed = threading.Condition()
        self._work = ExitStack()
        self._busy = False
        threading.Thread(target=self._let_go, name="pace", daemon=True).start()

    def until(self, at_s: float) -> None:
        """Be at work until `at_s` (monotonic), from now on."""
        with self._changed:
            self._until_s = at_s
            if not self._busy and at_s > time.monotonic():
                self._work.enter_context(self._gpu.busy())
                self._busy = True
            self._changed.notify()

    def _let_go(self) -> None:
        """Let the board fall idle whenever its work is over."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._busy)
                while (left_s := self._until_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                self._work.close()
                self._busy = False


class OwnPace:
    """Steps take what they take."""

    gpu_uuid = ""

    @contextmanager
    def step(self, layout: Layout, *, leads: bool) -> Iterator[Work]:
        """Run one step."""
        work, started_s = Work(), time.monotonic()
        yield work
        work.elapsed_s = time.monotonic() - started_s

    def end(self) -> None:
        """Nothing is kept."""


class SimulatedPace:
    """Steps keep to the timetable of a simulated device."""

    def __init__(
        self, gpu: FakeGpu, tokens_per_step: int, per_gpu: float, starts_s: float | None
    ) -> None:
        """Begin idle; `per_gpu`: tokens/s of one device alone."""
        self._gpu = gpu
        self._tokens_per_step = tokens_per_step
        self._per_gpu = per_gpu
        self._starts_s = starts_s
        self._timetable = Timetable(due_s=starts_s)
        self._board = Occupied(gpu)

    @property
    def gpu_uuid(self) -> str:
        """Identity of this rank's device."""
        return self._gpu.uuid

    @contextmanager
    def step(self, layout: Layout, *, leads: bool) -> Iterator[Work]:
        """Run one step on the device, at its present clock."""
        if self._starts_s is not None:
            time.sleep(max(0.0, self._starts_s - time.monotonic()))
        device = self._gpu.truth()
        share = device.loaded_clock_mhz / device.max_clock_mhz
        work, started_s = Work(), time.monotonic()
        step_s = self._tokens_per_step / tokens_per_s(layout, share, per_gpu=self._per_gpu)
        due_s = self._timetable.next(layout, step_s, started_s)
        self._board.until(inf)
        try:
            yield work
        finally:
            ended_s = time.monotonic()
            self._board.until(max(due_s, ended_s) + SWITCH_S)
        work.computed_s = ended_s - started_s
        work.overrun_s = max(0.0, ended_s - due_s)
        if leads:
            time.sleep(max(0.0, due_s - ended_s))
        work.elapsed_s = time.monotonic() - started_s

    def end(self) -> None:
        """Let the device fall idle."""
        self._board.until(-inf)


def choose_pace(
    rank: int,
    tokens_per_step: int,
    per_gpu: float = TOKENS_PER_S_PER_GPU,
    starts_s: float | None = None,
) -> OwnPace | SimulatedPace:
    """Give the pace that the environment asks for; device `rank` is this rank's.

    Args:
        rank: of all that were launched.
        tokens_per_step: over all ranks.
        per_gpu: tokens per second of one device alone.
        starts_s: when the first step begins by the timetable (monotonic); None: when it does.

    Raises:
        InputInvalid: the folder has no device for this rank.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return OwnPace()
    gpu = FakeNvml.open(Path(folder)).gpu(rank)
    gpu.process(os.getpid())  # as a process is listed that holds a context, at work or not
    return SimulatedPace(gpu, tokens_per_step, per_gpu, starts_s)
