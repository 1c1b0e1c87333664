"""What the daemon costs: time to READY, memory, processor, and how fast `status` answers.

    python -m benchmarks.daemon [--json] [--minutes 10]

A real daemon on a migrated SQLite journal decides every 5 s about one job on 8 simulated GPUs
(site.py): a real agent reads them once a second, a real actuator can set their clocks, the
job reports once a second and waits for orders as its client does, through the agent, and
`/metrics` is scraped 4 times a minute. The plan that the daemon keeps is looked at with each
scrape: were it ever of less than 720 slots x 7 points, there would be no figures. Memory is the
peak of the daemon and, of its planning process, of what the two do not share; the share of a core
is theirs and the agent's, which reads the GPUs. Nothing was tuned on these figures but the order of
starting (READY before the first poll) and idle wake-ups.
"""

import argparse
import http.client
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.daemon.site import GPUS, PATIENCE_S, POINTS, Site, check_plan, prepare, site
from benchmarks.report import Goal, Report, run
from benchmarks.usage import children

UNIT = Path(__file__).parents[2] / "integrations/systemd/wattmesh.service"
STARTS = 5
SCRAPES_PER_MINUTE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process has used. `rss_mib`: now; `peak_mib`: the most it ever held."""

    at_s: float
    cpu_s: float
    rss_mib: float
    peak_mib: float


def usage(pid: int) -> Usage:
    """Read what one process has used from the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    status = Path(f"/proc/{pid}/status").read_text()
    rss, peak = (
        int(re.findall(rf"{name}:\s+(\d+) kB", status)[0]) / 1024 for name in ("VmRSS", "VmHWM")
    )
    return Usage(
        at_s=time.monotonic(),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        rss_mib=rss,
        peak_mib=peak,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A daemon that is ready. `start_s`: from exec to READY."""

    folder: Path
    pid: int
    start_s: float

    def usage(self) -> Usage:
        """Read its use of processor and memory from the kernel."""
        return usage(self.pid)

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
    """Give the environment of an installed wattmesh: modules with bytecode, what the unit sets."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    unit = dict(re.findall(r"(?m)^Environment=(\w+)=(\S+)$", UNIT.read_text()))
    return {**environment, **unit, "PYTHONPYCACHEPREFIX": str(folder / "pycache")}


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
        manager.settimeout(PATIENCE_S)
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*command, str(folder / "wattmesh.toml")], env=environment, stderr=log
        )
        try:
            while not manager.recv(4096).startswith(b"READY=1"):
                pass
            ready_s = time.monotonic()
            with _drained(manager):
                yield Running(folder=folder, pid=process.pid, start_s=ready_s - began_s)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


@contextmanager
def _drained(manager: socket.socket) -> Iterator[None]:
    """Take what the daemon tells its service manager, as one does, until the block ends."""
    over = threading.Event()
    manager.settimeout(0.5)

    def take() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                manager.recv(4096)

    taker = threading.Thread(target=take)
    taker.start()
    try:
        yield
    finally:
        over.set()
        taker.join()


def status_s(folder: Path) -> float:
    """Time `wattmesh status` as a person waits for it."""
    program = Path(sys.executable).with_name("wattmesh")
    environment = {**installed(folder), "WATTMESH_URL": f"unix://{folder}/w.sock"}
    began_s = time.monotonic()
    subprocess.run(
        [program, "status"], env=environment, check=True, capture_output=True, timeout=60
    )
    return time.monotonic() - began_s


def load(running: Running, here: Site, minutes: float) -> dict[str, Any]:
    """Put the declared load on a daemon for some minutes; give a row of evidence.

    Raises:
        SmallerPlanError: the daemon kept another plan than the figures are for.
    """
    here.start_actuator()
    plans = [here.wait_for_plan(POINTS)]
    pids = parts(running, here)
    until_s = time.monotonic() + 60 * minutes
    count = max(2, round(SCRAPES_PER_MINUTE * minutes))
    scrapes, uses = [], [{name: usage(pid) for name, pid in pids.items()}]
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(report_until, here, until_s)
        for _ in range(count):
            time.sleep(60 * minutes / count)
            scrapes.append(running.scrape())
            uses.append({name: usage(pid) for name, pid in pids.items()})
            plans.append(here.plan() or {})
            check_plan(plans[-1])
        job.result()
        shared = shared_mib(pids["planner"])
    # The first tenth holds the first polls and the warm-up of caches.
    early, late = uses[count // 10], uses[-1]
    shares = {
        name: (late[name].cpu_s - early[name].cpu_s) / (late[name].at_s - early[name].at_s)
        for name in pids
    }
    slots = min(plan["slots"] for plan in plans)
    options = min(plan["options"] for plan in plans)
    return {
        "case": f"one job, {GPUS} simulated GPUs at 1 Hz, {slots} slots x {options} points",
        "minutes": minutes,
        "scrapes": count,
        "plans": len({plan["digest"] for plan in plans}),
        "clock_changes_planned": plans[-1]["clock_changes"],
        "cpu_share": sum(shares[name] for name in COUNTED),
        **{f"{name}_cpu_share": share for name, share in shares.items()},
        "peak_rss_mib": late["daemon"].peak_mib + late["planner"].peak_mib - shared,
        **{f"{name}_peak_rss_mib": late[name].peak_mib for name in pids},
        "rss_early_mib": early["daemon"].rss_mib,
        "rss_late_mib": late["daemon"].rss_mib,
        "scrape_s": statistics.median(scrapes),
    }


COUNTED = ("daemon", "planner", "agent")
"""Whose share of a core the goal is about: reading 8 GPUs, deciding, planning, serving."""


def parts(running: Running, here: Site) -> dict[str, int]:
    """Name the processes of the site that are ours."""
    (planner,) = children(running.pid)
    assert here.actuator is not None
    return {
        "daemon": running.pid,
        "planner": planner,
        "agent": here.agent.pid,
        "actuator": here.actuator.pid,
    }


def shared_mib(pid: int) -> float:
    """Read how much of a process's memory others map too: libraries, mostly."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(kib) for kib in re.findall(r"Shared_\w+:\s+(\d+) kB", rollup)) / 1024


def report_until(here: Site, until_s: float) -> None:
    """Let the job report until some moment of the monotonic clock."""
    while time.monotonic() < until_s:
        here.report()


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
        with daemon(folder) as running, site(folder) as here:
            used = load(running, here, chosen.minutes)
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
