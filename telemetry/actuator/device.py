"""The GPUs as the actuator reads and writes them: a protocol, and NVML with a deadline per call.

Invariant: a GPU that hangs costs its deadline once; later calls to it fail at once, and the other
GPUs are read and written as before.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from wattmesh.errors import SourceUnavailable, WattmeshError
from wattmesh.telemetry.actuator.processes import living
from wattmesh.telemetry.actuator.rules.facts import GpuFacts
from wattmesh.telemetry.deadline import Overdue, Worker
from wattmesh.telemetry.sources.nvml import BoardLimits, Nvml, NvmlControl
from wattmesh.telemetry.sources.nvml_library import DeviceLost, DriverGone, NvmlFailed

T = TypeVar("T")

CALL_S = 1.0
"""Longest wait for one GPU; a read is about a dozen calls of some microseconds each."""

TRIES = 3
"""Attempts to read limits and energy counter from one load of the driver."""

OPEN_S = 10.0
"""Longest wait for `nvmlInit`; without persistence mode it loads the driver, which takes
seconds."""

LOOK_AGAIN_S, LOOK_AGAIN_LATER_S = 5.0, 60.0
"""First and longest pause between two attempts to find a missing driver or GPU. It doubles, because
every attempt initialises NVML again for all GPUs."""


class Device(Protocol):
    """What the engine asks of the GPUs. Every call may raise `SourceUnavailable`."""

    def facts(self, known: Iterable[str]) -> Mapping[str, GpuFacts | None]:
        """Read every GPU of the machine and of `known`; None where one does not answer."""
        ...

    def lock_clock(self, gpu_uuid: str, clock_mhz: int | None) -> None:
        """Lock the SM clock; None resets it. NVML cannot read a lock back."""
        ...

    def set_limit(self, gpu_uuid: str, limit_w: float) -> None:
        """Request a power limit; `requested_w` tells whether it was accepted."""
        ...

    def requested_w(self, gpu_uuid: str) -> float:
        """Read the power limit that was requested last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """What does not change while the driver stays loaded."""

    name: str
    lowest_mhz: int | None
    highest_mhz: int | None


@dataclass(slots=True)
class _Seen:
    """The library's handle, and what earlier reads found out."""

    nvml: Nvml | None = None
    uuids: tuple[str, ...] = ()
    boards: dict[str, _Board] = field(default_factory=dict)
    tried_s: float = float("-inf")
    pause_s: float = LOOK_AGAIN_S


class NvmlGpus:
    """The GPUs behind one NVML library. Not thread safe: the engine's lock guards it."""

    def __init__(self, library: Path | None = None, *, call_s: float = CALL_S) -> None:
        """Use a library.

        The first read opens it; later reads reopen it after a driver reload.

        Args:
            library: path of libnvidia-ml; None: the driver's own.
            call_s: longest wait for one GPU.
        """
        self._library = library
        self._call_s = call_s
        self._seen = _Seen()
        self._workers: dict[str, Worker] = {}

    def close(self) -> None:
        """Shut NVML down and end the worker threads."""
        for each in self._workers.values():
            each.close()
        if self._seen.nvml is not None:
            self._seen.nvml.close()
        self._seen = _Seen()

    def facts(self, known: Iterable[str]) -> Mapping[str, GpuFacts | None]:
        """Read every GPU; now and then look for a missing driver or GPU."""
        seen = self._seen
        if seen.nvml is None:
            self._find()
        found: dict[str, GpuFacts | None] = {}
        for uuid in dict.fromkeys((*seen.uuids, *known)):
            found[uuid] = self._facts(uuid) if uuid in seen.uuids else None
        if None in found.values() or not found:
            self._find()
        else:
            seen.pause_s = LOOK_AGAIN_S
        return found

    def lock_clock(self, gpu_uuid: str, clock_mhz: int | None) -> None:
        """Lock the SM clock; None resets it.

        Raises:
            SourceUnavailable: the GPU did not answer in time, or refused.
        """
        control = NvmlControl(self._nvml())
        if clock_mhz is None:
            self._call(gpu_uuid, lambda: control.reset_sm_clock(gpu_uuid))
        else:
            # The range starts at the lowest clock, so that an idle GPU may still clock down.
            low = self._board(self._nvml(), gpu_uuid).lowest_mhz or clock_mhz
            self._call(
                gpu_uuid, lambda: control.lock_sm_clock(gpu_uuid, clock_mhz, min(low, clock_mhz))
            )

    def set_limit(self, gpu_uuid: str, limit_w: float) -> None:
        """Request a power limit.

        Raises:
            SourceUnavailable: the GPU did not answer in time, or refused.
        """
        control = NvmlControl(self._nvml())
        self._call(gpu_uuid, lambda: control.set_power_limit(gpu_uuid, limit_w))

    def requested_w(self, gpu_uuid: str) -> float:
        """Read the requested limit (NVML field 192).

        Raises:
            SourceUnavailable: the GPU did not answer in time.
        """
        nvml = self._nvml()
        return self._call(gpu_uuid, lambda: nvml.limits(gpu_uuid).requested_w)

    def _nvml(self) -> Nvml:
        if self._seen.nvml is None:
            raise SourceUnavailable("no NVML library answers: is the NVIDIA driver loaded?")
        return self._seen.nvml

    def _facts(self, uuid: str) -> GpuFacts | None:
        """Read one GPU; None when it does not answer."""
        try:
            nvml = self._nvml()
            return self._call(uuid, lambda: _read(nvml, uuid, self._board(nvml, uuid)))
        except (WattmeshError, Overdue):
            return None

    def _board(self, nvml: Nvml, uuid: str) -> _Board:
        """Read it once per load of the driver."""
        if uuid not in self._seen.boards:
            none: tuple[int, ...] = ()
            clocks = _or(lambda: nvml.supported_clocks_mhz(uuid), none)
            self._seen.boards[uuid] = _Board(
                name=nvml.name(uuid),
                lowest_mhz=clocks[0] if clocks else None,
                highest_mhz=clocks[-1] if clocks else None,
            )
        return self._seen.boards[uuid]

    def _find(self) -> None:
        """Open the library, or initialise it again, unless the last attempt was too recent."""
        seen, now = self._seen, time.monotonic()
        if now < seen.tried_s + seen.pause_s:
            return
        if seen.nvml is not None:
            seen.pause_s = min(2 * seen.pause_s, LOOK_AGAIN_LATER_S)
        seen.tried_s = now
        limit_s = OPEN_S if seen.nvml is None else self._call_s
        with suppress(WattmeshError, Overdue):
            seen.nvml, found = self._call("", self._search, limit_s)
            # A GPU that was seen once stays listed, so that its loss is reported.
            seen.uuids = tuple(dict.fromkeys((*seen.uuids, *found)))
            seen.boards.clear()

    def _search(self) -> tuple[Nvml, tuple[str, ...]]:
        nvml = self._seen.nvml
        if nvml is None:
            nvml = Nvml.open(self._library)
        else:
            nvml.reopen()
        return nvml, nvml.uuids()

    def _call(self, name: str, work: Callable[[], T], limit_s: float | None = None) -> T:
        """Make a call in the GPU's own thread.

        Raises:
            SourceUnavailable: no answer in time, or what `work` raises.
        """
        worker = self._workers.get(name)
        if worker is None:
            worker = self._workers[name] = Worker(f"actuator-{name or 'search'}")
        try:
            return worker.call(work, self._call_s if limit_s is None else limit_s)
        except Overdue as error:
            raise SourceUnavailable(f"{name or 'NVML'}: the driver gave {error}") from error


def _read(nvml: Nvml, uuid: str, board: _Board) -> GpuFacts:
    limits, energy_mj = _of_one_life(nvml, uuid)
    return GpuFacts(
        gpu_uuid=uuid,
        board=board.name,
        min_w=limits.min_w,
        max_w=limits.max_w,
        default_w=limits.default_w,
        requested_w=limits.requested_w,
        enforced_w=limits.enforced_w,
        lowest_mhz=board.lowest_mhz,
        highest_mhz=board.highest_mhz,
        sm_mhz=_or(lambda: nvml.sm_clock_mhz(uuid), None),
        reasons=_or(lambda: nvml.reasons(uuid), None),
        energy_mj=energy_mj,
        persistence=_or(lambda: nvml.persistence(uuid), None),
        profile=_or(lambda: nvml.power_profile_active(uuid), None),
        shared=_or(lambda: nvml.shared(uuid), "unknown"),
        processes=_or(lambda: living(nvml.compute_pids(uuid)), None),
    )


def _of_one_life(nvml: Nvml, uuid: str) -> tuple[BoardLimits, int | None]:
    """Read limits and energy counter from the same load of the driver.

    A falling counter tells a driver reload from a foreign writer. Limits from before a reload with
    a counter from after it would hide the reload now and blame a foreign writer later.
    """
    energy_mj = _or(lambda: nvml.energy_mj(uuid), None)
    for _ in range(TRIES):
        before_mj, limits = energy_mj, nvml.limits(uuid)
        energy_mj = _or(lambda: nvml.energy_mj(uuid), None)
        if before_mj is None or energy_mj is None or energy_mj >= before_mj:
            break
    return limits, energy_mj


def _or(ask: Callable[[], T], otherwise: T) -> T:
    """Return `otherwise` for what this board or driver cannot tell.

    Raises:
        DriverGone, DeviceLost: the GPU answers nothing at all.
    """
    try:
        return ask()
    except (DriverGone, DeviceLost):
        raise
    except NvmlFailed:
        return otherwise
