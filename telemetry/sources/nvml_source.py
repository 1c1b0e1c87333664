"""The GPUs of this machine through NVML, each with a thread of its own.

Invariant: `read` ends within its deadline whatever the driver does. A call that hangs costs its own
GPU's readings and nothing else; GPUs that vanish are left out, and found again when they are back.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.readings import PowerReading, Quality
from wattmesh.telemetry.sources.nvml import Nvml, NvmlFailed
from wattmesh.telemetry.sources.nvml_device import NvmlDevice

T = TypeVar("T")
log = logging.getLogger(__name__)

DEADLINE_S = 1.0
"""A reading of all GPUs takes at most this long; a healthy board answers in milliseconds."""

RETRY_S, LONGEST_RETRY_S = 2.0, 60.0
"""A lost GPU is looked for after so long, then after twice as long each time, up to the latter:
initialising NVML again takes a second on some machines, in which nobody is read."""


@dataclass(slots=True)
class _Patience:
    """When to look again for what is lost."""

    wait_s: float = RETRY_S
    next_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """Say whether to try now; if so, the next time comes later."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + self.wait_s
        self.wait_s = min(2 * self.wait_s, LONGEST_RETRY_S)
        return True

    def over(self) -> None:
        """Nothing is lost any more."""
        self.wait_s, self.next_s = RETRY_S, 0.0


@dataclass(slots=True)
class _Gpu:
    """A device, the thread that asks it, and why it did not answer last; "" when it did."""

    device: NvmlDevice
    worker: Worker
    trouble: str = ""


class NvmlSource:
    """NVML behind the protocol of power sources. Threads that ask at once take turns."""

    def __init__(self, library: Path | None = None, *, deadline_s: float = DEADLINE_S) -> None:
        """Prepare; NVML is opened by the first reading, and again while there is none.

        Args:
            library: another library than the driver's own, e.g. the fake one.
            deadline_s: the longest that `read` and `compute_pids` take, each.
        """
        self._library = library
        self._deadline_s = deadline_s
        self._nvml: Nvml | None = None
        self._driver = Worker("nvml-driver")
        self._gpus: dict[str, _Gpu] = {}
        self._patience = _Patience()
        self._trouble = ""
        self._looking: Future[tuple[Nvml, Quality, tuple[str, ...]]] | None = None
        self._since_s = 0.0
        self._turn = threading.Lock()

    @property
    def name(self) -> str:
        """What screens and rows call this source."""
        return "nvml"

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why devices did not answer the last time, by UUID."""
        return {uuid: gpu.trouble for uuid, gpu in self._gpus.items() if gpu.trouble}

    def gpu_uuids(self) -> Sequence[str]:
        """List the devices that were ever seen."""
        with self._turn:
            self._find(time.monotonic() + self._deadline_s)
            return list(self._gpus)

    def read(self) -> Sequence[PowerReading]:
        """Read every device once; a device that does not answer in time is left out.

        Raises:
            SourceUnavailable: nothing could be read at all.
        """
        return list(self._each(lambda gpu: gpu.device.read()).values())

    def compute_pids(self) -> Mapping[str, tuple[int, ...]]:
        """List the processes that compute on each device; one that cannot be asked is left out.

        Raises:
            SourceUnavailable: no device could be asked.
        """
        return self._each(lambda gpu: gpu.device.nvml.compute_pids(gpu.device.uuid))

    def close(self) -> None:
        """Let go of the threads and the library; after a call that hangs, when it ends."""
        workers = (self._driver, *(gpu.worker for gpu in self._gpus.values()))
        for worker in workers:
            worker.close()
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        if all([worker.ended(self._deadline_s / len(workers)) for worker in workers]):
            nvml.close()
            return
        # Shutting down under a call would hang as it does.
        late = threading.Thread(target=_close_after, args=(nvml, workers), daemon=True)
        late.start()

    def _each(self, ask: Callable[[_Gpu], T]) -> dict[str, T]:
        """Ask all devices, within the deadline.

        Raises:
            SourceUnavailable: none answered.
        """
        with self._turn:
            until_s = time.monotonic() + self._deadline_s
            self._find(until_s)
            answers = self._round(ask, until_s)
            if not answers:
                raise SourceUnavailable(self._why())
            return answers

    def _round(self, ask: Callable[[_Gpu], T], until_s: float) -> dict[str, T]:
        """Ask all devices at once and wait for them together; note why one did not answer."""
        begun: dict[str, Future[T]] = {}
        for uuid, gpu in self._gpus.items():
            try:
                begun[uuid] = gpu.worker.begin(lambda gpu=gpu: ask(gpu))  # type: ignore[misc]
            except Overdue as error:
                self._note(uuid, f"the driver has not answered for {error.waited_s:.0f} s")
        wait(begun.values(), max(0.0, until_s - time.monotonic()))
        answers = {}
        for uuid, answer in begun.items():
            if not answer.done():
                self._note(uuid, f"the driver did not answer within {self._deadline_s:g} s")
                continue
            try:
                answers[uuid] = answer.result()
            except (NvmlFailed, OSError) as error:
                self._note(uuid, str(error))
                continue
            self._note(uuid, "")
        return answers

    def _note(self, uuid: str, trouble: str) -> None:
        """Keep why a device does not answer; say it once."""
        gpu = self._gpus[uuid]
        if trouble and not gpu.trouble:
            log.warning("%s is not read: %s", uuid, trouble)
        if gpu.trouble and not trouble:
            log.info("%s answers again", uuid)
        gpu.trouble = trouble

    def _find(self, until_s: float) -> None:
        """Open NVML, or initialise it again when a device is lost; take in what is new.

        Waits for at most half of the time; what takes longer goes on beside, and is taken in by a
        later call.
        """
        if self._looking is None:
            if self._nvml is not None and not self.troubles and self._gpus:
                self._patience.over()
                return
            # Asking for devices would hang in the one that hangs.
            if not all(gpu.worker.idle for gpu in self._gpus.values()):
                return
            if not self._patience.due(time.monotonic()):
                return
            self._looking, self._since_s = self._driver.begin(self._look), time.monotonic()
        wait([self._looking], max(0.0, (until_s - time.monotonic()) / 2))
        if not self._looking.done():
            waited_s = time.monotonic() - self._since_s
            self._trouble = f"NVML has been initialising for {waited_s:.0f} s"
            return
        looked, self._looking = self._looking, None
        try:
            self._take(*looked.result())
        except (SourceUnavailable, InputInvalid, OSError) as error:
            self._trouble = str(error)

    def _take(self, nvml: Nvml, quality: Quality, uuids: Sequence[str]) -> None:
        """Take in what was found."""
        self._trouble = ""
        for uuid in uuids:
            if uuid not in self._gpus:
                device = NvmlDevice(nvml=nvml, uuid=uuid, quality=quality)
                self._gpus[uuid] = _Gpu(device, Worker(f"nvml-{uuid[-12:]}"))

    def _look(self) -> tuple[Nvml, Quality, tuple[str, ...]]:
        """Open NVML, or initialise it again; list its devices. Runs beside, since it may hang."""
        nvml = self._nvml
        if nvml is None:
            nvml = Nvml.open(self._library)
            self._nvml = nvml  # kept even when what follows fails
        else:
            nvml.reopen()
        quality = Quality.SIMULATED if nvml.is_fake else Quality.MEASURED
        return nvml, quality, nvml.uuids()

    def _why(self) -> str:
        """Say why nothing could be read."""
        if self._trouble:
            return self._trouble
        if not self._gpus:
            return "NVML sees no GPU on this machine; look at `nvidia-smi`"
        first = next(iter(self.troubles.items()), None)
        said = f"; {first[0]}: {first[1]}" if first else ""
        return f"none of {len(self._gpus)} GPUs answers{said}"


def _close_after(nvml: Nvml, workers: Sequence[Worker]) -> None:
    """Close the library once every worker has made its last call."""
    for worker in workers:
        worker.ended(None)
    nvml.close()
