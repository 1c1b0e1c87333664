"""What the daemon costs: time to READY, memory, processor, and how fast `status` answers.

    python -m benchmarks.daemon [--json] [--minutes 10]

A real daemon on a migrated SQLite journal reads 8 simulated GPUs once a second, decides every 5 s
over 720 hourly slots of a recorded signal and a catalogue of 7 points, takes the reports of one
job and its order calls once a second, and is scraped 4 times a minute. Nothing was tuned on
these figures but the order of starting (READY before the first poll) and idle wake-ups.
"""

import argparse
import http.client
import json
import math
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.report import Goal, Report, run
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire import Progress, Register
from wattmesh.telemetry.fake_nvml import FakeNvml

STARTS = 5
GPUS = 8
SLOTS = 720
POINTS = 7
SCRAPES_PER_MINUTE = 4
RUN = "00000000-0000-4000-8000-000000000001"
LAYOUT = Layout(dp_shard=8)

SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
[api]
socket = "{folder}/w.sock"
[metrics]
listen = "127.0.0.1:0"
[loops]
cycle_s = 5
sample_s = 1
[power]
source = "nvml"
library = "{folder}/gpus/libnvidia-ml.so.1"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
[runs.bench]
catalogue = "catalogue.toml"
deadline_after_s = 2000000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has used. `rss_mib`: now; `peak_mib`: the most it ever held."""

    at_s: float
    cpu_s: float
    rss_mib: float
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A daemon that is ready. `start_s`: from exec to READY."""

    folder: Path
    pid: int
    start_s: float

    def usage(self) -> Usage:
        """Read its use of processor and memory from the kernel."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        status = Path(f"/proc/{self.pid}/status").read_text()
        rss, peak = (
            int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024 for name in ("VmRSS", "VmHWM")
        )
        return Usage(
            at_s=time.monotonic(),
            cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
            rss_mib=rss,
            peak_mib=peak,
        )

    def ask(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> int:
        """Send one request to its socket; give the status."""
        connection = http.client.HTTPConnection("w", timeout=30)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self.folder / "w.sock"))
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, target, body=data)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def scrape(self) -> float:
        """Scrape its metrics; give the seconds that took."""
        log = (self.folder / "daemon.log").read_text()
        port = int(re.findall(r"metrics on http://127.0.0.1:(\d+)", log)[-1])
        began_s = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/metrics")
        connection.getresponse().read()
        connection.close()
        return time.monotonic() - began_s


def installed(folder: Path) -> dict[str, str]:
    """Give an environment in which our modules have their bytecode, as an installed wattmesh's."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**environment, "PYTHONPYCACHEPREFIX": str(folder / "pycache")}


@contextmanager
def daemon(folder: Path) -> Iterator[Running]:
    """Run a daemon over `folder` until the block ends."""
    notify = folder / "notify"
    notify.unlink(missing_ok=True)
    environment = {**installed(folder), "NOTIFY_SOCKET": str(notify)}
    command = [sys.executable, "-m", "wattmesh.controller.daemon", "--config"]
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        (folder / "daemon.log").open("ab") as log,
    ):
        manager.bind(str(notify))
        manager.settimeout(60)
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*command, str(folder / "wattmesh.toml")], env=environment, stderr=log
        )
        try:
            while not manager.recv(4096).startswith(b"READY=1"):
                pass
            ready_s = time.monotonic()
            yield Running(folder=folder, pid=process.pid, start_s=ready_s - began_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def prepare(folder: Path) -> None:
    """Write settings, trace, catalogue and devices."""
    (folder / "wattmesh.toml").write_text(SETTINGS.format(folder=folder))
    first = datetime(2023, 1, 1, tzinfo=UTC)
    columns = (
        "timestamp_utc,zone,kind,emission_factor_type,"
        "carbon_intensity_gco2eq_per_kwh,forecast_gco2_per_kwh"
    )
    rows = [columns]
    for hour in range(SLOTS + 48):
        value = 200 + 80 * math.sin(hour / 24 * math.tau) + 30 * math.sin(hour / 97)
        at = (first + timedelta(hours=hour)).isoformat().replace("+00:00", "Z")
        rows.append(f"{at},GB,average,direct,{value:.0f},{value:.0f}")
    (folder / "trace.csv").write_text("\n".join(rows) + "\n")
    (folder / "catalogue.toml").write_text(catalogue())
    FakeNvml.create(folder / "gpus", GPUS)


def catalogue() -> str:
    """Write a catalogue of 7 clocks of one layout."""
    text = (
        '[job]\nname = "bench"\ntokens_total = 1000000000\nreference = "P0"\n'
        "[switch]\nlayout_s = 2.0\nlayout_energy_j = 5000.0\n"
    )
    for index in range(POINTS):
        share = 1 - 0.1 * index
        text += (
            f'[[point]]\nid = "P{index}"\ngpus = {GPUS}\nclock_mhz = {1980 - 150 * index}\n'
            f"layout = {{ dp_shard = 8 }}\ntokens_per_s = {1000 * share:.1f}\n"
            f"power_w = {5600 * share**1.8:.1f}\n"
            'equivalence = "exact"\nevidence = "validated"\n'
        )
    return text


def job(running: Running, until_s: float) -> int:
    """Speak as one training job does; give how many reports were acknowledged."""
    layout, ranks, taken = LAYOUT, tuple(range(GPUS)), 0
    register = Register(
        run=RUN,
        name="bench",
        incarnation="i1",
        attempt=1,
        layout=layout,
        ranks=ranks,
        world_size=GPUS,
        tokens_total=1_000_000_000,
        boundary_every=100,
        capabilities=("in_place",),
    )
    running.ask("POST", f"/v1/runs/{RUN}/register", register.to_json())
    while time.monotonic() < until_s:
        taken += 1
        report = Progress(
            run=RUN,
            incarnation="i1",
            attempt=1,
            seq=taken,
            step=taken,
            samples=taken,
            tokens=taken * 500,
            tokens_per_s=1000.0,
            loss=2.0,
            layout=layout,
            ranks=ranks,
        )
        assert running.ask("POST", f"/v1/runs/{RUN}/progress", report.to_json()) == 200
        # The call waits a second for an order: the pause to the next report.
        running.ask("GET", f"/v1/runs/{RUN}/order?wait=1")
    return taken


def status_s(folder: Path) -> float:
    """Time `wattmesh status` as a person waits for it."""
    program = Path(sys.executable).with_name("wattmesh")
    environment = {**installed(folder), "WATTMESH_URL": f"unix://{folder}/w.sock"}
    began_s = time.monotonic()
    subprocess.run(
        [program, "status"], env=environment, check=True, capture_output=True, timeout=60
    )
    return time.monotonic() - began_s


def load(running: Running, minutes: float) -> Iterator[Mapping[str, Any]]:
    """Put the declared load on a daemon for some minutes; give rows of evidence."""
    until_s = time.monotonic() + 60 * minutes
    worker = threading.Thread(target=job, args=(running, until_s), daemon=True)
    worker.start()
    count = max(2, round(SCRAPES_PER_MINUTE * minutes))
    pause_s = 60 * minutes / count
    scrapes, uses = [], [running.usage()]
    for _ in range(count):
        time.sleep(pause_s)
        scrapes.append(running.scrape())
        uses.append(running.usage())
    worker.join()
    # The first tenth holds the first polls and the warm-up of caches.
    early, late = uses[count // 10], uses[-1]
    yield {
        "case": f"one job, {GPUS} simulated GPUs at 1 Hz, {SLOTS} slots x {POINTS} points",
        "minutes": minutes,
        "scrapes": count,
        "cpu_share": (late.cpu_s - early.cpu_s) / (late.at_s - early.at_s),
        "peak_rss_mib": late.peak_mib,
        "rss_early_mib": early.rss_mib,
        "rss_late_mib": late.rss_mib,
        "scrape_s": statistics.median(scrapes),
    }


def measure(chosen: argparse.Namespace) -> Report:
    """Measure what the daemon costs (--minutes N: how long the load lasts)."""
    with tempfile.TemporaryDirectory(prefix="wattmesh-bench-") as name:
        folder = Path(name)
        prepare(folder)
        starts = []
        for _ in range(STARTS + 1):
            with daemon(folder) as running:
                starts.append(running.start_s)
        # The first start also migrated the journal and compiled the bytecode.
        start_s = statistics.median(starts[1:])
        with daemon(folder) as running:
            (used,) = load(running, chosen.minutes)
            answers = [status_s(folder) for _ in range(STARTS + 1)][1:]
    rows = (
        {"case": f"exec to READY, median of {STARTS}, migrated journal", "start_s": start_s},
        used,
        {
            "case": f"wattmesh status, median of {STARTS}",
            "cli_status_s": statistics.median(answers),
        },
    )
    goals = (
        Goal(name="rss_mib", value=used["peak_rss_mib"], goal=128, op="<="),
        Goal(name="start_s", value=start_s, goal=1.0, op="<="),
        Goal(name="cpu_share_8gpu", value=used["cpu_share"], goal=0.01, op="<="),
        Goal(name="cli_status_s", value=statistics.median(answers), goal=0.3, op="<="),
    )
    return Report(benchmark="daemon", rows=rows, goals=goals)


if __name__ == "__main__":
    sys.exit(run(measure, {"minutes": 10.0}))
