"""This machine's NVIDIA GPUs, through NVML."""

from collections.abc import Mapping
from pathlib import Path

from wattmesh.telemetry.readings import Quality
from wattmesh.telemetry.sources.gpu_threads import DEADLINE_S, GpuDevice, ThreadedGpus
from wattmesh.telemetry.sources.nvml import Nvml
from wattmesh.telemetry.sources.nvml_device import NvmlDevice


class NvmlSource(ThreadedGpus):
    """NVML as a `PowerSource`."""

    def __init__(self, library: Path | None = None, *, deadline_s: float = DEADLINE_S) -> None:
        """Prepare; the first reading opens NVML, and later ones retry until it is open.

        Args:
            library: path of libnvidia-ml, e.g. the fake one; None: the driver's own.
            deadline_s: longest duration of `read`, and of `compute_pids`.
        """
        super().__init__(
            "nvml", lambda: _Library(library), look_at="nvidia-smi", deadline_s=deadline_s
        )


class _Library:
    """NVML as a library of GPUs."""

    def __init__(self, path: Path | None) -> None:
        self._nvml = Nvml.open(path)

    def reopen(self) -> None:
        self._nvml.reopen()

    def close(self) -> None:
        self._nvml.close()

    def devices(self) -> Mapping[str, GpuDevice]:
        quality = Quality.SIMULATED if self._nvml.is_fake else Quality.MEASURED
        return {
            uuid: NvmlDevice(nvml=self._nvml, uuid=uuid, quality=quality)
            for uuid in self._nvml.uuids()
        }
