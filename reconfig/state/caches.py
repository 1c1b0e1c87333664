"""Clears torch's caches that keep the meshes of a layout that is gone.

Torch caches the sharding propagation of operators by mesh. A later mesh of the same shape compares
equal, so a stale entry would send a rebuilt model's communication to a process group that no longer
exists, or to another one of the same name; and it keeps the old groups' sockets and threads alive.

Invariant: after `forget` no cache of torch.distributed.tensor contains a mesh, in this thread and
in the one that runs backward passes.
"""

import functools
import gc
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from wattmesh.reconfig import torch_compat

_LRU: Any = type(functools.lru_cache(lambda: None))
_OWNER = "torch.distributed.tensor"


class MeshCaches:
    """The caches of torch.distributed.tensor in this process."""

    _aside: ClassVar[list[Any]] = []
    """Those that were set aside with all else, which `gc.get_objects` therefore no longer lists."""

    def __init__(self, *, gc_freeze: bool = False) -> None:
        """Prepare to forget; `gc_freeze`: and set aside what is alive from garbage collections.

        A switch collects garbage, and walking all of torch's modules takes most of its teardown.
        What was set aside stays known to later sessions of this process and of those it forks.
        """
        if gc_freeze:
            gc.collect()
            MeshCaches._aside.extend(_collected())
            gc.freeze()

    def forget(self, device: str) -> None:
        """Empty every cache; those made since the last call are found again."""
        for cache in (*MeshCaches._aside, *_imported(), *_collected()):
            cache.cache_clear()
        torch_compat.forget_shardings()
        if device != "cpu":
            # Backward passes run in one thread per device, which has its own caches.
            probe = torch.zeros(1, device=device, requires_grad=True)
            torch.autograd.backward(_Forget.apply(probe))  # type: ignore[no-untyped-call]


class _Forget(torch.autograd.Function):
    """An identity whose backward pass clears the caches of its thread."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch_compat.forget_shardings()
        return gradient


def _collected() -> list[Any]:
    """Every functools cache of torch.distributed.tensor that the garbage collector knows."""
    # The type first: it is asked of every object alive, some hundred thousand of torch's alone.
    return [each for each in gc.get_objects() if type(each) is _LRU and _is_cache(each)]


def _imported() -> Iterator[Any]:
    """Those of modules and classes, also where a script has set what it imported aside itself."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(_OWNER) and module is not None:
            for each in [*vars(module).values()]:
                inner = [*vars(each).values()] if isinstance(each, type) else []
                for one in (each, *inner):
                    wrapped = isinstance(one, staticmethod | classmethod)
                    bare = one.__func__ if wrapped else one
                    if _is_cache(bare):
                        yield bare


def _is_cache(thing: Any) -> bool:
    return type(thing) is _LRU and str(getattr(thing, "__module__", "")).startswith(_OWNER)
