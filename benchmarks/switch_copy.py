"""What the bytes of an in-memory switch cost without a job around them, over memcpy.

    python -m benchmarks.switch_copy [--gigabytes 0.1,0.5,1] [--rounds 5] [--json]

Two ranks hold a parameter and two slots each of many tensors, cut by rows. A round is what a switch
does with them: digest, stage in shared memory, note and seal the plan, drop the old tensors,
make new ones cut by columns, copy from both ranks' memory, digest again. The digests must be equal.
Between rounds one thread copies as many bytes with memcpy, pages touched before, while the ranks
wait. Processor time is told too, because on a busy machine seconds are not the program's own; the
row `over_memcpy by cpu` is the ratio on cores that are free. The
first round takes new shared memory; it has its own row. Nothing was tuned on these figures.
"""

import argparse
import itertools
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.report import Goal, Report, run
from wattmesh.reconfig.checkpoint import direct
from wattmesh.reconfig.checkpoint.dcp_storage.merge import index_of
from wattmesh.reconfig.checkpoint.digest import combine, pieces_of
from wattmesh.reconfig.checkpoint.in_memory import host_memory, staged
from wattmesh.reconfig.checkpoint.in_memory.across_hosts import fetch
from wattmesh.reconfig.checkpoint.in_memory.early_rebuild import free_memory
from wattmesh.reconfig.checkpoint.in_memory.host_memory import HostMemory
from wattmesh.reconfig.launch import group
from wattmesh.reconfig.state.boxes import LocalBox
from wattmesh.reconfig.universal.folder import CheckpointKind, DataFile, Manifest, seal
from wattmesh.reconfig.universal.index.declared import Declared
from wattmesh.reconfig.universal.index.names import HOOK

RANKS = 2
SIDE = 1024
"""Tensors are square with this side, of float32: 4 MiB each."""

NAMES = ("model.w{}", "optim.state.w{}.exp_avg", "optim.state.w{}.exp_avg_sq")
GIGABYTES, ROUNDS = "0.1,0.5,1,2,4,8", 4
NEEDED = 2.5
"""Memory that must be free, in multiples of the state: old or new, the copy, and some room."""


class Rank:
    """One rank of the copying job."""

    def __init__(self, rank: int, folder: Path, side: int = SIDE) -> None:
        """Hold nothing yet; `side`: of its square tensors."""
        self.rank = rank
        self.side = side
        self.folder = folder
        self.memory = HostMemory()
        self.parts: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part: this rank's seconds and processor seconds."""
        began, cpu = time.monotonic(), time.thread_time()
        yield
        self.parts[name] = [time.monotonic() - began, time.thread_time() - cpu]

    def boxes(
        self,
        count: int,
        dim: int,
        make: Callable[[int, int], torch.Tensor],
        *,
        swapped: bool = False,
    ) -> direct.Boxes:
        """This rank's half of every tensor, cut along `dim`; `swapped`: the other's."""
        half = self.side // RANKS
        offset, shape = [0, 0], [self.side, self.side]
        offset[dim], shape[dim] = abs(self.rank - swapped) * half, half
        keys = [name.format(number) for number in range(count) for name in NAMES]
        return {
            key: LocalBox(
                key=key, whole=(self.side, self.side), offset=tuple(offset), local=make(*shape)
            )
            for key in keys
        }

    def round(self, number: int, count: int, *, swapped: bool = False) -> dict[str, list[float]]:
        """Move the state once from rows to columns, or swap the ranks' rows.

        Returns:
            The seconds of its parts.
        """
        chance = torch.Generator().manual_seed(number * RANKS + self.rank)
        base = torch.randn(self.side // RANKS, self.side, generator=chance)
        added = itertools.count()
        old = self.boxes(count, 0, lambda *_: base + next(added))
        self.parts = {}
        dist.barrier()
        with self.part("all"):
            with self.part("digest before"):
                before = combine(pieces_of(old), "")
            folder = self.folder / f".step-{number:08d}.attempt-1.staging"
            with self.part("stage"):
                self._stage(folder, old)
            with self.part("drop"):
                old = {}
            with self.part("load"):
                new = self.boxes(count, int(not swapped), torch.empty, swapped=swapped)
                self._load(folder, new)
            with self.part("digest after"):
                after = combine(pieces_of(new), "")
            dist.barrier()
        if before != after:
            raise RuntimeError(f"the digest was {before} and is {after}")
        return self.parts

    def _load(self, folder: Path, new: direct.Boxes) -> None:
        opened, mapped = staged.opened(folder), self.memory.files(folder)
        direct.read(opened, new, mapped)
        hosts = group.gather(self.memory.here)
        if mapped is not None and len(set(hosts)) > 1:
            with self.part("of it across hosts"):
                fetch(opened, new, mapped, hosts)

    def _stage(self, folder: Path, held: direct.Boxes) -> None:
        pieces = direct.pieces_of(held, held)
        if not self.memory.reserve(staged.nbytes_of(pieces)):
            raise RuntimeError(self.memory.refused)
        every = group.gather(staged.write(self.memory, self.rank, pieces))
        if self.rank == 0:
            folder.mkdir()
            index = index_of([direct.part_of(*each) for each in enumerate(every)], HOOK, Declared())
            data = {name: DataFile(**f) for told in every for name, f in told["files"].items()}
            about = Manifest(kind=CheckpointKind.PHYSICAL, data=data)
            seal(folder, about, index, {"header": {}}, sync=False)
            host_memory.note(folder, every, sync=False)
        dist.barrier()


def tensors_in(gigabytes: float, side: int = SIDE) -> int:
    """How many square parameters, with their slots, have so many bytes."""
    return max(1, round(gigabytes * 1e9 / (len(NAMES) * 4 * side**2)))


def memcpy_s(nbytes: int) -> list[float]:
    """Seconds, and processor seconds, of one thread for so many bytes, 256 MiB at a time."""
    block = min(nbytes, 1 << 28)
    source, target = np.ones(block, dtype=np.uint8), np.zeros(block, dtype=np.uint8)
    began, cpu = time.monotonic(), time.thread_time()
    for at in range(0, nbytes, block):
        np.copyto(target[: nbytes - at], source[: nbytes - at])
    return [time.monotonic() - began, time.thread_time() - cpu]


def work(rank: int, folder: str, counts: list[int], rounds: int, out: Any) -> None:
    """Be one rank: every size, every round, and memcpy between them on the first."""
    torch.set_num_threads(1)
    found = FileStore(f"{folder}/store", RANKS)
    dist.init_process_group(
        "gloo", store=found, rank=rank, world_size=RANKS, timeout=timedelta(seconds=600)
    )
    told = []
    for count in counts:
        own = Rank(rank, Path(folder) / str(count))
        if rank == 0:
            own.folder.mkdir()
        for number in range(rounds):
            parts = group.gather(own.round(number, count))
            copy_s = memcpy_s(count * len(NAMES) * 4 * SIDE**2) if rank == 0 else []
            dist.barrier()
            told.append({"count": count, "round": number, "parts": parts, "memcpy_s": copy_s})
        own.memory.release()
    if rank == 0:
        out.put(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def moved(counts: list[int], rounds: int) -> list[dict[str, Any]]:
    """Run the ranks; every round of every size."""
    start = multiprocessing.get_context("spawn")
    out = start.Queue()
    with tempfile.TemporaryDirectory(prefix="wattmesh-") as folder:
        ranks = [
            start.Process(target=work, args=(rank, folder, counts, rounds, out))
            for rank in range(RANKS)
        ]
        for each in ranks:
            each.start()
        try:
            found: list[dict[str, Any]] = json.loads(out.get(timeout=560))
        finally:
            for each in ranks:
                each.join(10)
                each.kill()
    return found


def rows_of(found: list[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """The first round of a size, and the median of the others."""
    size = count * len(NAMES) * 4 * SIDE**2
    mine = [each for each in found if each["count"] == count]
    for what, rounds in (("new pages", mine[:1]), ("pages kept", mine[1:])):
        row: dict[str, Any] = {"what": f"{size / 1e9:.2f} GB, {what}", "count": len(rounds)}
        for part in rounds[0]["parts"][0]:
            slowest = [max(rank[part][0] for rank in each["parts"]) for each in rounds]
            cpu = [sum(rank[part][1] for rank in each["parts"]) for each in rounds]
            row[f"{part} s"] = statistics.median(slowest)
            row[f"{part} cpu s"] = statistics.median(cpu)
        copies = [statistics.median(each["memcpy_s"][n] for each in rounds) for n in (0, 1)]
        row["gb_per_s"] = size / 1e9 / row["all s"]
        row["memcpy gb_per_s"] = size / 1e9 / copies[0]
        row["over_memcpy"] = statistics.median(
            each["memcpy_s"][0] / max(rank["all"][0] for rank in each["parts"]) for each in rounds
        )
        # What it would be on cores that nobody else uses.
        row["over_memcpy by cpu"] = copies[1] / (row["all cpu s"] / RANKS)
        yield row


def rows(gigabytes: str = GIGABYTES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Measure every size that fits in free memory; the others have a row that says so."""
    sizes = [float(each) for each in gigabytes.split(",")]
    fitting = [each for each in sizes if each * 1e9 * NEEDED < free_memory()]
    counts = [tensors_in(each) for each in fitting]
    found = moved(counts, rounds)
    left = f"not measured, {free_memory() / 1e9:.1f} GB of memory are free"
    return [
        *(row for count in counts for row in rows_of(found, count)),
        *({"what": f"{each} GB: {left}"} for each in sizes if each not in fitting),
    ]


def measured(chosen: argparse.Namespace) -> Report:
    """Measure what the bytes of a switch cost over memcpy; sizes that do not fit are left out."""
    found = rows(chosen.gigabytes, chosen.rounds)
    kept = [row for row in found if "pages kept" in row["what"]]
    large = [row["over_memcpy"] for row in kept if row["gb_per_s"] * row["all s"] >= 0.99]
    goal = Goal(name="bytes_over_memcpy", value=min(large, default=0.0), goal=0.5, op=">=")
    return Report(benchmark="switch_copy", rows=tuple(found), goals=(goal,))


if __name__ == "__main__":
    sys.exit(run(measured, {"gigabytes": GIGABYTES, "rounds": ROUNDS}))
