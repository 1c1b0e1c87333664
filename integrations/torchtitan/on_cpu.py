"""The CPU as torchtitan's device: where it finds no accelerator it takes CUDA for granted.

Invariant: nothing is changed in a process that has a device of torchtitan's.
"""

import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

MODULES = "torchtitan."


class Cpu:
    """What torchtitan asks a module such as `torch.cuda`; memory is never counted."""

    set_device = staticmethod(lambda device: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    synchronize = staticmethod(lambda *device: None)
    get_device_name = staticmethod(lambda device: "cpu")
    get_device_properties = staticmethod(lambda device: SimpleNamespace(total_memory=1 << 30))
    reset_peak_memory_stats = staticmethod(lambda: None)
    empty_cache = staticmethod(lambda: None)

    @staticmethod
    def memory_stats(device: Any) -> dict[str, int]:
        """Nothing is counted."""
        return {}


def use_cpu() -> None:
    """Let every module of torchtitan that has been imported take the CPU for its device."""
    for name, module in list(sys.modules.items()):
        if name.startswith(MODULES) and "device_module" in vars(module):
            vars(module)["device_module"] = Cpu
        if name.startswith(MODULES) and "device_type" in vars(module):
            vars(module)["device_type"] = "cpu"


def sum_by_gloo(parts: list[Any]) -> None:
    """Let FSDP2 sum gradients and divide them itself: gloo has no operation that does both."""
    for part in parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


def device_of(wanted: str) -> str:
    """Return "cpu" or "cuda": what was asked for, else what this machine has."""
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")
