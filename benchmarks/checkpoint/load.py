"""Loading a checkpoint into another layout: torch's own reader against ours, in the same processes.

`python -m benchmarks.checkpoint --load` calls `measure`. Four ranks (gloo) save a GPT's parameters
and both moments, sharded over 2 and over 4 of them, in torch's format and in ours; then load them
in four layouts, readers taking turns, page cache warm. Bytes are what the kernel says each process
read (rchar of /proc/self/io) during the load, over the bytes of that rank's own shards.

Invariant: both readers fill the same tensors; what they filled them with is compared.
"""

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from benchmarks.report import Goal, Report
from wattmesh.reconfig.checkpoint.dcp import UniversalReader, UniversalWriter

RANKS = 4
LAYERS = 12
VOCABULARY = 16384
CASES = (("2->2", 2, 2, 0), ("2->4 same dim", 2, 4, 0), ("2->4 other dim", 2, 4, 1),
         ("4->2", 4, 2, 0))  # fmt: skip
"""Name, ranks that saved (sharded over dim 0), ranks that load, dim that they shard over."""

Tensors = dict[str, DTensor]


def measure(chosen: argparse.Namespace) -> Report:
    """Measure loads; `chosen` has `params` (of the model) and `repeat` (loads per reader)."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-load-") as folder:
        rows = _launch(Path(folder), float(chosen.params), int(chosen.repeat))
    ours = [row for row in rows if row["reader"] == "ours"]
    goals = (
        Goal(
            name="read_amplification_max",
            value=max(row["read_over_needed"] for row in ours),
            goal=1.05,
            op="<=",
        ),
        Goal(
            name="slowdown_over_dcp_max",
            value=max(row["over_dcp"] for row in ours),
            goal=1.0,
            op="<=",
        ),
    )
    return Report(benchmark="checkpoint --load", rows=tuple(rows), goals=goals)


def _launch(folder: Path, params: float, repeat: int) -> list[dict[str, Any]]:
    """Run the ranks; gives the rows that rank 0 wrote."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", __name__, str(folder), str(params), str(repeat)]
    shared = {
        **os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=sys.stderr)
        for rank in range(RANKS)
    ]
    failed = [rank for rank, process in enumerate(ranks) if process.wait() != 0]
    if failed:
        raise RuntimeError(f"checkpoint --load: ranks {failed} failed; see above.")
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_bytes())
    return rows


def worker(folder: Path, params: float, repeat: int) -> None:
    """Be one rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (2, RANKS)}
    for size, mesh in meshes.items():
        if mesh.get_coordinate() is not None:
            state = _state(mesh, 0, params, fill=True)
            group = mesh.get_group()
            writer = FileSystemWriter(folder / f"torch-{size}")
            save(dict(state), storage_writer=writer, process_group=group)
            ours = UniversalWriter(folder / f"ours-{size}")
            save(dict(state), storage_writer=ours, process_group=group)
            del state
        dist.barrier()
    rows: list[dict[str, Any]] = []
    for name, saved, loaded, dim in CASES:
        mesh = meshes[loaded]
        if mesh.get_coordinate() is not None:
            folders = {kind: folder / f"{kind}-{saved}" for kind in ("torch", "ours")}
            found = _case(folders, _state(mesh, dim, params), mesh, repeat)
            rows += [{"case": name, **row} for row in found]
        dist.barrier()
    if dist.get_rank() == 0:
        (folder / "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def _case(
    folders: Mapping[str, Path], state: Tensors, mesh: DeviceMesh, repeat: int
) -> list[dict[str, Any]]:
    """Load one checkpoint with both readers, in turns; `folders` are by reader."""
    needed = sum(each.to_local().nbytes for each in state.values())
    seconds: dict[str, list[float]] = {"torch": [], "ours": []}
    read: dict[str, float] = {}
    held: dict[str, str] = {}
    for turn in range(repeat):
        for kind in ("torch", "ours") if turn % 2 == 0 else ("ours", "torch"):
            path = folders[kind]
            reader: StorageReader = (
                FileSystemReader(path) if kind == "torch" else UniversalReader(path)
            )
            for tensor in state.values():
                tensor.to_local().zero_()
            took, count = _timed(state, reader, mesh)
            seconds[kind].append(took)
            read[kind] = count / needed
            held[kind] = held.get(kind) or _digest(state)
    if held["torch"] != held["ours"]:
        raise RuntimeError("the two readers filled the tensors with different values.")
    # Of neighbours in time, so that what else the machine does weighs on both.
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["torch"], strict=True)]
    return [
        {
            "reader": kind,
            "tensors": len(state),
            "needed_mb_per_rank": needed / 1e6,
            "read_over_needed": read[kind],
            "seconds": statistics.median(seconds[kind]),
            "fastest_s": min(seconds[kind]),
            "over_dcp": statistics.median(ratios) if kind == "ours" else 1.0,
        }
        for kind in ("torch", "ours")
    ]


def _timed(state: Tensors, reader: StorageReader, mesh: DeviceMesh) -> tuple[float, int]:
    """Seconds and bytes of one load: the slowest rank's, and the one's that read most."""
    group = mesh.get_group()
    dist.barrier(group)
    before, began = _rchar(), time.perf_counter()
    load(dict(state), storage_reader=reader, process_group=group)
    took, count = time.perf_counter() - began, _rchar() - before
    worst = torch.tensor([took, float(count)], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
    return float(worst[0]), int(worst[1])


def _rchar() -> int:
    """Bytes that this process has read by system calls."""
    first = Path("/proc/self/io").read_text().splitlines()[0]
    return int(first.removeprefix("rchar: "))


def _digest(state: Mapping[str, DTensor]) -> str:
    digest = xxhash.xxh3_128()
    for tensor in state.values():
        digest.update(tensor.to_local().contiguous().numpy().data)
    return digest.hexdigest()


def _state(mesh: DeviceMesh, dim: int, params: float, *, fill: bool = False) -> Tensors:
    """This rank's shards of every parameter and its two moments; vectors always over dim 0."""
    state: Tensors = {}
    chance = torch.Generator().manual_seed(dist.get_rank())
    for name, shape in _shapes(params).items():
        place = Shard(dim if len(shape) > 1 else 0)
        for fqn in (f"model.{name}", *(f"optim.state.{name}.{slot}" for slot in _SLOTS)):
            size = list(shape)
            size[place.dim] //= mesh.size()
            local = torch.randn(size, generator=chance) if fill else torch.zeros(size)
            state[fqn] = DTensor.from_local(local, mesh, [place])
    return state


_SLOTS = ("exp_avg", "exp_avg_sq")


def _shapes(params: float) -> dict[str, tuple[int, ...]]:
    """A GPT of 12 layers with about that many parameters; 110e6 gives width 768."""
    a, b = 12.0 * LAYERS, 2.0 * VOCABULARY
    width = (-b + math.sqrt(b * b + 4 * a * params)) / (2 * a)
    h = max(64, 64 * round(width / 64))
    shapes: dict[str, tuple[int, ...]] = {"embed": (VOCABULARY, h), "head": (VOCABULARY, h)}
    layer = {
        "qkv.weight": (3 * h, h), "qkv.bias": (3 * h,), "o.weight": (h, h), "o.bias": (h,),
        "up.weight": (4 * h, h), "up.bias": (4 * h,), "down.weight": (h, 4 * h),
        "down.bias": (h,), "norm1.weight": (h,), "norm1.bias": (h,), "norm2.weight": (h,),
        "norm2.bias": (h,),
    }  # fmt: skip
    for number in range(LAYERS):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def main(arguments: Sequence[str]) -> None:
    """Take a rank's command line."""
    folder, params, repeat = arguments
    worker(Path(folder), float(params), int(repeat))


if __name__ == "__main__":
    main(sys.argv[1:])
