"""What torchtitan's Trainer imports, and a dense model on the CPU never calls.

Two modules are replaced, so that neither Triton (a compiler for GPUs, 286 MB) nor `datasets` (with
Arrow and pandas) has to be installed: torchtitan's kernels that move tokens between experts, and
its reader of data sets. Whoever calls anything in them gets an error.
"""

import sys
from types import ModuleType
from typing import Any

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
DATASETS = {
    "datasets": ("Dataset", "load_dataset"),
    "datasets.distributed": ("split_dataset_by_node",),
}


class _Kernels(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing


def _missing(*args: Any, **named: Any) -> Any:
    raise AssertionError("a part of torchtitan was called that is not there on this machine")


def stand_in() -> None:
    """Put the two in place of what is not installed."""
    sys.modules.setdefault(KERNELS, _Kernels(KERNELS))
    for name, has in DATASETS.items():
        module = ModuleType(name)
        vars(module).update(dict.fromkeys(has, _missing))
        sys.modules.setdefault(name, module)
