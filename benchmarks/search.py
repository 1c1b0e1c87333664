"""Searching every layout: configurations per second of one core, the largest space, its memory.

    python -m benchmarks.search [--json] [--repeats 5]

Models by name on made-up clusters; the seconds are the processor's, of one thread, and are the
median of `--repeats`. `command_s` is `wattmesh configs search` as a person calls it, start and
imports included.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.report import Goal, Report, run
from wattmesh.controller.cost_model.fitted import shipped
from wattmesh.policies.layout_search.search import CLOCKS, megatron_like, search
from wattmesh.policies.layout_search.space import Job
from wattmesh.policies.parallelism.hardware import CLASSES
from wattmesh.policies.parallelism.presets import PRESETS

JOBS = {
    "llama3-8b, 64 h100": Job(
        shape=PRESETS["llama3-8b"], global_batch=1024, seq_len=8192, gpus=64, gpu=CLASSES["h100"]
    ),
    "llama3-70b, 256 h100": Job(
        shape=PRESETS["llama3-70b"], global_batch=1024, seq_len=8192, gpus=256, gpu=CLASSES["h100"]
    ),
    "deepseek-v3 of 64 layers, 1024 h100": Job(
        shape=replace(PRESETS["deepseek-v3"], layers=64),
        global_batch=4096,
        seq_len=4096,
        gpus=1024,
        gpu=CLASSES["h100"],
    ),
}
LARGEST = "deepseek-v3 of 64 layers, 1024 h100"
COMMAND = ("configs", "search", "--model", "llama3-70b", "--gpus", "256xh100")


def cpu_s(act: Callable[[], object], repeats: int) -> float:
    """Give the median seconds of processor that it takes."""
    taken = []
    for _ in range(repeats):
        began = time.process_time()
        act()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def peak_mib(act: Callable[[], object]) -> float:
    """Give the most memory that its objects and arrays took."""
    tracemalloc.start()
    act()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 2**20


def command_s(repeats: int) -> float:
    """Give the median seconds of the whole command, by the wall."""
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        words = [sys.executable, "-m", "wattmesh.controller.cli.main", *COMMAND]
        subprocess.run(words, check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def row(name: str, job: Job, repeats: int) -> dict[str, Any]:
    """Search one job at full clock, which is what is counted, and at all clocks."""
    model, work = shipped(), megatron_like(job)

    def once() -> object:
        return search(job, work, model, clocks=(1.0,))

    found = search(job, work, model)
    seconds = cpu_s(once, repeats)
    return {
        "job": name,
        "layouts": found.space.size,
        "fitting": found.fitting,
        "front": len(found.which),
        "seconds": seconds,
        "seconds_with_clocks": cpu_s(lambda: search(job, work, model), repeats),
        "clocks": len(CLOCKS),
        "configs_per_s": found.space.size / seconds,
        "peak_mib": peak_mib(once),
    }


def measure(chosen: argparse.Namespace) -> Report:
    """Search every job."""
    rows = {name: row(name, job, chosen.repeats) for name, job in JOBS.items()}
    largest = rows[LARGEST]
    whole_command_s = command_s(chosen.repeats)
    command = {"job": f"wattmesh {' '.join(COMMAND)}", "wall_s": whole_command_s}
    return Report(
        benchmark="search",
        rows=(*rows.values(), command),
        goals=(
            Goal(name="configs_per_s", value=largest["configs_per_s"], goal=500_000, op=">="),
            Goal(name="space_1024_s", value=largest["seconds"], goal=1.0, op="<="),
            Goal(
                name="space_1024_with_clocks_s",
                value=largest["seconds_with_clocks"],
                goal=1.0,
                op="<=",
            ),
            Goal(name="space_1024_peak_mib", value=largest["peak_mib"], goal=512, op="<="),
            Goal(name="command_s", value=whole_command_s, goal=2.0, op="<="),
        ),
    )


if __name__ == "__main__":
    sys.exit(run(measure, {"repeats": 5}))
