"""This machine's GPUs through a vendor's library, each with its own thread.

Invariant: `read` ends within its deadline whatever the driver does. A call that hangs costs only
its own GPU's readings; lost GPUs are left out, and found again when they come back.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wattmesh.errors import InputInvalid, SourceUnavailable
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.readings import PowerReading

T = TypeVar("T")
log = logging.getLogger(__name__)

DEADLINE_S = 1.0
"""Longest duration of a reading of all GPUs; a healthy board answers in milliseconds."""

RETRY_S, LONGEST_RETRY_S = 2.0, 60.0
"""First and longest pause between two searches for a lost GPU; it doubles. Initialising a library
again takes a second on some machines, in which no GPU can be read."""


class GpuDevice(Protocol):
    """One GPU; one thread calls it."""

    def read(self) -> PowerReading:
        """Read it.

        Raises:
            SourceUnavailable: it does not answer.
        """
        ...

    def pids(self) -> tuple[int, ...]:
        """List the processes that compute on it.

        Raises:
            SourceUnavailable: it does not answer.
        """
        ...


class GpuLibrary(Protocol):
    """A vendor's library, opened and initialised."""

    def reopen(self) -> None:
        """Initialise it again, to find GPUs and drivers that came back.

        Raises:
            SourceUnavailable: there is no driver now, or another call hangs.
        """
        ...

    def close(self) -> None:
        """Release it."""
        ...

    def devices(self) -> Mapping[str, GpuDevice]:
        """Make the devices that answer now, by UUID.

        Raises:
            SourceUnavailable: they cannot be listed.
        """
        ...


@dataclass(slots=True)
class _Backoff:
    """Back-off of the searches for a lost GPU."""

    wait_s: float = RETRY_S
    next_s: float = 0.0

    def due(self, now_s: float) -> bool:
        """Tell whether to search now; if so, the next search comes later."""
        if now_s < self.next_s:
            return False
        self.next_s = now_s + self.wait_s
        self.wait_s = min(2 * self.wait_s, LONGEST_RETRY_S)
        return True

    def over(self) -> None:
        """Reset the back-off: no GPU is lost."""
        self.wait_s, self.next_s = RETRY_S, 0.0


@dataclass(slots=True)
class _Gpu:
    """A device, its thread, and why it did not answer last; "" when it did."""

    device: GpuDevice
    worker: Worker
    trouble: str = ""


class ThreadedGpus:
    """The GPUs of one library as a `PowerSource`. Concurrent callers take turns."""

    def __init__(
        self,
        name: str,
        open_library: Callable[[], GpuLibrary],
        *,
        look_at: str,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """Prepare; the first reading opens the library, and later ones retry until it is open.

        Args:
            name: of the source, on screens and in ledger rows.
            open_library: loads and initialises the library; may hang.
            look_at: the vendor's command that lists GPUs.
            deadline_s: longest duration of `read`, and of `compute_pids`.
        """
        self._name, self._open, self._look_at = name, open_library, look_at
        self._deadline_s = deadline_s
        self._library: GpuLibrary | None = None
        self._driver = Worker(f"{name}-driver")
        self._gpus: dict[str, _Gpu] = {}
        self._patience = _Backoff()
        self._trouble = ""
        self._looking: Future[Mapping[str, GpuDevice]] | None = None
        self._since_s = 0.0
        self._turn = threading.Lock()

    @property
    def name(self) -> str:
        """The source's name on screens and in ledger rows."""
        return self._name

    @property
    def troubles(self) -> Mapping[str, str]:
        """Why devices did not answer the last time, by UUID."""
        return {uuid: gpu.trouble for uuid, gpu in self._gpus.items() if gpu.trouble}

    def gpu_uuids(self) -> Sequence[str]:
        """List every device that was ever found."""
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
        """List the pids on each device; a device that cannot be read is left out.

        Raises:
            SourceUnavailable: no device could be read.
        """
        return self._each(lambda gpu: gpu.device.pids())

    def close(self) -> None:
        """End the threads and release the library; after a call that hangs, when it ends."""
        workers = (self._driver, *(gpu.worker for gpu in self._gpus.values()))
        for worker in workers:
            worker.close()
        library, self._library = self._library, None
        if library is None:
            return
        if all([worker.ended(self._deadline_s / len(workers)) for worker in workers]):
            library.close()
            return
        # A shutdown would hang like the call that is under way.
        late = threading.Thread(target=_close_after, args=(library, workers), daemon=True)
        late.start()

    def _each(self, ask: Callable[[_Gpu], T]) -> dict[str, T]:
        """Call `ask` for all devices within the deadline.

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
        """Call `ask` for all devices concurrently, and note why one did not answer."""
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
            except (SourceUnavailable, OSError) as error:
                self._note(uuid, str(error))
                continue
            self._note(uuid, "")
        return answers

    def _note(self, uuid: str, trouble: str) -> None:
        """Keep why a device does not answer, and log it once."""
        gpu = self._gpus[uuid]
        if trouble and not gpu.trouble:
            log.warning("%s is not read: %s", uuid, trouble)
        if gpu.trouble and not trouble:
            log.info("%s answers again", uuid)
        gpu.trouble = trouble

    def _find(self, until_s: float) -> None:
        """Open the library, or initialise it again when a device is lost, and add new devices.

        It waits for at most half of the time left; what takes longer goes on in its thread, and a
        later call takes the result.
        """
        if self._looking is None:
            if self._library is not None and not self.troubles and self._gpus:
                self._patience.over()
                return
            # Listing devices would hang like the call that is under way.
            if not all(gpu.worker.idle for gpu in self._gpus.values()):
                return
            if not self._patience.due(time.monotonic()):
                return
            self._looking, self._since_s = self._driver.begin(self._look), time.monotonic()
        wait([self._looking], max(0.0, (until_s - time.monotonic()) / 2))
        if not self._looking.done():
            waited_s = time.monotonic() - self._since_s
            self._trouble = f"{self._name} has been initialising for {waited_s:.0f} s"
            return
        looked, self._looking = self._looking, None
        try:
            self._take(looked.result())
        except (SourceUnavailable, InputInvalid, OSError) as error:
            self._trouble = str(error)

    def _take(self, devices: Mapping[str, GpuDevice]) -> None:
        self._trouble = ""
        for uuid, device in devices.items():
            if uuid not in self._gpus:
                self._gpus[uuid] = _Gpu(device, Worker(f"{self._name}-{uuid[-12:]}"))

    def _look(self) -> Mapping[str, GpuDevice]:
        """Open the library or initialise it again, and list devices.

        It may hang, so a worker runs it.
        """
        library = self._library
        if library is None:
            library = self._open()
            self._library = library  # kept even when what follows fails
        else:
            library.reopen()
        return library.devices()

    def _why(self) -> str:
        if self._trouble:
            return self._trouble
        if not self._gpus:
            return f"{self._name} sees no GPU on this machine; look at `{self._look_at}`"
        first = next(iter(self.troubles.items()), None)
        said = f"; {first[0]}: {first[1]}" if first else ""
        return f"none of {len(self._gpus)} GPUs answers{said}"


def _close_after(library: GpuLibrary, workers: Sequence[Worker]) -> None:
    """Close the library once every worker has made its last call."""
    for worker in workers:
        worker.ended(None)
    library.close()
