"""Forgetting the meshes of a layout that is gone.

torch caches how operations on sharded tensors are carried out, keyed by a mesh that compares equal
to any later mesh of the same shape, and holding the old mesh with its process groups. Left alone,
such an entry sends a rebuilt model's communication to a group that no longer exists, or to another
group of the same name; and it keeps the old groups' sockets and threads alive.

Invariant: after `forget` no cache of torch.distributed.tensor knows a mesh, in this thread and in
the one that runs backward passes.
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
    """Those that were set aside with all else, which `gc.get_objects` therefore no longer lists."""
    _aside: ClassVar[int] = 0
    """How many objects were set aside by us."""

    def __init__(self) -> None:
        """Find the caches that exist now, and freeze what has been imported.

        What is alive here is set aside from later garbage collections (`gc.freeze`): a switch
        collects garbage twice, and walking all of torch's modules would take most of its time.
        What was found stays known to later sessions of this process and of those it forks; where
        a script has set things aside itself, they are looked through too.
        """
        gc.collect()
        if gc.get_freeze_count() > MeshCaches._aside:
            gc.unfreeze()
            MeshCaches._found.clear()
        MeshCaches._found.extend(_find())
        gc.freeze()
        MeshCaches._aside = gc.get_freeze_count()

    def forget(self, device: str) -> None:
        """Empty every cache; those made since the last call are found again."""
        for cache in (*MeshCaches._found, *_find()):
            cache.cache_clear()
        torch_compat.forget_shardings()
        if device != "cpu":
            # Backward passes run in a thread per device, with caches of its own.
            probe = torch.zeros(1, device=device, requires_grad=True)
            torch.autograd.backward(_Forget.apply(probe))  # type: ignore[no-untyped-call]


class _Forget(torch.autograd.Function):
    """An identity whose backward pass empties the caches of the thread it runs in."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        torch_compat.forget_shardings()
        return gradient


def _find() -> list[Any]:
    """Every functools cache of torch.distributed.tensor, wherever it is kept."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is _LRU and str(getattr(each, "__module__", "")).startswith(_OWNER)
    ]
