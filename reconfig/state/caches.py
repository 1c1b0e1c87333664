"""Clears torch's caches that keep the meshes of a layout that is gone.

Torch caches the sharding propagation of operators by mesh. A later mesh of the same shape compares
equal, so a stale entry would send a rebuilt model's communication to a process group that no longer
exists, or to another one of the same name; and it keeps the old groups' sockets and threads alive.

Invariant: after `forget` no cache of torch.distributed.tensor contains a mesh, in this thread and
in the one that runs backward passes.
"""

import functools
import gc
from typing import Any, ClassVar

import torch

from wattmesh.reconfig import torch_compat

_LRU: Any = type(functools.lru_cache(lambda: None))
_OWNER = "torch.distributed.tensor"


class MeshCaches:
    """The caches of torch.distributed.tensor in this process."""

    _found: ClassVar[list[Any]] = []
    """Caches that were frozen (`gc.freeze`), so that `gc.get_objects` no longer lists them."""
    _aside: ClassVar[int] = 0
    """Number of objects that we froze."""

    def __init__(self) -> None:
        """Find the existing caches, and freeze the imported objects.

        `gc.freeze` excludes the live objects from later garbage collections: a switch collects
        garbage twice, and walking all of torch's modules would take most of its time. Later
        sessions of this process and of its forks reuse the found caches; objects that a script
        froze itself are searched too.
        """
        gc.collect()
        if gc.get_freeze_count() > MeshCaches._aside:
            gc.unfreeze()
            MeshCaches._found.clear()
        MeshCaches._found.extend(_find())
        gc.freeze()
        MeshCaches._aside = gc.get_freeze_count()

    def forget(self, device: str) -> None:
        """Clear every cache, including those created since the last call."""
        for cache in (*MeshCaches._found, *_find()):
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


def _find() -> list[Any]:
    """Every functools cache of torch.distributed.tensor."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is _LRU and str(getattr(each, "__module__", "")).startswith(_OWNER)
    ]
