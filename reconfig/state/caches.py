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

FULL_EVERY = 16
"""Switches from one walk through all objects to the next: it costs 0.2 s, and what became garbage
among the objects that outlived a switch stays until then."""


class MeshCaches:
    """The caches of torch.distributed.tensor in this process."""

    _aside: ClassVar[dict[int, Any]] = {}
    """Those that were set aside with all else, which `gc.get_objects` therefore no longer lists; by
    identity."""

    _lasts: ClassVar[bool] = False
    """Whether a session of this process, or of the one it was forked from, set aside what was alive
    for good."""

    def __init__(self, *, gc_freeze: bool = False) -> None:
        """Prepare to forget; `gc_freeze`: and set aside what is alive from garbage collections.

        A switch collects garbage, and walking all of torch's modules takes most of its teardown.
        What was set aside stays known to later sessions of this process and of those it forks; they
        walk what was made since.
        """
        if gc_freeze:
            gc.collect()
            self._freeze(_collected())
            MeshCaches._lasts = True
        self._switches = 1 if MeshCaches._lasts else 0
        self._thaws = False

    def collect(self, device: str, *, switching: bool) -> None:
        """Empty every cache and collect garbage, after a state was emptied.

        What outlives the first switch is set aside from then on, so that the next ones walk only
        what was made since, and not some 300,000 objects of torch. Every `FULL_EVERY` switches all
        of it is walked.

        Args:
            device: "cpu" or "cuda".
            switching: whether another state is built after this one.
        """
        if switching and self._switches % FULL_EVERY == 0:
            self._thaws = self._thaws or not gc.get_freeze_count()
            gc.unfreeze()
        found = self.forget(device)
        gc.collect()
        if torch_compat.has_compiled():
            # Code that goes in the first collection held objects where no collector looks.
            gc.collect()
        if switching:
            self._switches += 1
            self._freeze(found)

    def thaw(self) -> None:
        """At the end of the session, undo what only its switches have set aside."""
        if self._thaws:
            gc.unfreeze()
            self._thaws = False

    def forget(self, device: str) -> list[Any]:
        """Empty every cache; returns those that were not set aside and are in no module."""
        found = _collected()
        for cache in (*MeshCaches._aside.values(), *_imported(), *found):
            cache.cache_clear()
        torch_compat.forget_shardings()
        if device != "cpu":
            # Backward passes run in one thread per device, which has its own caches.
            probe = torch.zeros(1, device=device, requires_grad=True)
            torch.autograd.backward(_Forget.apply(probe))  # type: ignore[no-untyped-call]
        return found

    def _freeze(self, found: list[Any]) -> None:
        MeshCaches._aside.update((id(each), each) for each in found)
        gc.freeze()


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
    """Yield the caches that are attributes of imported modules and of their classes."""
    seen = set[int]()
    for name, module in [*sys.modules.items()]:
        if name.startswith(_OWNER) and module is not None:
            for each in [*vars(module).values()]:
                if isinstance(each, type) and id(each) not in seen:
                    seen.add(id(each))
                    yield from filter(_is_cache, map(_bare, [*vars(each).values()]))
                elif type(each) is _LRU and _is_cache(each):
                    yield each


def _bare(attribute: Any) -> Any:
    """Take an attribute of a class out of `staticmethod` or `classmethod`."""
    return attribute.__func__ if isinstance(attribute, (staticmethod, classmethod)) else attribute


def _is_cache(thing: Any) -> bool:
    return type(thing) is _LRU and str(getattr(thing, "__module__", "")).startswith(_OWNER)
