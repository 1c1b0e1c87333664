"""What converting a checkpoint costs: ours, DeepSpeed's, torch's, and the disk's own speed.

    python -m benchmarks.checkpoint [--params 110e6] [--repeat 5] [--json]
    python -m benchmarks.checkpoint --load [--params 110e6] [--repeat 5] [--json]

Sources are really trained and saved (checkpoint_sources.py): ZeRO-1 on 2 ranks, ZeRO-3 on 4, torch
DCP on 2. Every round runs every tool once, in turn, each from a cold cache, and waits until what
was written is on disk; figures are medians. Imports are measured apart. The disk's bound is reading
the bytes that ours wrote, writing them to another file and fdatasync. Virtual conversion is timed
warm, from the path to the parent folder's fsync. Nothing was tuned on these figures but the size
of buffers and segments.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checkpoint_load
from benchmarks.report import Goal, Report, run
from benchmarks.usage import Used, drop_caches, measure, synced
from wattmesh.reconfig.universal.folder import open_checkpoint
from wattmesh.reconfig.universal.index import Entry, Index, from_table
from wattmesh.reconfig.universal.sources.source import Fingerprint, Source
from wattmesh.reconfig.universal.virtual import write_virtual

ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
BUFFER = 8 << 20
MILLION = 1_000_000

OURS = """
import json, sys, time
from pathlib import Path
from wattmesh.reconfig.universal.sources.detect import open_source
from wattmesh.reconfig.universal.{module} import {function}
source, target, repeat = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seconds = []
for number in range(repeat):
    began_s = time.monotonic()
    {function}(open_source(source), target.with_name(target.name + str(number)))
    seconds.append(time.monotonic() - began_s)
print(json.dumps(seconds))
"""


ZERO_PEER = """
import time
from deepspeed.checkpoint.ds_to_universal import main, parse_arguments
began_s = time.monotonic()
main(parse_arguments())
print()
print(time.monotonic() - began_s)
"""

DCP_PEER = """
import sys, time
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
began_s = time.monotonic()
dcp_to_torch_save(*sys.argv[1:])
print(time.monotonic() - began_s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A checkpoint to convert: `folder` holds its files."""

    name: str
    folder: Path


def make_sources(folder: Path, params: float) -> Iterator[Made]:
    """Let DeepSpeed and torch train and save."""
    for name, ranks, words in (
        ("ZeRO-1, 2 ranks", 2, ["zero", "--stage", "1"]),
        ("ZeRO-3, 4 ranks", 4, ["zero", "--stage", "3"]),
        ("torch DCP, 2 ranks", 2, ["dcp"]),
    ):
        into = folder / name.replace(" ", "").replace(",", "-")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc_per_node={ranks}", "-m", "benchmarks.checkpoint_sources"]
        measure([*command, *words, str(into), f"--params={params}"], environment=ENVIRONMENT)
        yield Made(name=name, folder=into / "global_step1" if words[0] == "zero" else into)


def ours(kind: str, source: Path, target: Path, repeat: int = 1) -> tuple[Used, list[float]]:
    """Convert in a process of its own; the seconds leave its imports out."""
    code = OURS.format(module=kind, function=f"write_{kind}")
    used = measure([sys.executable, "-c", code, str(source), str(target), str(repeat)])
    return used, json.loads(used.said.splitlines()[-1])


def peer_of(source: Made) -> str:
    """The tool that one would use."""
    if "DCP" in source.name:
        return "dcp_to_torch_save"
    return "ds_to_universal (4 extract, 2 merge)"


def peer_command(source: Made, target: Path) -> list[str]:
    """Its command; like ours, it prints the seconds it took after its imports."""
    words = [str(source.folder), str(target / "whole.pt")]
    if "DCP" not in source.name:
        words = ["--input_folder", str(source.folder), "--output_folder", str(target)]
        words += ["--num_extract_workers", "4", "--num_merge_workers", "2"]
        words += ["--inject_missing_state"]
    return [sys.executable, "-c", DCP_PEER if "DCP" in source.name else ZERO_PEER, *words]


def disk_bound(written: Path, into: Path) -> float:
    """Seconds to read the data of a checkpoint from disk, and write it back there."""
    files = sorted(written.glob("data-*.safetensors"))
    drop_caches(written)
    buffer = bytearray(BUFFER)
    began_s = time.monotonic()
    for path in files:
        with path.open("rb", buffering=0) as source, (into / path.name).open("wb", 0) as target:
            while count := source.readinto(buffer):
                target.write(memoryview(buffer)[:count])
            os.fdatasync(target.fileno())
    return time.monotonic() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One tool, run once: seconds without its imports, and all that the process used."""

    seconds: float
    used: Used | None = None
    import_s: float = 0.0


PHYSICAL, BOUND = "ours, physical, hashed", "the disk: read, write, fdatasync"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Every tool once on one source; `data_gb`: of tensors, optimizer states included."""

    ran: Mapping[str, Ran]
    data_gb: float

    def ratio(self, above: str, below: str) -> float:
        """Seconds of one tool over those of another, in the same round."""
        return self.ran[above].seconds / self.ran[below].seconds


def one_round(source: Made, folder: Path) -> Round:
    """Run every tool once on one source, each from a cold cache."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        here = Path(name)
        (here / "peer").mkdir()
        drop_caches(source.folder)
        used = measure(peer_command(source, here / "peer"), environment=ENVIRONMENT)
        seconds = float(used.said.splitlines()[-1])
        import_s = used.wall_s - seconds
        seconds += synced(here / "peer")
        ran = {peer_of(source): Ran(seconds=seconds, used=used, import_s=import_s)}
        shutil.rmtree(here / "peer")
        drop_caches(source.folder)
        used, (seconds,) = ours("physical", source.folder, here / "ours")
        ran[PHYSICAL] = Ran(seconds=seconds, used=used, import_s=used.wall_s - seconds)
        data_gb = open_checkpoint(here / "ours0").index.nbytes / 1e9
        (here / "copy").mkdir()
        ran[BOUND] = Ran(seconds=disk_bound(here / "ours0", here / "copy"))
    return Round(ran=ran, data_gb=data_gb)


def virtual_ms(source: Made, folder: Path, repeat: int) -> float:
    """Milliseconds of a virtual conversion in a process that has its modules; median, warm."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _, seconds = ours("virtual", source.folder, Path(name) / "virtual", repeat + 1)
        return 1000 * statistics.median(seconds[1:])


def rows_of(source: Made, rounds: Sequence[Round]) -> Iterator[dict[str, Any]]:
    """One row per tool: medians, but the most of the memory."""
    for tool in rounds[0].ran:
        ran = [each.ran[tool] for each in rounds]
        row = {
            "source": source.name,
            "tool": tool,
            "rounds": len(ran),
            "wall_s": statistics.median(each.seconds for each in ran),
        }
        used = [each.used for each in ran if each.used is not None]
        if used:
            row |= {
                "imports_s": statistics.median(each.import_s for each in ran),
                "cpu_s": statistics.median(each.cpu_s for each in used),
                "read_gb": statistics.median(each.read_gb for each in used),
                "written_gb": statistics.median(each.written_gb for each in used),
                "peak_rss_mib": max(each.peak_rss_mib for each in used),
                "tree_mib": max(each.tree_mib for each in used),
            }
        yield row


def million_segments_s(folder: Path) -> float:
    """Seconds to publish and open a virtual checkpoint of a million flat segments in 64 files."""
    tensors, parts, files, item = 2500, 400, 64, 4
    for number in range(files):
        with (folder / f"shard-{number}").open("wb") as file:
            file.truncate(tensors * parts * item)
    row = np.arange(tensors * parts, dtype=np.int64)
    part = row % parts
    columns = [row // parts, part % files, row * item, np.full_like(row, item), np.ones_like(row)]
    table = np.stack([*columns, part, np.ones_like(row), np.ones_like(row)], axis=1)
    entries = tuple(
        Entry(name=f"layers.{number}.weight", state="param", dtype="float32", shape=(parts,))
        for number in range(tensors)
    )
    names = tuple(f"shard-{number}" for number in range(files))
    looked = {name: (folder / name).stat() for name in names}
    source = Source(
        kind="deepspeed",
        described="made up",
        folder=folder,
        index=Index(entries=entries, files=names, segments=from_table(table, 1)),
        values={},
        files={
            name: Fingerprint(each.st_size, each.st_mtime_ns, each.st_ino)
            for name, each in looked.items()
        },
    )
    seconds = []
    for number in range(3):
        began_s = time.monotonic()
        open_checkpoint(write_virtual(source, folder / f"virtual-{number}"))
        seconds.append(time.monotonic() - began_s)
    return statistics.median(seconds)


def convert(chosen: argparse.Namespace) -> Report:
    """Measure conversions."""
    rows: list[dict[str, Any]] = []
    zero: dict[str, list[Round]] = {}
    virtual: list[float] = []
    with tempfile.TemporaryDirectory(prefix="wattmesh-bench-") as name:
        folder = Path(name)
        for source in make_sources(folder, chosen.params):
            rounds = [one_round(source, folder) for _ in range(chosen.repeat)]
            rows += rows_of(source, rounds)
            took_ms = virtual_ms(source, folder, chosen.repeat)
            rows.append({"source": source.name, "tool": "ours, virtual (warm)",
                         "rounds": chosen.repeat, "wall_s": took_ms / 1000})  # fmt: skip
            if "ZeRO" in source.name:
                zero[source.name] = rounds
                virtual.append(took_ms)
            shutil.rmtree(source.folder)
        (folder / "million").mkdir()
        million_s = million_segments_s(folder / "million")
    rows.append({"source": f"{MILLION} flat segments, made up, opened again",
                 "tool": "ours, virtual (warm)", "rounds": 3, "wall_s": million_s})  # fmt: skip
    return Report(benchmark="checkpoint", rows=tuple(rows), goals=goals(zero, virtual, million_s))


def goals(
    zero: Mapping[str, Sequence[Round]], virtual: Sequence[float], million_s: float
) -> tuple[Goal, ...]:
    """Hold the ZeRO sources' figures against the design's: of both sources, the worse median."""

    def worst(of: Callable[[Round], float], pick: Callable[[list[float]], float] = max) -> float:
        return pick([statistics.median(map(of, rounds)) for rounds in zero.values()])

    def peers(each: Round) -> str:
        return next(iter(each.ran))

    return (
        Goal(name="virtual_ms", value=max(virtual), goal=20, op="<="),
        Goal(name="million_segments_s", value=million_s, goal=1.0, op="<="),
        Goal(
            name="physical_over_disk_bound",
            value=worst(lambda each: each.ratio(PHYSICAL, BOUND)),
            goal=1.3,
            op="<=",
        ),
        Goal(
            name="rss_mib_per_process",
            value=worst(lambda each: _used(each).peak_rss_mib),
            goal=256,
            op="<=",
        ),
        Goal(
            name="cpu_s_per_gb",
            value=worst(lambda each: _used(each).cpu_s / each.data_gb),
            goal=2.0,
            op="<=",
        ),
        Goal(
            name="speedup_over_deepspeed",
            value=worst(lambda each: each.ratio(peers(each), PHYSICAL), min),
            goal=10,
            op=">=",
        ),
    )


def _used(of: Round) -> Used:
    """What our physical conversion used."""
    used = of.ran[PHYSICAL].used
    assert used is not None
    return used


def measured(chosen: argparse.Namespace) -> Report:
    """Measure what converting (or, with --load, loading) a checkpoint costs."""
    return checkpoint_load.measure(chosen) if chosen.load else convert(chosen)


if __name__ == "__main__":
    sys.exit(run(measured, {"params": 110e6, "repeat": 5, "load": False}))
