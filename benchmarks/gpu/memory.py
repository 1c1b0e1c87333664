"""How fast checkpoints leave and reach device memory, and the digest reads it.

Each figure (the median of five) stands beside the copy that bounds it, measured in the same process
on as many bytes: device to host and host to device, pinned and not, and device to device. Of a
bound the best of five is taken, for one that a tool can beat is none.

A copy within the device counts bytes read and bytes written; all others count the tensor's bytes.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from benchmarks.gpu.chosen import Chosen
from benchmarks.report import Goal, Report
from wattmesh.reconfig.checkpoint import direct
from wattmesh.reconfig.checkpoint.dcp_storage.files import FILE_BYTES, TensorPiece, write_files
from wattmesh.reconfig.checkpoint.digest import sum_on_device
from wattmesh.reconfig.checkpoint.digest_host import Summer
from wattmesh.reconfig.checkpoint.digest_rows import RowSummer
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory
from wattmesh.reconfig.checkpoint.in_memory.staged import PIECE_BYTES, nbytes_of, write
from wattmesh.reconfig.state import copiers
from wattmesh.reconfig.state.boxes import LocalBox, box_of
from wattmesh.reconfig.state.memory import BLOCK, Staging, as_array, dtype_name
from wattmesh.reconfig.universal.index import box as logical

TIMES = 5
ROWS, WIDE = 65_536, 4_096
"""Shape of what is moved: 1 GiB in fp32. `SMALL_ROWS`: when all that counts is that it runs."""
SMALL_ROWS = 512
DEVICE = "device to device (read and written)"
TO_HOST = "device to pinned host"
ON_HOST = "host to host, one thread"
_MASK = (1 << 64) - 1


class Bench:
    """Times pieces of work on one tensor."""

    def __init__(self, device: str, rows: int) -> None:
        """Draw the tensor: zeros would be faster than real data."""
        self.device = device
        self.tensor = torch.randn(rows, WIDE, device=device)
        self.nbytes = self.tensor.numel() * self.tensor.element_size()

    def gb_per_s(
        self, work: Callable[[], object], nbytes: int | None = None, *, best: bool = False
    ) -> float:
        """Do it once to warm up and then five times; the median, or the best of them."""
        seconds = []
        for _ in range(TIMES + 1):
            self.wait()
            began_s = time.perf_counter()
            work()
            self.wait()
            seconds.append(time.perf_counter() - began_s)
        took_s = min(seconds[1:]) if best else median(seconds[1:])
        return (nbytes or self.nbytes) / 1e9 / took_s

    def wait(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def row(
        self, what: str, gb_per_s: float, bound: str = "", bound_gb_per_s: float | None = None
    ) -> dict[str, Any]:
        """One row, with the share of its bound that it reaches."""
        row: dict[str, Any] = {"what": what, "gb": self.nbytes / 1e9, "gb_per_s": gb_per_s}
        if bound_gb_per_s is not None:
            row |= {"bound": bound, "share_of_bound": gb_per_s / bound_gb_per_s}
        return row


def bounds(bench: Bench) -> dict[str, float]:
    """Measure the copies that bound everything else, GB/s: the best of five, whole or in blocks."""
    device, other = bench.tensor, torch.empty_like(bench.tensor)
    pinned = torch.empty(device.shape, pin_memory=bench.device == "cuda").fill_(1)
    pageable = torch.ones(device.shape)
    host = np.ones(tuple(device.shape), dtype=np.float32)

    def best(to: torch.Tensor, source: torch.Tensor) -> float:
        return max(
            bench.gb_per_s(partial(_copy, to, source, rows), best=True)
            for rows in (len(source), BLOCK // (4 * WIDE))
        )

    return {
        DEVICE: 2 * best(other, device),
        TO_HOST: best(pinned, device),
        "device to pageable host": best(pageable, device),
        "pinned host to device": best(other, pinned),
        "pageable host to device": best(other, pageable),
        ON_HOST: bench.gb_per_s(partial(np.copyto, host, pageable.numpy()), best=True),
    }


def _copy(to: torch.Tensor, source: torch.Tensor, rows: int) -> None:
    for at in range(0, len(source), rows):
        to[at : at + rows].copy_(source[at : at + rows], non_blocking=True)


def digests(bench: Bench, limit: float) -> Iterator[dict[str, Any]]:
    """Rows: the logical digest of device memory in three dtypes, beside a plain read of it."""
    read = bench.gb_per_s(bench.tensor.sum)
    yield bench.row("a plain sum of the same bytes", read, DEVICE, limit)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        box = _box(bench.tensor[: len(bench.tensor) // 2].to(dtype))
        nbytes = box.local.numel() * box.local.element_size()
        speed = bench.gb_per_s(partial(sum_on_device, box), nbytes)
        same = sum_on_device(box) & _MASK == Summer().sum_of_box(_on_host(box)) & _MASK
        row = bench.row(f"digest of {dtype_name(dtype)}", speed, "a plain sum", read)
        yield {**row, "gb": nbytes / 1e9, "equals_host": same}
    rows = partial(RowSummer().sum_of_box, _box(bench.tensor))
    yield bench.row(
        "digest of float32, by rows, as a switch takes it",
        bench.gb_per_s(rows),
        "a plain sum",
        read,
    )
    half = WIDE // 2
    whole = (len(bench.tensor), WIDE)
    columns = LocalBox(
        key="w", whole=whole, offset=(0, half), local=bench.tensor[:, half:].contiguous()
    )
    speed = bench.gb_per_s(partial(sum_on_device, columns), bench.nbytes // 2)
    row = bench.row("digest of float32, half of its columns", speed, "a plain sum", read)
    yield {**row, "gb": bench.nbytes / 2e9}


def _box(tensor: torch.Tensor) -> LocalBox:
    found = box_of("model.weight", tensor)
    assert found is not None
    return found


def _on_host(box: LocalBox) -> LocalBox:
    return LocalBox(key=box.key, whole=box.whole, offset=box.offset, local=box.local.cpu())


def staged(bench: Bench, limits: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Rows: bytes brought to the host and back through the two pinned buffers."""
    to_host, copied = limits[TO_HOST], limits[ON_HOST]
    host = bench.tensor.cpu()
    for block in (BLOCK, 4 * BLOCK, 16 * BLOCK):
        staging = Staging(block)
        name = f"blocks of {block >> 20} MiB"
        speed = bench.gb_per_s(partial(_drain, staging, bench.tensor))
        yield bench.row(f"staging to the host, {name}", speed, TO_HOST, to_host)
        out = torch.empty_like(bench.tensor)
        fill = _from(as_array(host))
        speed = bench.gb_per_s(partial(_fill, staging, out, fill))
        row = bench.row(f"staging to the device, {name}", speed, ON_HOST, copied)
        yield {**row, "same_bytes": bool(torch.equal(out, bench.tensor))}
    hashed = bench.gb_per_s(lambda: _hash(bench.tensor))
    alone = bench.gb_per_s(lambda: xxhash.xxh3_128(host.numpy().data).digest())
    yield bench.row("xxh3_128 of host memory, one thread", alone)
    yield bench.row("staging to the host, each block hashed", hashed, TO_HOST, to_host)


def _drain(staging: Staging, tensor: torch.Tensor) -> None:
    for _ in staging.blocks(tensor):
        pass


def _hash(tensor: torch.Tensor) -> bytes:
    digest = xxhash.xxh3_128()
    for block in Staging().blocks(tensor):
        digest.update(block)
    return digest.digest()


def _from(source: NDArray[np.generic]) -> Callable[[logical.Box, NDArray[np.generic]], None]:
    def fill(part: logical.Box, array: NDArray[np.generic]) -> None:
        ends = zip(part.start, part.shape, strict=True)
        np.copyto(array, source[tuple(slice(start, start + size) for start, size in ends)])

    return fill


def _fill(
    staging: Staging,
    out: torch.Tensor,
    fill: Callable[[logical.Box, NDArray[np.generic]], None],
) -> None:
    staging.fill(out, fill)
    staging.finish()


def pieces_of(tensor: torch.Tensor, limit: int) -> list[TensorPiece]:
    """The tensor in pieces of at most `limit` bytes."""
    held = {"model.weight": _box(tensor)}
    return direct.pieces_of(held, held, limit)


def in_shared_memory(bench: Bench, limit: float) -> dict[str, Any]:
    """One row: the staged copy of a switch, hashed on the way, into pages that are there."""
    pieces, memory = pieces_of(bench.tensor, PIECE_BYTES), HostMemory()
    memory.area.reserve(nbytes_of(pieces))
    speed = bench.gb_per_s(partial(write, memory, 0, pieces))
    threads = copiers.count(bench.nbytes)
    what = f"the staged copy of a switch, hashed, {threads} threads"
    return bench.row(what, speed, TO_HOST, limit)


def saved(bench: Bench, limit: float) -> dict[str, Any]:
    """One row: a rank's data file written from device memory, hashed on the way, not synced."""
    pieces = pieces_of(bench.tensor, FILE_BYTES)
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as name:
        count = iter(range(TIMES + 1))

        def write_one() -> None:
            folder = Path(name) / str(next(count))
            folder.mkdir()
            write_files(folder, 0, pieces, durable=False)

        speed = bench.gb_per_s(write_one)
    return bench.row(
        "a data file written and hashed, into the page cache",
        speed,
        TO_HOST,
        limit,
    )


def measure(chosen: Chosen) -> Report:
    """Measure copies, digest and staging."""
    bench = Bench(chosen.device, SMALL_ROWS if chosen.device == "cpu" else ROWS)
    limits = bounds(bench)
    rows = [bench.row(what, speed) for what, speed in limits.items()]
    rows += digests(bench, limits[DEVICE])
    rows += staged(bench, limits)
    rows.append(in_shared_memory(bench, limits[TO_HOST]))
    rows.append(saved(bench, limits[TO_HOST]))
    checks = [row[key] for row in rows for key in ("equals_host", "same_bytes") if key in row]
    goal = Goal(name="wrong_bytes", value=checks.count(False), goal=0, op="==")
    return Report(benchmark="memory", rows=tuple(rows), goals=(goal,))
