"""The GPUs as the actuator reaches them: a protocol, and NVML behind it, each call with a deadline.

Invariant: a GPU that hangs costs its deadline once; afterwards it fails at once, and the others
are read and written as ever.
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
"""Of a read during which the driver was loaded anew."""

OPEN_S = 10.0
"""Longest wait for a driver that is loaded for us; without persistence that takes seconds."""

LOOK_AGAIN_S, LOOK_AGAIN_LATER_S = 5.0, 60.0
"""Between two attempts to find a driver, or GPUs, that are gone: doubled from one to the other,
because every attempt initialises NVML again for all GPUs."""


class Device(Protocol):
    """What the engine asks for. Every call may raise `SourceUnavailable`."""

    def facts(self, known: Iterable[str]) -> Mapping[str, GpuFacts | None]:
        """Read every GPU of the machine and every one of `known`; None: it does not answer."""
        ...

    def lock_clock(self, gpu_uuid: str, clock_mhz: int | None) -> None:
        """Lock the SM clock; None: give it back to the driver. It cannot be read back."""
        ...

    def set_limit(self, gpu_uuid: str, limit_w: float) -> None:
        """Ask for a power limit. Whether it was taken, `requested_w` says."""
        ...

    def requested_w(self, gpu_uuid: str) -> float:
        """Read the limit that was last asked for."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Board:
    """What does not change while a driver is loaded."""

    name: str
    lowest_mhz: int | None
    highest_mhz: int | None


@dataclass(slots=True)
class _Seen:
    """What is known of the library between reads."""

    nvml: Nvml | None = None
    uuids: tuple[str, ...] = ()
    boards: dict[str, _Board] = field(default_factory=dict)
    tried_s: float = float("-inf")
    pause_s: float = LOOK_AGAIN_S


class NvmlDevice:
    """The GPUs behind one NVML library. Not thread safe: the engine's lock guards it."""

    def __init__(self, library: Path | None = None, *, call_s: float = CALL_S) -> None:
        """Use a library; it is opened by the first read, and again when its driver went.

        Args:
            library: another one than the driver's own.
            call_s: longest wait for one GPU.
        """
        self._library = library
        self._call_s = call_s
        self._seen = _Seen()
        self._workers: dict[str, Worker] = {}

    def close(self) -> None:
        """Let go of the library."""
        for each in self._workers.values():
            each.close()
        if self._seen.nvml is not None:
            self._seen.nvml.close()
        self._seen = _Seen()

    def facts(self, known: Iterable[str]) -> Mapping[str, GpuFacts | None]:
        """Read every GPU; finds the driver, and GPUs that came back, every few seconds."""
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
        """Lock the SM clock, or give it back.

        Raises:
            SourceUnavailable: the GPU did not answer in time, or refused.
        """
        control = NvmlControl(self._nvml())
        if clock_mhz is None:
            self._call(gpu_uuid, lambda: control.reset_sm_clock(gpu_uuid))
        else:
            # From the lowest clock on, so that an idle GPU may still sleep.
            low = self._board(self._nvml(), gpu_uuid).lowest_mhz or clock_mhz
            self._call(
                gpu_uuid, lambda: control.lock_sm_clock(gpu_uuid, clock_mhz, min(low, clock_mhz))
            )

    def set_limit(self, gpu_uuid: str, limit_w: float) -> None:
        """Ask for a power limit.

        Raises:
            SourceUnavailable: the GPU did not answer in time, or refused.
        """
        control = NvmlControl(self._nvml())
        self._call(gpu_uuid, lambda: control.set_power_limit(gpu_uuid, limit_w))

    def requested_w(self, gpu_uuid: str) -> float:
        """Read the requested limit (field 192).

        Raises:
            SourceUnavailable: the GPU did not answer in time.
        """
        nvml = self._nvml()
        return self._call(gpu_uuid, lambda: nvml.limits(gpu_uuid).requested_w)

    def _nvml(self) -> Nvml:
        """Give the open library.

        Raises:
            SourceUnavailable: there is none.
        """
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
        """Read what does not change, once."""
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
        """Open the library, or initialise it again, when it is time."""
        seen, now = self._seen, time.monotonic()
        if now < seen.tried_s + seen.pause_s:
            return
        if seen.nvml is not None:
            seen.pause_s = min(2 * seen.pause_s, LOOK_AGAIN_LATER_S)
        seen.tried_s = now
        limit_s = OPEN_S if seen.nvml is None else self._call_s
        with suppress(WattmeshError, Overdue):
            seen.nvml, found = self._call("", self._search, limit_s)
            # What was seen once stays listed: a GPU that is lost is told of, not forgotten.
            seen.uuids = tuple(dict.fromkeys((*seen.uuids, *found)))
            seen.boards.clear()

    def _search(self) -> tuple[Nvml, tuple[str, ...]]:
        """Open or reopen, and list the GPUs."""
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
    """Ask one GPU everything.

    Raises:
        NvmlFailed: what must be known is not.
    """
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
    """Read the limits and the counter of one life of the driver.

    The counter that falls tells a driver that was loaded anew from somebody else's hand; limits
    from before that and a counter from after it would convict nobody now and an innocent later.
    """
    energy_mj = _or(lambda: nvml.energy_mj(uuid), None)
    for _ in range(TRIES):
        before_mj, limits = energy_mj, nvml.limits(uuid)
        energy_mj = _or(lambda: nvml.energy_mj(uuid), None)
        if before_mj is None or energy_mj is None or energy_mj >= before_mj:
            break
    return limits, energy_mj


def _or(ask: Callable[[], T], otherwise: T) -> T:
    """Ask; what this board or driver cannot tell is `otherwise`.

    Raises:
        DriverGone, DeviceLost: it tells nothing at all.
    """
    try:
        return ask()
    except (DriverGone, DeviceLost):
        raise
    except NvmlFailed:
        return otherwise
