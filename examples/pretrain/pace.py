"""Simulates the speed of a device: training follows its timetable, whatever the machine's load.

On a machine without GPUs a step of a small model takes almost no time, and all layouts are equally
fast. If `WATTMESH_FAKE_GPUS` names a folder of fake GPUs, steps follow the timetable of a speed
model instead (`Timetable`). If the machine is late with a step, or a checkpoint takes time, the
next steps catch up. So tokens, energy and carbon follow the timetable and not the machine's load,
as long as it computes faster than the timetable on average. The model's numbers are *assumed*:
layouts differ as on real machines, where larger layouts pay for communication. The real compute
time, and steps that ended late, are logged.
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
"""Speed of one device alone at its highest clock (assumed)."""

OVERHEAD = {"tp": 0.03, "dp_shard": 0.10, "dp_replicate": 0.08, "pp": 0.06}
"""What each further rank along an axis adds to a step's time, as a share of it (assumed)."""

SWITCH_S = 1.5
"""Time from the last step of a layout to the first of the next, with its boards busy meanwhile
(assumed). If the real switch takes longer, so does this."""

STALE_S = 10.0
"""A rank that is further behind was parked or stopped: its timetable starts again."""

MEMORY_BOUND = 0.3
"""Share of a step's time that does not follow the clock (assumed)."""


def efficiency(layout: Layout) -> float:
    """Return the share of its devices' speed that a layout reaches, in (0, 1]."""
    overhead: float = sum(cost * (getattr(layout, axis) - 1) for axis, cost in OVERHEAD.items())
    return 1 / (1 + overhead)


def tokens_per_s(
    layout: Layout, clock_share: float = 1.0, *, per_gpu: float = TOKENS_PER_S_PER_GPU
) -> float:
    """Return a layout's assumed speed at `clock_share` of the highest clock, in (0, 1]."""
    slower = MEMORY_BOUND + (1 - MEMORY_BOUND) / clock_share
    return layout.world_size * per_gpu * efficiency(layout) / slower


@dataclass(slots=True)
class Timetable:
    """When a simulated device finishes each step. Pure: the time is an argument.

    `due_s`: end of the newest step, or when the first must begin; None: at its first call.
    """

    due_s: float | None = None
    layout: Layout | None = None

    def next(self, layout: Layout, step_s: float, now_s: float) -> float:
        """Return when the step that begins now is due, if it takes the device `step_s`.

        It follows the due time of the previous step without a gap, however late that step really
        ended; in a new layout, `SWITCH_S` lies between.
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
        elapsed_s: the whole step.
        computed_s: the part that this machine computed; 0 without a simulated pace.
        overrun_s: how late the step ended.
    """

    elapsed_s: float = 0.0
    computed_s: float = 0.0
    overrun_s: float = 0.0


class Occupied:
    """Keeps one board busy until a time that each step moves on.

    A checkpoint or a switch between two steps counts as work. A rank that the switch parks begins
    no further step, so its board becomes idle when the switch would be over.
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
        """Keep the board busy from now until `at_s` (monotonic)."""
        with self._changed:
            self._until_s = at_s
            if not self._busy and at_s > time.monotonic():
                self._work.enter_context(self._gpu.busy())
                self._busy = True
            self._changed.notify()

    def _let_go(self) -> None:
        """Make the board idle whenever its work is over; the body of the thread."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._busy)
                while (left_s := self._until_s - time.monotonic()) > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                self._work.close()
                self._busy = False


class OwnPace:
    """Steps take their real time."""

    gpu_uuid = ""

    @contextmanager
    def step(self, layout: Layout, *, leads: bool) -> Iterator[Work]:
        """Run one step."""
        work, started_s = Work(), time.monotonic()
        yield work
        work.elapsed_s = time.monotonic() - started_s

    def end(self) -> None:
        """Do nothing."""


class SimulatedPace:
    """Steps follow the timetable of a simulated device."""

    def __init__(
        self, gpu: FakeGpu, tokens_per_step: int, per_gpu: float, starts_s: float | None
    ) -> None:
        """Start idle; `per_gpu`: tokens/s of one device alone."""
        self._gpu = gpu
        self._tokens_per_step = tokens_per_step
        self._per_gpu = per_gpu
        self._starts_s = starts_s
        self._timetable = Timetable(due_s=starts_s)
        self._board = Occupied(gpu)

    @property
    def gpu_uuid(self) -> str:
        """UUID of this rank's device."""
        return self._gpu.uuid

    @contextmanager
    def step(self, layout: Layout, *, leads: bool) -> Iterator[Work]:
        """Run one step at the device's present clock; only the leader waits until it is due."""
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
        """Make the device idle."""
        self._board.until(-inf)


def choose_pace(
    rank: int,
    tokens_per_step: int,
    per_gpu: float = TOKENS_PER_S_PER_GPU,
    starts_s: float | None = None,
) -> OwnPace | SimulatedPace:
    """Return the simulated pace if the environment names fake GPUs, else the real one.

    Args:
        rank: this rank among all launched ones; also the number of its device.
        tokens_per_step: over all ranks.
        per_gpu: tokens per second of one device alone.
        starts_s: when the first step begins by the timetable (monotonic); None: when it is called.

    Raises:
        InputInvalid: the folder has no device for this rank.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return OwnPace()
    gpu = FakeNvml.open(Path(folder)).gpu(rank)
    gpu.process(os.getpid())  # NVML lists every process with a context, busy or not
    return SimulatedPace(gpu, tokens_per_step, per_gpu, starts_s)
