"""What torchtitan's Trainer imports, and a dense model on the CPU never calls.

Two modules are replaced, so that neither Triton (a compiler for GPUs, 286 MB) nor `datasets` (with
Arrow and pandas) has to be installed: torchtitan's kernels that move tokens between experts, and
what its reader of data sets reads with. Whoever calls anything in them gets an error.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"
READERS = ("datasets", "datasets.distributed")


class _Missing(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing


def _missing(*args: Any, **named: Any) -> Any:
    raise AssertionError("a part of torchtitan was called that is not there on this machine")


@contextmanager
def stood_in() -> Iterator[None]:
    """Have the two in place of what is not installed while torchtitan is imported."""
    sys.modules.setdefault(KERNELS, _Missing(KERNELS))
    added = [name for name in READERS if name not in sys.modules]
    sys.modules.update({name: _Missing(name) for name in added})
    try:
        yield
    finally:
        # Others look for it, and would take it for the package.
        for name in added:
            del sys.modules[name]
