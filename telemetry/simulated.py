"""Simulated GPUs: one small file per device in a folder, for machines that have none.

A trainer marks its device busy and stretches its steps to the device's declared speed
(`SimulatedGpu.work`); whoever watches power reads the same files as a hardware counter
(`SimulatedSource`). Every reading says `simulated`.

Invariant: a file is only ever replaced whole, under a kernel lock (flock), by one write of less
than a page. So any party may die at any instruction, and the counter stays exact: the lock goes
with the process, and a dead process's device turns idle at its last sign of life.

Processes must share a PID namespace and a clock. A stopped process (SIGSTOP) still counts as
busy, as a GPU does whose kernel spins on a peer that never answers.
"""

import fcntl
import functools
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from wattmesh import durable
from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.readings import PowerReading, Quality, utc_now
from wattmesh.telemetry.simulated_device import RECORD_BYTES, Device, GpuModel

__all__ = ["FOLDER_VARIABLE", "GpuModel", "SimulatedGpu", "SimulatedSource", "Work", "create"]

FOLDER_VARIABLE = "WATTMESH_SIMULATED_GPUS"
"""Environment variable that names the folder to a training job."""

# A lock is held for microseconds; a holder stopped by a signal in just that moment must not
# hang everybody else.
_LOCK_DEADLINE_S = 0.5


def create(folder: Path, count: int, model: GpuModel | None = None) -> tuple[str, ...]:
    """Make `count` idle devices in `folder` at full clock, and give their uuids.

    The uuids follow from the folder's path, and stay what they are when it moves.

    Raises:
        InputInvalid: `count` is not in 1..1000, or the folder holds devices already.
    """
    if not 1 <= count <= 1000:
        raise InputInvalid(f"simulated GPUs: count {count} must lie in 1..1000")
    folder.mkdir(parents=True, exist_ok=True)
    if _files(folder):
        raise InputInvalid(f"{folder} holds simulated GPUs already; use them or another folder")
    chosen = model or GpuModel()
    for index in range(count):
        name = hashlib.sha256(f"{folder.resolve()}/{index}".encode()).hexdigest()
        device = Device(
            index=index,
            uuid=f"SIM-{name[:8]}-{name[8:12]}-{name[12:24]}",
            model=chosen,
            clock_mhz=chosen.max_clock_mhz,
            boot_id=_boot_id(),
            updated_ns=time.monotonic_ns(),
        )
        durable.write_bytes(_path(folder, index), device.pack())
    return tuple(SimulatedGpu(path).uuid for path in _files(folder))


@dataclass(slots=True)
class Work:
    """How one piece of work went: `overrun_s` is what the body took beyond `seconds`."""

    seconds: float
    elapsed_s: float = 0.0
    overrun_s: float = 0.0


class SimulatedGpu:
    """One device, as the process that uses it or controls it sees it.

    `close()` closes its file, as does losing the last reference; the device goes on existing.
    """

    def __init__(self, path: Path) -> None:
        """Open the device's file (see `open`).

        Raises:
            InputInvalid: there is no such device, or its file is damaged.
        """
        self._path = path
        self._thread_lock = threading.Lock()  # flock does not part threads of one descriptor
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise InputInvalid(f"no simulated GPU at {path}: {error.strerror}") from error
        self.close = weakref.finalize(self, os.close, self._descriptor)
        self.uuid = self.state().uuid

    @classmethod
    def open(cls, folder: Path, index: int) -> Self:
        """Open device `index` of a folder that `create` made."""
        return cls(_path(folder, index))

    def is_current(self) -> bool:
        """Say whether the open file still bears its name: not deleted, not made anew."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def state(self) -> Device:
        """Give the device as it is now, energy integrated up to this moment."""
        return self._update(lambda device: device)

    def set_clock(self, clock_mhz: int) -> None:
        """Lock the clock; power and speed follow from now on.

        Raises:
            InputInvalid: outside (0, max_clock_mhz].
        """

        def change(device: Device) -> Device:
            highest = device.model.max_clock_mhz
            if not 0 < clock_mhz <= highest:
                raise InputInvalid(
                    f"simulated GPU {device.index}: clock {clock_mhz} MHz is not in 1..{highest}"
                )
            return replace(device, clock_mhz=clock_mhz)

        self._update(change)

    def reset_counter(self) -> None:
        """Set the energy counter to zero, as a driver reload does (fault injection)."""
        self._update(lambda device: replace(device, energy_mj=0, carry_pj=0))

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the device busy while the body runs.

        Raises:
            InputInvalid: another living process keeps it busy, or this one already does.
        """
        self._update(_taken)
        try:
            yield
        finally:
            self._update(lambda device: replace(device, busy_pid=0, busy_start=0))

    @contextmanager
    def work(self, seconds: float) -> Iterator[Work]:
        """Run the body as work that takes this device `seconds`.

        The device is busy while the body runs and until `seconds` have passed. A body that takes
        longer is not hidden: the device is busy as long as it runs, and `overrun_s` says by how
        much. A body that raises ends the work at once.
        """
        work = Work(seconds=seconds)
        start_s = time.monotonic()
        with self.busy():
            yield work
            work.overrun_s = max(0.0, time.monotonic() - start_s - seconds)
            time.sleep(max(0.0, start_s + seconds - time.monotonic()))
            work.elapsed_s = time.monotonic() - start_s

    def _update(self, change: Callable[[Device], Device]) -> Device:
        """Advance the record to now, change it, write it back; one step to everybody else."""
        with self._thread_lock, _locked(self._descriptor, self._path):
            record = os.pread(self._descriptor, RECORD_BYTES + 1, 0)
            device = Device.unpack(record, str(self._path))
            alive = _alive(device.busy_pid, device.busy_start)
            device = device.advanced(time.monotonic_ns(), _boot_id(), owner_alive=alive)
            device = change(device)
            os.pwrite(self._descriptor, device.pack(), 0)
            return device


class SimulatedSource:
    """The devices of one folder behind the protocol that NVML serves (`PowerSource`)."""

    def __init__(self, folder: Path) -> None:
        """Read from the devices in `folder`; they may appear later."""
        self._folder = folder
        self._gpus: dict[Path, SimulatedGpu] = {}

    @property
    def name(self) -> str:
        """What screens and rows call this source."""
        return "simulated"

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices that are there now, by index."""
        return [gpu.uuid for gpu in self._present()]

    def read(self) -> Sequence[PowerReading]:
        """Read every device once; one whose file is damaged or stuck is left out.

        Raises:
            SourceUnavailable: nothing could be read at all.
        """
        readings = []
        for gpu in self._present():
            try:
                readings.append(_reading(gpu.state()))
            except (InputInvalid, SourceUnavailable, OSError):
                continue
        if not readings:
            raise SourceUnavailable(
                f"no simulated GPU answers in {self._folder}; create some, or correct power.folder"
            )
        return readings

    def gpu(self, uuid: str) -> SimulatedGpu:
        """Find a device by uuid.

        Raises:
            InputInvalid: it is not in the folder.
        """
        for gpu in self._present():
            if gpu.uuid == uuid:
                return gpu
        raise InputInvalid(f"no simulated GPU {uuid} in {self._folder}")

    def close(self) -> None:
        """Close the files."""
        for gpu in self._gpus.values():
            gpu.close()
        self._gpus.clear()

    def _present(self) -> list[SimulatedGpu]:
        """Open what is new, forget what is gone or was made anew under the same name."""
        files = _files(self._folder)
        for path in [each for each, gpu in self._gpus.items() if not gpu.is_current()]:
            self._gpus.pop(path).close()
        for path in files:
            if path not in self._gpus:
                try:
                    self._gpus[path] = SimulatedGpu(path)
                except (InputInvalid, SourceUnavailable):
                    continue  # damaged or stuck: left out of this reading, tried again at the next
        return [self._gpus[path] for path in files if path in self._gpus]


def _reading(device: Device) -> PowerReading:
    """Give a device as a power reading of this moment."""
    return PowerReading(
        gpu_uuid=device.uuid,
        at=utc_now(),
        monotonic_s=device.updated_ns / 1e9,
        power_w=device.power_mw / 1000,
        energy_mj=device.energy_mj,
        clock_mhz=device.clock_mhz,
        power_limit_w=device.model.limit_w,
        source="simulated",
        quality=Quality.SIMULATED,
    )


def _taken(device: Device) -> Device:
    """Give the device to this process."""
    if device.busy_pid:
        raise InputInvalid(
            f"simulated GPU {device.index} is busy with process {device.busy_pid}; "
            "give each rank a device of its own"
        )
    pid = os.getpid()
    return replace(device, busy_pid=pid, busy_start=_started(pid))


def _path(folder: Path, index: int) -> Path:
    """Give the file of one device."""
    return folder / f"gpu-{index:03d}.bin"


def _files(folder: Path) -> list[Path]:
    """List the devices' files, by index."""
    return sorted(folder.glob("gpu-[0-9][0-9][0-9].bin"))


@contextmanager
def _locked(descriptor: int, path: Path) -> Iterator[None]:
    """Hold the file's lock, or give up at the deadline.

    Raises:
        SourceUnavailable: somebody has held the lock for longer than any update takes.
    """
    deadline_s = time.monotonic() + _LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise SourceUnavailable(
                    f"{path} has been locked for {_LOCK_DEADLINE_S} s by a process that does not "
                    "run on; it is left out until that process ends"
                ) from None
            time.sleep(0.0005)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


@functools.cache
def _boot_id() -> str:
    """Name this boot of the machine: CLOCK_MONOTONIC means nothing beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> int:
    """Give when a process started, in clock ticks; 0 when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, *rest = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(rest[18])


def _alive(pid: int, started: int) -> bool:
    """Say whether the process that marked a device busy is still there, and still the same."""
    return pid == 0 or _started(pid) == started
