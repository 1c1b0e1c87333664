"""The one door to NVML: nvidia-ml-py as small typed functions; devices by UUID, never by index.

Invariant: a process has one NVML library. nvidia-ml-py keeps it in a global, so a second one would
silently serve, or be served by, the first; `Nvml.open` refuses it for as long as a door to the
first is open. Who needs two libraries (two agents on one machine) runs two processes.

Units are converted here, once: watts, millijoules, megahertz. NVML's return codes become the small
tree of errors below. The calls may hang with the driver: whoever cannot wait makes them from a
`deadline.Worker` (ctypes lets other threads run meanwhile).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pynvml

from wattmesh.telemetry.sources.nvml_library import (
    DeviceLost,
    DriverGone,
    NotPermitted,
    NotSupported,
    NvmlFailed,
    acquire,
    generation,
    initialise_again,
    release,
    told,
)

__all__ = [
    "BoardLimits",
    "DeviceLost",
    "DriverGone",
    "NotPermitted",
    "NotSupported",
    "Nvml",
    "NvmlControl",
    "NvmlFailed",
]

BLANK = 0x7FFF_FFFF_FFFF_FFF0
"""DCGM's and NVML's 64 bit blanks lie from here on: "no value", not nine quintillion joules."""

ENERGY = 191
TOTAL_ENERGY = 83
POWER_AVERAGE = 185
POWER_INSTANT = 186
ENFORCED_LIMIT = 190
REQUESTED_LIMIT = 192
"""Field ids of nvml.h that this door is asked for by name."""

_SHARED_MODES = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU,
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """Power limits of one board, in watts.

    Attributes:
        min_w, max_w: what may be set. `default_w`: the board's own; not always what was found.
        requested_w: what was last asked for through NVML. `enforced_w`: what holds; lower than
            requested where somebody caps out of band (BMC).
    """

    min_w: float
    max_w: float
    default_w: float
    requested_w: float
    enforced_w: float


class Nvml:
    """Reads devices. Thread safe; close it, or use it as a context."""

    def __init__(self) -> None:
        """Use `open`."""
        self._open = True
        self._handles: dict[str, Any] = {}
        self._generation = generation()

    @classmethod
    def open(cls, library: Path | None = None) -> Self:
        """Load and initialise NVML.

        Args:
            library: this file; None: the driver's own libnvidia-ml.so.1, by the system's rules.

        Raises:
            DriverGone: no such library, or it finds no driver.
            InputInvalid: this process has another library open already.
        """
        path = library.resolve() if library is not None else None
        acquire(path)
        return cls()

    def close(self) -> None:
        """Let go of the library; the last door out shuts it down."""
        if self._open:
            self._open = False
            release()

    def __enter__(self) -> Self:
        """Use it as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def reopen(self) -> None:
        """Shut NVML down and initialise it again: finds GPUs that came back, a driver reloaded.

        Calls of other threads wait meanwhile, and handles of every door are found anew.

        Raises:
            DriverGone: there is no driver now; call again later.
            NvmlFailed: another call is under way and does not end; nothing was done.
        """
        initialise_again()

    @property
    def driver_version(self) -> str:
        """The driver's version, e.g. "595.71.05".

        Raises:
            NvmlFailed: it did not answer.
        """
        return str(told("read the driver's version", "nvmlSystemGetDriverVersion"))

    @property
    def is_fake(self) -> bool:
        """Whether this is the fake library: all it says is simulated."""
        return "fake" in self.driver_version.lower()

    def uuids(self) -> tuple[str, ...]:
        """List the GPUs that answer, by their UUID; a board in MIG mode is one.

        Raises:
            NvmlFailed: not even their number could be read.
        """
        count = told("count GPUs", "nvmlDeviceGetCount")
        found = {}
        for index in range(count):
            try:
                handle = told(f"find GPU {index}", "nvmlDeviceGetHandleByIndex", index)
                found[str(told(f"name GPU {index}", "nvmlDeviceGetUUID", handle))] = handle
            except NvmlFailed:
                continue  # lost: the others are asked on
        self._forget_old_handles()
        self._handles.update(found)
        return tuple(found)

    def name(self, uuid: str) -> str:
        """Give the board's name, e.g. "NVIDIA H100 80GB HBM3"."""
        return str(self._ask(uuid, "name", "nvmlDeviceGetName"))

    def limits(self, uuid: str) -> BoardLimits:
        """Read the power limits of a board."""
        low_mw, high_mw = self._ask(
            uuid, "power limits", "nvmlDeviceGetPowerManagementLimitConstraints"
        )
        default_mw = self._ask(
            uuid, "default power limit", "nvmlDeviceGetPowerManagementDefaultLimit"
        )
        told = self.fields(uuid, (REQUESTED_LIMIT, ENFORCED_LIMIT))
        requested_mw, enforced_mw = told.get(REQUESTED_LIMIT), told.get(ENFORCED_LIMIT)
        if requested_mw is None:  # drivers before 555 have no field for it
            requested_mw = self._ask(
                uuid, "requested power limit", "nvmlDeviceGetPowerManagementLimit"
            )
        if enforced_mw is None:
            enforced_mw = self._ask(uuid, "enforced power limit", "nvmlDeviceGetEnforcedPowerLimit")
        return BoardLimits(
            min_w=low_mw / 1000,
            max_w=high_mw / 1000,
            default_w=default_mw / 1000,
            requested_w=requested_mw / 1000,
            enforced_w=enforced_mw / 1000,
        )

    def fields(self, uuid: str, ids: Sequence[int]) -> dict[int, int]:
        """Read several fields in one call; what a field does not know is left out.

        Returns:
            whole numbers as NVML has them: milliwatts and millijoules.
        """
        values = self._ask(uuid, "fields", "nvmlDeviceGetFieldValues", list(ids))
        told = {}
        for each in values:
            value = _field(each)
            if value is not None:
                told[int(each.fieldId)] = value
        return told

    def energy_mj(self, uuid: str) -> int:
        """Read the energy counter by its own call: millijoules since the driver was loaded."""
        return int(self._ask(uuid, "energy", "nvmlDeviceGetTotalEnergyConsumption"))

    def power_w(self, uuid: str) -> float:
        """Read the power: the mean of the last second on most boards since Ampere."""
        return float(self._ask(uuid, "power", "nvmlDeviceGetPowerUsage")) / 1000

    def sm_clock_mhz(self, uuid: str) -> int:
        """Read the clock of the multiprocessors now."""
        return int(self._ask(uuid, "SM clock", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def supported_clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        """List the clocks that may be locked, ascending, at the highest memory clock."""
        memory = self._ask(uuid, "memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory:
            return ()
        clocks = self._ask(
            uuid, "graphics clocks", "nvmlDeviceGetSupportedGraphicsClocks", max(memory)
        )
        return tuple(sorted(clocks))

    def reasons(self, uuid: str) -> int:
        """Read why the clock is what it is: the clocks event reason bits."""
        try:
            return int(self._ask(uuid, "clock reasons", "nvmlDeviceGetCurrentClocksEventReasons"))
        except NotSupported:  # the older name of the same call, before driver 535
            return int(
                self._ask(uuid, "clock reasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
            )

    def temperature_c(self, uuid: str) -> float:
        """Read the temperature of the GPU's core."""
        sensor = pynvml.NVML_TEMPERATURE_GPU
        try:
            return float(self._ask(uuid, "temperature", "nvmlDeviceGetTemperatureV", sensor))
        except NotSupported:
            return float(self._ask(uuid, "temperature", "nvmlDeviceGetTemperature", sensor))

    def utilization(self, uuid: str) -> float:
        """Read the share of the last period in which a kernel ran, 0 to 1."""
        return float(self._ask(uuid, "use", "nvmlDeviceGetUtilizationRates").gpu) / 100

    def persistence(self, uuid: str) -> bool:
        """Say whether the driver stays loaded without clients (else limits are lost with it)."""
        return bool(self._ask(uuid, "persistence mode", "nvmlDeviceGetPersistenceMode"))

    def mig(self, uuid: str) -> bool:
        """Say whether the board is, or is about to be, cut into MIG instances."""
        try:
            return any(self._ask(uuid, "MIG mode", "nvmlDeviceGetMigMode"))
        except NotSupported:
            return False

    def shared(self, uuid: str) -> str:
        """Say why a GPU cannot belong to one run alone: "mig", "vgpu", or "" when it can."""
        if self.mig(uuid):
            return "mig"
        try:
            mode = self._ask(uuid, "virtualization", "nvmlDeviceGetVirtualizationMode")
        except NotSupported:
            return ""
        return "vgpu" if mode in _SHARED_MODES else ""

    def compute_pids(self, uuid: str) -> tuple[int, ...]:
        """List the processes that hold a compute context on the GPU, ascending."""
        processes = self._ask(uuid, "processes", "nvmlDeviceGetComputeRunningProcesses")
        return tuple(sorted({int(each.pid) for each in processes}))

    def power_profile_active(self, uuid: str) -> bool:
        """Say whether a workload power profile (Blackwell) shapes the clocks beside us."""
        kind = getattr(pynvml, "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t", None)
        if kind is None:
            return False
        profiles = kind()
        try:
            self._ask(
                uuid,
                "power profiles",
                "nvmlDeviceWorkloadPowerProfileGetCurrentProfiles",
                ctypes.byref(profiles),
            )
        except NotSupported:
            return False
        return any(profiles.enforcedProfilesMask.mask) or any(profiles.requestedProfilesMask.mask)

    def _ask(self, uuid: str, what: str, name: str, *arguments: object) -> Any:
        """Call NVML about one device.

        Raises:
            NvmlFailed: see the tree; the message names the device.
        """
        try:
            return told(f"read {what} of {uuid}", name, self.handle(uuid), *arguments)
        except DeviceLost:
            self._handles.pop(uuid, None)  # when it is back it may have another
            raise

    def handle(self, uuid: str) -> Any:
        """Give NVML's handle of a device; it is void after `reopen`.

        Raises:
            DeviceLost: there is none of this UUID.
        """
        self._forget_old_handles()
        handle = self._handles.get(uuid)
        if handle is None:
            handle = told(f"find {uuid}", "nvmlDeviceGetHandleByUUID", uuid)
            self._handles[uuid] = handle
        return handle

    def _forget_old_handles(self) -> None:
        """Drop what was found before the last `reopen`, by whichever door."""
        if self._generation != generation():
            self._handles, self._generation = {}, generation()


class NvmlControl:
    """Changes devices; only the actuator has one. Every set must be read back by the caller."""

    def __init__(self, nvml: Nvml) -> None:
        """Change devices through this door."""
        self._nvml = nvml

    def set_power_limit(self, uuid: str, limit_w: float) -> None:
        """Ask for a board power limit, rounded to whole milliwatts.

        Uses the first version of NVML's setter: the binding of the second (13.615) never looks at
        what the driver answered and reports success always.

        Raises:
            NotPermitted: not root. NvmlFailed: refused, e.g. outside [min_w, max_w] (code 2).
        """
        self._set(
            uuid,
            f"set the power limit to {limit_w:g} W on",
            "nvmlDeviceSetPowerManagementLimit",
            round(1000 * limit_w),
        )

    def lock_sm_clock(self, uuid: str, clock_mhz: int, lowest_mhz: int | None = None) -> None:
        """Lock the SM clock to [lowest_mhz, clock_mhz]; without `lowest_mhz`, to one clock.

        Raises:
            NotPermitted: not root. NotSupported: before Volta. NvmlFailed: refused.
        """
        self._set(
            uuid,
            f"lock the SM clock to {clock_mhz} MHz on",
            "nvmlDeviceSetGpuLockedClocks",
            clock_mhz if lowest_mhz is None else lowest_mhz,
            clock_mhz,
        )

    def reset_sm_clock(self, uuid: str) -> None:
        """Give the SM clock back to the driver.

        Raises:
            NotPermitted: not root. NvmlFailed: refused.
        """
        self._set(uuid, "reset the SM clock of", "nvmlDeviceResetGpuLockedClocks")

    def _set(self, uuid: str, what: str, name: str, *arguments: int) -> None:
        """Call a setter."""
        told(f"{what} {uuid}", name, self._nvml.handle(uuid), *arguments)


def _field(each: Any) -> int | None:
    """Give the whole number in a field value; None where it has none."""
    if each.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    value = each.value
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: lambda: round(value.dVal),
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: lambda: value.uiVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: lambda: value.ulVal,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: lambda: value.ullVal,
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: lambda: value.sllVal,
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: lambda: value.siVal,
    }
    kind = kinds.get(each.valueType)
    number = int(kind()) if kind is not None else -1
    return number if 0 <= number < BLANK else None
