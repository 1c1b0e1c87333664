"""Reads and fills a tensor's memory in blocks of bounded size, on any device.

On the CPU a contiguous tensor is not copied. To and from a GPU data passes through two pinned
buffers: one is copied while the other is hashed, written or filled.

Invariant: at most two blocks of extra memory are used.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wattmesh.reconfig.universal.index import dtypes
from wattmesh.reconfig.universal.index.box import Box, Shape

BLOCK = 8 << 20
"""Bytes per block, a size at which page cache and hash are fast."""

_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}

Fill = Callable[[Box, NDArray[np.generic]], None]
"""Fills an array with a box, relative to the start of the destination."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in a universal checkpoint."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name in `dtypes.CODES`."""
    found: torch.dtype = getattr(torch, name)
    return found


def as_array(tensor: torch.Tensor) -> NDArray[np.generic]:
    """View a CPU tensor as an array of dtype `dtypes.view_of`, with any strides."""
    if tensor.dtype == torch.complex128:
        found: NDArray[np.generic] = tensor.detach().resolve_conj().numpy()
        return found
    bits = tensor.detach().view(_BITS[tensor.element_size()])
    array: NDArray[np.generic] = bits.numpy().view(dtypes.view_of(dtype_name(tensor.dtype)))
    return array


def boxes_within(shape: Shape, item_size: int, limit: int) -> Iterator[Box]:
    """Split a tensor of `shape` into boxes of at most `limit` bytes, in row-major order.

    Each box is contiguous in a contiguous tensor. A limit below one element means one element.
    """
    if Box.whole(shape).count * item_size <= limit or not shape:
        yield Box.whole(shape)
        return
    row = Box.whole(shape[1:]).count * item_size
    if row <= limit:
        rows = limit // row
        for at in range(0, shape[0], rows):
            count = min(rows, shape[0] - at)
            yield Box((at, *(0,) * (len(shape) - 1)), (count, *shape[1:]))
        return
    for at in range(shape[0]):
        for inner in boxes_within(shape[1:], item_size, limit):
            yield Box((at, *inner.start), (1, *inner.shape))


def narrow(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """Return a box of a tensor as a view."""
    for dim, (start, size) in enumerate(zip(box.start, box.shape, strict=True)):
        if size != tensor.shape[dim]:
            tensor = tensor.narrow(dim, start, size)
    return tensor


def advise_huge_pages(tensor: torch.Tensor) -> None:
    """Let the kernel back a large new CPU tensor by huge pages, before its first touch.

    Most of a copy into new memory is else spent on faults: one per 4 KiB (2 GB/s instead of 12, on
    the machine of `docs/results.md`). It changes no value; a kernel without them ignores it.
    """
    size = tensor.numel() * tensor.element_size()
    if size < 2 * _HUGE_PAGE or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return
    first = -(-tensor.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
    last = (tensor.data_ptr() + size) // _HUGE_PAGE * _HUGE_PAGE
    _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_HUGEPAGE)


_HUGE_PAGE = 2 << 20
_LIBC = ctypes.CDLL(None)


class Staging:
    """Two buffers for copies to and from a device. Not thread safe."""

    def __init__(self, block: int = BLOCK) -> None:
        """Prepare; buffers of `block` bytes each are allocated when needed."""
        self._block = block
        self._buffers: list[torch.Tensor] = []
        self._copied: list[Any] = [None, None]
        self._next = 0

    def blocks(self, tensor: torch.Tensor) -> Iterator[memoryview]:
        """Yield a tensor's bytes, row-major; a block is valid until the next one is requested."""
        boxes = boxes_within(tuple(tensor.shape), tensor.element_size(), self._block)
        parts = (narrow(tensor.detach(), box) for box in boxes)
        flat = (part.contiguous().reshape(-1).view(torch.uint8) for part in parts)
        if tensor.device.type == "cpu":
            yield from (part.numpy().data for part in flat)
        else:
            yield from self.fetched(flat)

    def fetched(self, parts: Iterable[torch.Tensor]) -> Iterator[memoryview]:
        """Copy flat bytes from a device; the next part is copied while one is used."""
        waiting: tuple[int, torch.Tensor] | None = None
        for part in parts:
            number, buffer = self._free_buffer(part.device)
            host = buffer[: part.numel()]
            host.copy_(part, non_blocking=True)
            self._copied[number] = _mark(part.device)
            if waiting is not None:
                yield self._arrived(*waiting)
            waiting = (number, host)
        if waiting is not None:
            yield self._arrived(*waiting)

    def fill(self, out: torch.Tensor, read: Fill) -> None:
        """Let `read` fill a tensor, directly in its memory if it is on the CPU."""
        if out.device.type == "cpu":
            read(Box.whole(tuple(out.shape)), as_array(out))
        else:
            self.fill_staged(out, read)

    def fill_staged(self, out: torch.Tensor, read: Fill) -> None:
        """Fill a tensor through the buffers; call `finish` before using it."""
        size = out.element_size()
        for box in boxes_within(tuple(out.shape), size, self._block):
            number, buffer = self._free_buffer(out.device)
            part = buffer[: box.count * size].view(out.dtype).view(box.shape)
            read(box, as_array(part))
            narrow(out.detach(), box).copy_(part, non_blocking=True)
            self._copied[number] = _mark(out.device)

    def finish(self) -> None:
        """Wait for pending copies."""
        for number in range(len(self._copied)):
            self._wait(number)

    def _wait(self, number: int) -> None:
        if self._copied[number] is not None:
            self._copied[number].synchronize()
            self._copied[number] = None

    def _arrived(self, number: int, host: torch.Tensor) -> memoryview:
        """The bytes of a buffer, after its copy."""
        self._wait(number)
        return host.numpy().data

    def _free_buffer(self, device: torch.device) -> tuple[int, torch.Tensor]:
        """The least recently used buffer, after its copy."""
        if not self._buffers:
            pinned = device.type == "cuda"
            self._buffers = [
                torch.empty(self._block, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)
            ]
        number, self._next = self._next, 1 - self._next
        self._wait(number)
        return number, self._buffers[number]


def _mark(device: torch.device) -> Any:
    """Record an event after the copies so far; None where copies are synchronous."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
