"""Other tools over the same GPUs, each in a process of its own (`benchmarks.energy` starts them).

    python -m benchmarks.energy.peers TOOL GPUS

CodeCarbon looks for `nvidia-smi` before it looks for NVML, so a stand-in is put on the path.

Prints {"first": [monotonic seconds per GPU]} when it measures, and when asked to end (SIGTERM)
{"last": [the same], "joules": [one per GPU]}. Each tool is used as its own manual says, all
with their defaults but for CodeCarbon's period (1 s instead of 15 s).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.daemon.__main__ import installed
from wattmesh.telemetry.fake_nvml import FakeNvml

PEERS = {"ZeusMonitor": "zeus", "zeus PowerMonitor": "zeus", "CodeCarbon": "codecarbon"}
"""The tools, and the module each comes in."""

J_PER_KWH = 3.6e6
PERIOD_S = 1.0


def environment(fake: FakeNvml, folder: Path) -> dict[str, str]:
    """Give what a tool sees on a GPU node: the library, `nvidia-smi`, and modules compiled once."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ.get('PATH', '')}"
    return {**installed(folder), **_library(fake), "PATH": path}


def _library(fake: FakeNvml) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": fake.environment()["LD_LIBRARY_PATH"]}


def warm(folder: Path) -> None:
    """Compile the peers' modules, so that nobody waits for that while it measures."""
    for module in {module for module in PEERS.values() if find_spec(module)}:
        name = "zeus.monitor" if module == "zeus" else module
        subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            env=installed(folder),
            check=False,
            capture_output=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """A measurement that has begun. `first`: monotonic seconds at which each GPU's began.

    `stop` ends it and gives (the moments at which each GPU's ended, joules by GPU).
    """

    first: list[float]
    stop: Callable[[], tuple[list[float], list[float]]]


def zeus_monitor(gpus: int) -> Measuring:
    """Measure one window over everything."""
    every = list(range(gpus))
    monitor = import_module("zeus.monitor").ZeusMonitor(gpu_indices=every, cpu_indices=[])
    monitor.begin_window("all", sync_execution=False)
    first_s = time.monotonic()

    def stop() -> tuple[list[float], list[float]]:
        last_s = time.monotonic()
        found = monitor.end_window("all", sync_execution=False).gpu_energy
        return [last_s] * gpus, [float(found[index]) for index in every]

    return Measuring(first=[first_s] * gpus, stop=stop)


def power_monitor(gpus: int) -> Measuring:
    """Let the background process integrate power; one, for the domain that it integrates."""
    every = list(range(gpus))
    monitor_class = import_module("zeus.monitor").PowerMonitor
    monitor = monitor_class(gpu_indices=every, power_domains=["device_instant"])
    first_s, began_s = time.monotonic(), time.time()

    def stop() -> tuple[list[float], list[float]]:
        last_s = time.monotonic()
        found = monitor.get_energy(began_s, time.time()) or {}
        monitor.stop()
        return [last_s] * gpus, [float(found.get(index, 0.0)) for index in every]

    return Measuring(first=[first_s] * gpus, stop=stop)


def codecarbon(gpus: int) -> Measuring:
    """Track each GPU by a tracker of its own: one tracker tells only the sum."""
    tracker_class = import_module("codecarbon").OfflineEmissionsTracker
    trackers = [
        tracker_class(
            country_iso_code="GBR",
            measure_power_secs=1,
            gpu_ids=[index],
            save_to_file=False,
            allow_multiple_runs=True,
            log_level="error",
        )
        for index in range(gpus)
    ]
    first = []
    for tracker in trackers:
        tracker.start()
        first.append(time.monotonic())

    def stop() -> tuple[list[float], list[float]]:
        last = []
        for tracker in trackers:
            last.append(time.monotonic())
            tracker.stop()
        found = [each.final_emissions_data.gpu_energy for each in trackers]
        return last, [float(each) * J_PER_KWH for each in found]

    return Measuring(first=first, stop=stop)


TOOLS: dict[str, Callable[[int], Measuring]] = {
    "ZeusMonitor": zeus_monitor,
    "zeus PowerMonitor": power_monitor,
    "CodeCarbon": codecarbon,
}


def sweep(process: subprocess.Popen[str]) -> None:
    """Kill what a tool that has ended left behind: it was started in a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(tool: str, gpus: int) -> int:
    """Measure until told to end."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    measuring, parent = TOOLS[tool](gpus), os.getppid()
    print(json.dumps({"first": measuring.first}), flush=True)
    while not over.wait(PERIOD_S):
        if os.getppid() != parent:  # the benchmark was killed
            return 1
    last, joules = measuring.stop()
    print(json.dumps({"last": last, "joules": joules}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
