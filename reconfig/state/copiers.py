"""Copies a rank's bytes with several threads: its share of the host's cores.

One thread copies and hashes host memory at a tenth of what a GPU's link or the host's memory does.
Copying and hashing give up Python's lock, so threads add up.

Invariant: a worker is used by one thread at a time, and results are in the order of their items.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

import torch
import torch.distributed as dist

from wattmesh.reconfig.launch.launched import ranks_here

T = TypeVar("T")
R = TypeVar("R")

MOST = 8
"""More threads gain nothing on a GPU's link, and each has buffers of its own."""

WORTH = 32 << 20
"""Bytes that are worth a further thread."""


def count(nbytes: int) -> int:
    """Choose how many threads this rank copies `nbytes` with: 1 to `MOST`.

    Where nothing says how many ranks its host has, all of them count as here.
    """
    cores = len(os.sched_getaffinity(0)) // (ranks_here() or _world_size())
    return max(1, min(MOST, cores, nbytes // WORTH))


def in_turn(workers: Sequence[Callable[[T], R]], items: Sequence[T]) -> list[R]:
    """Give every item to a worker that is free; one worker works in this thread.

    Raises:
        Exception: the first, in the items' order, that a worker raised; no further item is begun.
    """
    if len(workers) == 1:
        return [workers[0](item) for item in items]
    free: SimpleQueue[Callable[[T], R]] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def work(item: T) -> R:
        worker = free.get()
        try:
            return worker(item)
        finally:
            free.put(worker)

    with ThreadPoolExecutor(len(workers), initializer=_same_device()) as pool:
        return list(pool.map(work, items))


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait for what this thread's streams still do to tensors: other threads' streams do not."""
    for device in {each.device for each in tensors if each.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()


def _same_device() -> Callable[[], None]:
    """Return what lets another thread use this thread's GPU: threads begin on the first one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
