"""The GPU a figure was measured on, and why there is none. Everything is read, nothing is set."""

import platform
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.chosen import Chosen
from wattmesh.errors import SourceUnavailable
from wattmesh.telemetry.sources.nvml import Nvml, NvmlFailed


def problem() -> str:
    """Say why nothing can be measured here; "" when it can."""
    if torch.version.cuda is None:
        return (
            f"No GPU was measured: torch {torch.__version__} of this interpreter is built without "
            "CUDA; on a machine with an NVIDIA GPU use one that has it, "
            "`make gpu PYTHON=/path/to/python`."
        )
    if not torch.cuda.is_available():
        return "No GPU was measured: torch finds none on this machine."
    return ""


def measured_uuid(nvml: Nvml, chosen: Chosen) -> str:
    """Give NVML's name of the device that torch calls 0.

    Raises:
        SourceUnavailable: NVML does not see it.
    """
    uuids = nvml.uuids()
    if chosen.device == "cpu":
        return uuids[0]
    wanted = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if wanted not in uuids:
        raise SourceUnavailable(f"NVML sees {', '.join(uuids) or 'no GPU'}, not torch's {wanted}")
    return wanted


def describe(chosen: Chosen) -> dict[str, Any]:
    """Describe machine, GPU, driver and torch; what cannot be read is None."""
    told: dict[str, Any] = machine.describe()
    told["system"] = f"{platform.system()} {platform.release().partition('-')[0]}"
    told["torch"] = torch.__version__
    told["cuda"] = torch.version.cuda
    told |= dict.fromkeys(("gpu", "gpu_memory_gib", "multiprocessors", "driver", "power_limit_w"))
    if chosen.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        told["gpu"] = properties.name
        told["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        told["multiprocessors"] = properties.multi_processor_count
    try:
        with Nvml.open(chosen.library) as nvml:
            told["driver"] = nvml.driver_version
            told["power_limit_w"] = nvml.limits(measured_uuid(nvml, chosen)).enforced_w
    except (NvmlFailed, SourceUnavailable):
        pass
    return told


def in_words(told: dict[str, Any]) -> str:
    """Say the same in one line."""
    gpu = told["gpu"] or "no GPU"
    return (
        f"one {gpu} ({told['gpu_memory_gib']} GiB, {told['multiprocessors']} multiprocessors, "
        f"power limit {told['power_limit_w']} W), driver {told['driver']}, torch {told['torch']}, "
        f"CUDA {told['cuda']}; {machine.in_words(told)}"
    )
