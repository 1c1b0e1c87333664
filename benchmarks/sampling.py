"""What measuring costs: the sampler on a node, and the controller that 10,000 GPUs report to.

    python -m benchmarks.sampling [--json] [--seconds 60] [--rounds 6]

On a node: our sampler with its SQLite journal (a commit every 10 s) reads 8 and 64 fake GPUs once a
second through the real nvidia-ml-py; peers that are installed watch the same 8 GPUs, one after the
other, each with its defaults (CodeCarbon at 1 s). The share of a core is that of all processes of a
tool, after it has begun. A real driver's calls cost more than the fake library's.

On the controller: a real daemon takes the deliveries of 1,250 nodes with 8 GPUs each, every one a
changed ledger row, a counter and a reading, over its Unix socket and into SQLite. A round is what a
cluster delivers in 10 s; rounds follow each other at once. Long polls are not part of it.
"""

import argparse
import http.client
import importlib.util
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.daemon.__main__ import daemon
from benchmarks.energy.peers import PEERS, environment, sweep, warm
from benchmarks.energy.sampler import GRID
from benchmarks.report import Goal, Report, run
from benchmarks.usage import tree_cpu_s
from wattmesh.telemetry.energy.delivery import EnergyBatch
from wattmesh.telemetry.energy.delivery import Report as Delivery
from wattmesh.telemetry.energy.ledger import CounterBaseline, EnergyRow
from wattmesh.telemetry.fake_nvml import FakeNvml

SIZES = (8, 64)
NODES = 1_250
GPUS_PER_NODE = 8
DELIVER_S = 10.0
CONNECTIONS = 16
WARM_S = 3.0

BOOKED_SINCE_US = 1_700_000_000_000_000
"""Since when a node's counters are booked without a gap, as every agent says."""

SETTINGS = """\
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = "127.0.0.1:0"
[power]
source = "agents"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a process and its children used. `threads`: of the process itself."""

    share: float
    rss_mib: float
    threads: int


def watched(command: Sequence[str], fake: FakeNvml, log: Path, seconds: float) -> Watched | None:
    """Run a tool until it measures, then for some seconds; None when it never began."""
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment(fake, log.parent),
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        if not any(line.startswith("{") for line in process.stdout):
            return None
        time.sleep(WARM_S)
        before_s, began_s = tree_cpu_s(process.pid), time.monotonic()
        time.sleep(seconds)
        share = (tree_cpu_s(process.pid) - before_s) / (time.monotonic() - began_s)
        status = Path(f"/proc/{process.pid}/status").read_text()
        return Watched(
            share=share,
            rss_mib=_number(status, "VmRSS:") / 1024,
            threads=_number(status, "Threads:"),
        )
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        sweep(process)


def _number(status: str, name: str) -> int:
    """Read one number of /proc/PID/status."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


def on_a_node(folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Measure our sampler at every size, and each peer at the first."""
    warm(folder)
    for gpus in SIZES:
        fake = FakeNvml.create(folder / f"gpus-{gpus}", gpus=gpus)
        for gpu in fake.gpus:
            gpu.load(0.8)
        tools: list[tuple[str, str, Sequence[str]]] = [
            (
                "wattmesh",
                "benchmarks",
                ("benchmarks.energy.sampler", str(fake.library), str(folder / f"{gpus}.db")),
            )
        ]
        if gpus == SIZES[0]:
            tools += [
                (name, module, ("benchmarks.energy.peers", name, str(gpus)))
                for name, module in PEERS.items()
            ]
        for tool in tools:
            yield _row(tool, fake, folder, seconds)


def _row(
    tool: tuple[str, str, Sequence[str]], fake: FakeNvml, folder: Path, seconds: float
) -> dict[str, Any]:
    """Measure one tool (its name, its module, its command) on one node."""
    name, module, command = tool
    row: dict[str, Any] = {"case": f"{len(fake.gpus)} GPUs on a node", "tool": name}
    if importlib.util.find_spec(module) is None:
        return row | {"note": "not installed"}
    found = watched(command, fake, folder / "tools.log", seconds)
    if found is None:
        return row | {"note": "ended by itself"}
    return row | {
        "cpu_share": found.share,
        "rss_mib": found.rss_mib,
        "threads": found.threads,
        "seconds": seconds,
    }


def delivery(node: int, number: int, now: datetime) -> bytes:
    """Write what one node delivers in one round: 8 GPUs at work for 10 s."""
    name, gpus = f"n{node}", [f"GPU-{node:05d}-{index}" for index in range(GPUS_PER_NODE)]
    slot_start, slot_end = GRID.slot(now)
    rows = tuple(
        EnergyRow(
            gpu_uuid=gpu,
            run="",
            incarnation="",
            slot_start=slot_start,
            slot_end=slot_end,
            energy_mj=5_000_000 + index,
            unobserved_ms=0,
            upper_mj=0,
            source="nvml",
            quality="simulated",
            line="idle",
        )
        for index, gpu in enumerate(gpus)
    )
    baselines = tuple(
        CounterBaseline(
            gpu_uuid=gpu,
            energy_mj=number * 5_000_000,
            at=now,
            monotonic_s=DELIVER_S * number,
            boot_id="b",
            source="nvml",
            booked_mj=number * 5_000_000,
            since_us=BOOKED_SINCE_US,
        )
        for gpu in gpus
    )
    batch = EnergyBatch(node=name, boot_id="b", seq=number, at=now, rows=rows, baselines=baselines)
    reading = {
        "at": now.isoformat(),
        "power_w": 500.0,
        "clock_mhz": 1980,
        "power_limit_w": 700.0,
        "source": "nvml",
        "quality": "simulated",
        "component": "gpu",
    }
    report = Delivery(batch=batch, devices=dict.fromkeys(gpus, reading), facts={"version": "0"})
    return json.dumps(report.to_json()).encode()


def send(path: Path, nodes: Sequence[int], bodies: Mapping[int, bytes]) -> list[float]:
    """Deliver for some nodes over one connection; give the seconds of each call."""
    took = []
    connection = http.client.HTTPConnection("w", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(path))
    for node in nodes:
        began_s = time.monotonic()
        connection.request("POST", f"/v1/agents/n{node}/readings", body=bodies[node])
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the daemon answered {answer.status}: {said[:300]!r}")
        took.append(time.monotonic() - began_s)
    connection.close()
    return took


def on_the_controller(folder: Path, rounds: int) -> dict[str, Any]:
    """Let a daemon take the deliveries of the whole cluster, round after round."""
    folder.mkdir()
    (folder / "wattmesh.toml").write_text(SETTINGS.format(folder=folder))
    shares = [range(first, NODES, CONNECTIONS) for first in range(CONNECTIONS)]
    walls, cpus, calls = [], [], []
    with daemon(folder) as running, ThreadPoolExecutor(CONNECTIONS) as pool:
        for number in range(1, rounds + 2):
            now = datetime.now(UTC)
            bodies = {node: delivery(node, number, now) for node in range(NODES)}
            before, began_s = running.usage(), time.monotonic()
            work = [pool.submit(send, folder / "w.sock", nodes, bodies) for nodes in shares]
            took = [each for done in work for each in done.result()]
            if number > 1:  # the first one inserts every node and counter
                walls.append(time.monotonic() - began_s)
                cpus.append(running.usage().cpu_s - before.cpu_s)
                calls += took
        rss_mib = running.usage().rss_mib
    wall_s, used_s = statistics.median(walls), statistics.median(cpus)
    return {
        "case": f"controller, {NODES} nodes x {GPUS_PER_NODE} GPUs, each every {DELIVER_S:g} s",
        "tool": "wattmesh",
        "rounds": rounds,
        "round_wall_s": wall_s,
        "round_cpu_s": used_s,
        "rows_per_s": NODES * GPUS_PER_NODE / wall_s,
        "cpu_share": used_s / DELIVER_S,
        "call_p95_s": statistics.quantiles(calls, n=20)[-1],
        "rss_mib": rss_mib,
    }


def measure(chosen: argparse.Namespace) -> Report:
    """Measure the sampler on a node, and the controller of 10,000 GPUs."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-bench-") as name:
        rows = list(on_a_node(Path(name), chosen.seconds))
        rows.append(on_the_controller(Path(name) / "controller", chosen.rounds))
    ours = {row["case"]: row.get("cpu_share") for row in rows if row["tool"] == "wattmesh"}
    small, large = (ours[f"{gpus} GPUs on a node"] for gpus in SIZES)
    goals = (
        Goal(name="cpu_share_8gpu", value=small, goal=0.01, op="<="),
        Goal(name="cpu_share_64gpu", value=large, goal=0.05, op="<="),
        # Below 1, what the cluster delivers in 10 s is taken in within 10 s.
        Goal(
            name="ingest_10000gpu_wall_share",
            value=rows[-1]["round_wall_s"] / DELIVER_S,
            goal=1.0,
            op="<=",
        ),
    )
    return Report(benchmark="sampling", rows=tuple(rows), goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure, {"seconds": 60.0, "rounds": 6}))
