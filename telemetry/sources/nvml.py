"""NVML through nvidia-ml-py, as small typed functions; devices by UUID, never by index.

Invariant: a process has one NVML library. nvidia-ml-py keeps it in a global, so a second one would
silently replace the first; `Nvml.open` refuses it while an `Nvml` of the first is open. Two
libraries (two agents on one machine) need two processes.

Units are converted here, once: watts, millijoules, megahertz. NVML's return codes become the errors
of `nvml_library`. A call may hang with the driver: a caller that cannot wait makes it from a
`deadline.Worker` (ctypes releases the GIL meanwhile).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pynvml

from wattmesh.telemetry.sources.nvml_library import (
    DeviceLost,
    DriverGone,
    NotPermitted,
    NotSupported,
    NvmlFailed,
    acquire,
    call_nvml,
    generation,
    initialise_again,
    release,
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
"""64-bit values from here on are the blanks of DCGM and NVML: they mean "no value"."""

ENERGY = 191
TOTAL_ENERGY = 83
POWER_AVERAGE = 185
POWER_INSTANT = 186
ENFORCED_LIMIT = 190
REQUESTED_LIMIT = 192
"""Field ids of nvml.h that other modules ask for."""

_SHARED_MODES = {
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU,
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VGPU,
    pynvml.NVML_GPU_VIRTUALIZATION_MODE_HOST_VSGA,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """Power limits of one board, in watts.

    Attributes:
        min_w, max_w: the range that the board accepts.
        default_w: the board's default, which is not always what is set at start.
        requested_w: the limit last requested through NVML.
        enforced_w: the limit in force; lower than requested under an out-of-band cap (BMC).
    """

    min_w: float
    max_w: float
    default_w: float
    requested_w: float
    enforced_w: float


class Nvml:
    """Reads devices. Thread safe. Close it, or use it as a context."""

    def __init__(self) -> None:
        """Use `open`."""
        self._open = True
        self._handles: dict[str, Any] = {}
        self._generation = generation()

    @classmethod
    def open(cls, library: Path | None = None) -> Self:
        """Load and initialise NVML.

        Args: library: path of the library; None: the driver's libnvidia-ml.so.1, as the loader
        finds it.

        Raises:
            DriverGone: there is no such library, or it finds no driver.
            InputInvalid: this process has another library open.
        """
        path = library.resolve() if library is not None else None
        acquire(path)
        return cls()

    def close(self) -> None:
        """Release the library; the last user shuts NVML down."""
        if self._open:
            self._open = False
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reopen(self) -> None:
        """Shut NVML down and initialise it again, to find GPUs and drivers that came back.

        Calls of other threads wait meanwhile, and every `Nvml` looks its handles up again.

        Raises:
            DriverGone: there is no driver now; call again later.
            NvmlFailed: another call hangs; nothing was done.
        """
        initialise_again()

    @property
    def driver_version(self) -> str:
        """The driver's version, e.g. "595.71.05".

        Raises:
            NvmlFailed: it did not answer.
        """
        return str(call_nvml("read the driver's version", "nvmlSystemGetDriverVersion"))

    @property
    def is_fake(self) -> bool:
        """Tell whether this is the fake library, whose readings are simulated."""
        return "fake" in self.driver_version.lower()

    def uuids(self) -> tuple[str, ...]:
        """List the GPUs that answer, by UUID; a board in MIG mode is one GPU.

        Raises:
            NvmlFailed: not even their number could be read.
        """
        count = call_nvml("count GPUs", "nvmlDeviceGetCount")
        found = {}
        for index in range(count):
            try:
                handle = call_nvml(f"find GPU {index}", "nvmlDeviceGetHandleByIndex", index)
                found[str(call_nvml(f"name GPU {index}", "nvmlDeviceGetUUID", handle))] = handle
            except NvmlFailed:
                continue  # lost; the others may answer
        self._forget_old_handles()
        self._handles.update(found)
        return tuple(found)

    def name(self, uuid: str) -> str:
        """Read the board's name, e.g. "NVIDIA H100 80GB HBM3"."""
        return str(self._ask(uuid, "name", "nvmlDeviceGetName"))

    def vbios(self, uuid: str) -> str:
        """Read the version of the board's firmware, e.g. "96.00.74.00.01"."""
        return str(self._ask(uuid, "VBIOS version", "nvmlDeviceGetVbiosVersion"))

    def limits(self, uuid: str) -> BoardLimits:
        """Read the power limits of a board."""
        low_mw, high_mw = self._ask(
            uuid, "power limits", "nvmlDeviceGetPowerManagementLimitConstraints"
        )
        default_mw = self._ask(
            uuid, "default power limit", "nvmlDeviceGetPowerManagementDefaultLimit"
        )
        values = self.fields(uuid, (REQUESTED_LIMIT, ENFORCED_LIMIT))
        requested_mw, enforced_mw = values.get(REQUESTED_LIMIT), values.get(ENFORCED_LIMIT)
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
        """Read several fields in one call; a field without a value is left out.

        Returns:
            NVML's integers by field id: milliwatts and millijoules.
        """
        values = self._ask(uuid, "fields", "nvmlDeviceGetFieldValues", list(ids))
        by_id = {}
        for each in values:
            value = _field(each)
            if value is not None:
                by_id[int(each.fieldId)] = value
        return by_id

    def energy_mj(self, uuid: str) -> int:
        """Read the energy counter by its own call: millijoules since the driver was loaded."""
        return int(self._ask(uuid, "energy", "nvmlDeviceGetTotalEnergyConsumption"))

    def power_w(self, uuid: str) -> float:
        """Read the power, on most boards since Ampere the mean of the last second."""
        return float(self._ask(uuid, "power", "nvmlDeviceGetPowerUsage")) / 1000

    def sm_clock_mhz(self, uuid: str) -> int:
        """Read the present SM clock."""
        return int(self._ask(uuid, "SM clock", "nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM))

    def supported_clocks_mhz(self, uuid: str) -> tuple[int, ...]:
        """List the lockable clocks at the highest memory clock, ascending."""
        memory = self._ask(uuid, "memory clocks", "nvmlDeviceGetSupportedMemoryClocks")
        if not memory:
            return ()
        clocks = self._ask(
            uuid, "graphics clocks", "nvmlDeviceGetSupportedGraphicsClocks", max(memory)
        )
        return tuple(sorted(clocks))

    def reasons(self, uuid: str) -> int:
        """Read the clocks event reason bits: why the clock is not higher."""
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
        """Tell whether the driver stays loaded without clients (else limits are lost)."""
        return bool(self._ask(uuid, "persistence mode", "nvmlDeviceGetPersistenceMode"))

    def mig(self, uuid: str) -> bool:
        """Tell whether MIG mode is on, or pending."""
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
        """List the processes with a compute context on the GPU, ascending."""
        processes = self._ask(uuid, "processes", "nvmlDeviceGetComputeRunningProcesses")
        return tuple(sorted({int(each.pid) for each in processes}))

    def power_profile_active(self, uuid: str) -> bool:
        """Tell whether a workload power profile (Blackwell) also sets the clocks."""
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
            NvmlFailed: see `nvml_library`; the message names the device.
        """
        try:
            return call_nvml(f"read {what} of {uuid}", name, self.handle(uuid), *arguments)
        except DeviceLost:
            self._handles.pop(uuid, None)  # after it comes back its handle may differ
            raise

    def handle(self, uuid: str) -> Any:
        """Return NVML's handle of a device; it is void after `reopen`.

        Raises:
            DeviceLost: no device has this UUID.
        """
        self._forget_old_handles()
        handle = self._handles.get(uuid)
        if handle is None:
            handle = call_nvml(f"find {uuid}", "nvmlDeviceGetHandleByUUID", uuid)
            self._handles[uuid] = handle
        return handle

    def _forget_old_handles(self) -> None:
        """Drop handles from before the last `reopen`, of any `Nvml`."""
        if self._generation != generation():
            self._handles, self._generation = {}, generation()


class NvmlControl:
    """Changes devices. Only the actuator uses it, and must read every change back."""

    def __init__(self, nvml: Nvml) -> None:
        """Write to the devices of `nvml`."""
        self._nvml = nvml

    def set_power_limit(self, uuid: str, limit_w: float) -> None:
        """Request a board power limit, rounded to whole milliwatts.

        It uses version 1 of NVML's setter: the binding of version 2 (13.615) ignores the driver's
        return code and always reports success.

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
        """Remove the SM clock lock.

        Raises:
            NotPermitted: not root. NvmlFailed: refused.
        """
        self._set(uuid, "reset the SM clock of", "nvmlDeviceResetGpuLockedClocks")

    def _set(self, uuid: str, what: str, name: str, *arguments: int) -> None:
        call_nvml(f"{what} {uuid}", name, self._nvml.handle(uuid), *arguments)


def _field(each: Any) -> int | None:
    """Decode the integer of a field value; None where it has none."""
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
