"""What the benchmarked daemon watches over: a node with 8 fake GPUs, and one run on them.

A real agent reads the GPUs, a real actuator can set their clocks, and a job reports through the
agent's relay, at the pace that the clock allows. The run may be at 7 clocks, and its deadline is so
far away that a plan has 720 slots: hours of three days, and from there on pairs of hours.

Invariant: `check_plan` looks at the plan that the daemon keeps; a smaller one is an error, never a
cheaper figure. Whatever was started is ended by its id.
"""

import grp
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from wattmesh.reconfig.client.daemon_client import ORDER_WAIT_S
from wattmesh.reconfig.layout import Layout
from wattmesh.reconfig.wire.messages import Progress, Register
from wattmesh.telemetry.fake_nvml import Board, FakeNvml

GPUS = 8
SLOTS = 720
CLOCKS_MHZ = (1980, 1830, 1680, 1530, 1380, 1230, 1080)
POINTS = len(CLOCKS_MHZ)
RUN = "00000000-0000-4000-8000-000000000001"
LAYOUT = Layout(dp_shard=8)
TOKENS = 3_400_000_000
FASTEST_TOKENS_PER_S = 1000.0

SLOWER = 30
"""The recording has steps of two minutes and is played so many times slower, as hours: the 48 hours
that a recording foretells are then two months, and no slot of the plan is made up."""

DEADLINE_H = 1372
"""72 slots of an hour and 648 of two are 1368 hours; the guard keeps its reserve of the rest."""

PATIENCE_S = 300.0

SETTINGS = """\
mode = "act"
[journal]
url = "sqlite:///{folder}/journal.db"
trust_clock = true
[api]
socket = "{folder}/w.sock"
[metrics]
listen = "127.0.0.1:0"
[loops]
cycle_s = {cycle_s}
sample_s = 1
[power]
source = "agents"
[carbon.accounting]
provider = "csv"
zone = "GB"
file = "trace.csv"
compress = {compress}
[runs.bench]
catalogue = "catalogue.toml"
deadline_after_s = {deadline_after_s}
"""

NODE = """\
[power]
source = "agents"
library = "{library}"
[api]
socket = "{folder}/none.sock"
[loops]
sample_s = 1
[agent]
node = "n1"
controller = "unix://{folder}/w.sock"
outbox = "{folder}/agent.db"
relay = "{folder}/relay.sock"
metrics = "127.0.0.1:0"
[actuator]
mode = "enforce"
group = "{group}"
socket = "{folder}/actuator.sock"
journal = "{folder}/actuator.journal"
library = "{library}"
"""


class SmallerPlanError(Exception):
    """The plan that the daemon keeps is not the one that the figures are for."""


def prepare(folder: Path, cycle_s: float = 5.0) -> None:
    """Write the daemon's settings, the trace and the catalogue."""
    settings = SETTINGS.format(
        folder=folder,
        cycle_s=cycle_s,
        compress=1 / SLOWER,
        deadline_after_s=DEADLINE_H * 3600,
    )
    (folder / "wattmesh.toml").write_text(settings)
    (folder / "catalogue.toml").write_text(catalogue())
    first, step = datetime(2023, 1, 1, tzinfo=UTC), timedelta(hours=1) / SLOWER
    write_trace(folder / "trace.csv", first, step, DEADLINE_H + 48)


def write_trace(path: Path, first: datetime, step: timedelta, count: int) -> None:
    """Write a recording of `count` steps, in which each foretells itself."""
    columns = (
        "timestamp_utc,zone,kind,emission_factor_type,"
        "carbon_intensity_gco2eq_per_kwh,forecast_gco2_per_kwh"
    )
    rows = [columns]
    for hour in range(count):
        value = 200 + 80 * math.sin(hour / 24 * math.tau) + 30 * math.sin(hour / 97)
        at = (first + hour * step).isoformat().replace("+00:00", "Z")
        rows.append(f"{at},GB,average,direct,{value:.0f},{value:.0f}")
    path.write_text("\n".join(rows) + "\n")


def tokens_per_s(clock_mhz: int) -> float:
    """Speed of the run at a clock: it is not all bound by the clock."""
    return FASTEST_TOKENS_PER_S * (0.3 + 0.7 * clock_mhz / CLOCKS_MHZ[0])


def catalogue() -> str:
    """Write a catalogue of 7 clocks of one layout."""
    text = (
        f'[job]\nname = "bench"\ntokens_total = {TOKENS}\nreference = "P0"\nrelease = "held"\n'
        "[switch]\nlayout_s = 2.0\nlayout_energy_j = 5000.0\n"
    )
    for index, clock_mhz in enumerate(CLOCKS_MHZ):
        power_w = 5600 * (0.3 + 0.7 * (clock_mhz / CLOCKS_MHZ[0]) ** 2.4)
        text += (
            f'[[point]]\nid = "P{index}"\ngpus = {GPUS}\nclock_mhz = {clock_mhz}\n'
            f"layout = {{ dp_shard = 8 }}\ntokens_per_s = {tokens_per_s(clock_mhz):.1f}\n"
            f'power_w = {power_w:.1f}\nequivalence = "exact"\nevidence = "validated"\n'
        )
    return text


def ask(
    path: Path, method: str, target: str, body: Mapping[str, Any] | None = None
) -> tuple[int, Any]:
    """Send one request to a Unix socket; give status and answer."""
    connection = http.client.HTTPConnection("w", timeout=PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(PATIENCE_S)
    try:
        connection.sock.connect(str(path))
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, target, body=data)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@dataclass(slots=True)
class Site:
    """The node and the run."""

    folder: Path
    fake: FakeNvml
    agent: subprocess.Popen[bytes]
    actuator: subprocess.Popen[bytes] | None = None
    running: ExitStack = field(default_factory=ExitStack)
    reports: int = 0

    def start_actuator(self) -> None:
        """Start the process that may set the clocks; it ends with the site."""
        self.actuator = self.running.enter_context(_process(self.folder, "telemetry.actuator"))

    def register(self) -> None:
        """Introduce the run, when the agent relays."""
        register = Register(
            run=RUN,
            name="bench",
            incarnation="i1",
            attempt=1,
            layout=LAYOUT,
            ranks=tuple(range(GPUS)),
            world_size=GPUS,
            gpus=tuple(gpu.uuid for gpu in self.fake.gpus),
            tokens_total=TOKENS,
            boundary_every=100,
            capabilities=("in_place",),
        )
        until_s = time.monotonic() + PATIENCE_S
        while self._relayed("POST", "register", register.to_json()) != 200:
            if time.monotonic() > until_s:
                raise TimeoutError(f"the run was not registered: {_log(self.folder)}")
            time.sleep(0.2)

    def report(self) -> None:
        """Report progress, then train for a second."""
        self.reports += 1
        lock = self.fake.gpus[0].truth().lock_mhz
        report = Progress(
            run=RUN,
            incarnation="i1",
            attempt=1,
            seq=self.reports,
            step=self.reports,
            samples=self.reports,
            tokens=self.reports * 500,
            tokens_per_s=tokens_per_s(lock or CLOCKS_MHZ[0]),
            loss=2.0,
            layout=LAYOUT,
            ranks=tuple(range(GPUS)),
        )
        status = self._relayed("POST", "progress", report.to_json())
        if status != 200:
            raise RuntimeError(f"a report was answered with {status}: {_log(self.folder)}")
        time.sleep(1.0)

    def ask_for_orders(self, over: threading.Event) -> None:
        """Ask for orders until the site ends, as the thread of a job's daemon client does."""
        while not over.is_set():
            if self._relayed("GET", f"order?wait={ORDER_WAIT_S:g}") != 200:
                over.wait(1.0)

    def plan(self) -> dict[str, Any] | None:
        """Give the plan that the daemon keeps; None while there is none."""
        _, answer = ask(self.folder / "w.sock", "GET", f"/v1/runs/{RUN}/plan")
        plan: dict[str, Any] | None = answer["plan"]
        return plan

    def wait_for_plan(self, options: int) -> dict[str, Any]:
        """Report until the daemon keeps a plan with so many options; give it.

        Raises:
            SmallerPlanError: none came in time; the message says what came instead.
        """
        until_s, plan = time.monotonic() + PATIENCE_S, None
        while plan is None or plan["options"] != options:
            if time.monotonic() > until_s:
                raise SmallerPlanError(f"no plan of {options} options came: {plan}")
            self.report()
            plan = self.plan()
        return plan

    def _relayed(self, method: str, call: str, body: Mapping[str, Any] | None = None) -> int:
        """Call the daemon through the agent, as jobs do; 0 when nobody listens."""
        try:
            return ask(self.folder / "relay.sock", method, f"/v1/runs/{RUN}/{call}", body)[0]
        except OSError:
            return 0


def check_plan(plan: Mapping[str, Any] | None) -> None:
    """Look at the plan that the daemon keeps.

    Raises:
        SmallerPlanError: it has fewer slots or options than the figures are for.
    """
    slots, options = (plan["slots"], plan["options"]) if plan else (0, 0)
    if slots < SLOTS or options < POINTS:
        raise SmallerPlanError(
            f"the daemon keeps a plan of {slots} slots x {options} options; the figures are for "
            f"{SLOTS} x {POINTS}"
        )


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Bring the node up beside the daemon of a folder; its clocks cannot be set yet."""
    fake = FakeNvml.create(folder / "gpus", GPUS, Board.H100)
    group = grp.getgrgid(os.getegid()).gr_name
    text = NODE.format(folder=folder, library=fake.library, group=group)
    (folder / "node.toml").write_text(text)
    with ExitStack() as running:
        running.callback(fake.close)
        child = subprocess.Popen(["sleep", "3600"])
        running.callback(_end, child)
        for gpu in fake.gpus:
            gpu.load(0.8)
            gpu.process(child.pid, lingers=True)
        over = threading.Event()
        asker = running.enter_context(ThreadPoolExecutor(1))
        agent = running.enter_context(_process(folder, "controller.agent"))
        running.callback(over.set)
        made = Site(folder=folder, fake=fake, agent=agent, running=running)
        made.register()
        asker.submit(made.ask_for_orders, over)
        yield made


@contextmanager
def _process(folder: Path, module: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one of our programs on the node's settings."""
    with (folder / "node.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"wattmesh.{module}", "--config", str(folder / "node.toml")],
            stderr=log,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, and collect it."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _log(folder: Path) -> str:
    """The end of what agent and actuator said."""
    return (folder / "node.log").read_text(errors="replace")[-2000:]
